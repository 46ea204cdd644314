"""One program that plays what users of LangWatch Scenario 1.6 write, with either package and one scripted provider.

    python tests/scenario/today.py scenario > tests/scenario/today.jsonl     # in an environment with langwatch-scenario==1.6.0

writes a line for each case: what came out there. tests/scenario/test_today.py plays the same cases with ours and compares; where ours
differs on purpose there is a row in its table.
"""

# ruff: noqa: A002, BLE001

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

CASES: dict[str, Callable[[Stage], Any]] = {}
EVERY = [
    "AdapterCapabilities", "AgentAdapter", "AgentInput", "AgentReturnTypes", "AgentRole", "AgentStreamEndedError",
    "AttackTechnique", "AttackerOutput", "AudioChunk", "AudioSegment", "ComposableVoiceAgent", "ConnectedAgentAdapter",
    "ConnectedAgentCall", "CrescendoStrategy", "CriterionResult", "DEFAULT_GOAT_TECHNIQUES", "DEFAULT_TECHNIQUES",
    "ElevenLabsAgentAdapter", "ElevenLabsSTTProvider", "ElevenLabsVoiceAgent", "EvaluationResult", "EvaluatorMapping",
    "FirstChunkTimeoutError", "GeminiLiveAgentAdapter", "GoatStrategy", "InterruptionConfig", "JudgeAgent", "LatencyMetrics",
    "LiveKitAgentAdapter", "ModalityNegotiationError", "OpenAIRealtimeAgentAdapter", "OpenAISTTProvider",
    "PipecatAgentAdapter", "PipecatRecvError", "RedTeamAgent", "RedTeamStrategy", "STTProvider", "ScenarioConfig",
    "ScenarioEvaluator", "ScenarioResult", "ScenarioState", "Technique", "TunnelNotReadyError", "TwilioAgentAdapter",
    "UnsupportedCapabilityError", "UserSimulatorAgent", "VapiAgentAdapter", "VoiceAgentAdapter", "VoiceEvent",
    "VoiceRecording", "WebRTCAgentAdapter", "WebSocketAgentAdapter", "WebSocketProtocol", "agent", "arun", "audio", "cache",
    "configure", "conversation", "default_config", "dtmf", "effects", "evaluator", "fail", "field", "interrupt", "judge",
    "message", "proceed", "realtime_langwatch_session", "register_tts_provider", "run", "scenario_only", "scenario_source",
    "set_stt_provider", "setup_scenario_tracing", "silence", "sleep", "succeed", "trace", "user", "value",
    "with_custom_scopes",
]  # fmt: skip
"""What langwatch-scenario 1.6.0 exports."""


class Model:
    """A provider in OpenAI's dialect whose judge gives the statuses that it is told, one after the other, and goes on when they are out."""

    def __init__(self, *statuses: str, goes_on: int = 0) -> None:
        self.statuses, self.goes_on = list(statuses), goes_on
        self.asked: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        tools = {each["function"]["name"]: each["function"] for each in body.get("tools") or ()}
        if not tools:
            return {"role": "assistant", "content": "simulated"}
        if "continue_test" in tools and self.goes_on:
            self.goes_on -= 1
            return self.call("continue_test", {})
        if "make_verdict" in tools:
            return self.call("make_verdict", {})
        return self.call("finish_test", self.filled(tools["finish_test"]["parameters"]))

    def filled(self, schema: dict[str, Any], name: str = "") -> Any:
        if schema.get("enum"):
            return self.statuses.pop(0) if self.statuses else "inconclusive"
        if schema.get("type") == "object":
            return {each: self.filled(inner, each) for each, inner in schema.get("properties", {}).items()}
        return "as it is" if name == "reasoning" else ""

    @staticmethod
    def call(name: str, arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }


@contextmanager
def served(model: Model) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            choice = {"index": 0, "message": model.answer(body), "finish_reason": "stop"}
            sent = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            data = json.dumps(sent).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


class NoBus:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def subscribe_to_events(self, stream: Any) -> None:
        stream.subscribe(self.events.append)

    def drain(self) -> None:
        """Nothing to post."""


class Stage:
    def __init__(self, package: ModuleType, executor: ModuleType) -> None:
        self.scenario, self.executor = package, executor
        self.turn = [package.user("hi"), package.agent()]
        self.judged_turn = [*self.turn, package.judge()]

    def agent(self, *lines: Any) -> Any:
        scenario = self.scenario

        class Agent(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                self.inputs: list[Any] = []

            async def call(self, input: Any) -> Any:
                headers = getattr(input, "propagation_headers", {})
                kept = {"messages": list(input.messages), "new_messages": list(input.new_messages)}  # as they are now
                self.inputs.append(SimpleNamespace(propagation_headers=headers, **kept))
                return lines[(len(self.inputs) - 1) % len(lines)] if lines else f"answer {len(self.inputs)}"

        return Agent()

    def user(self) -> Any:
        made = self.agent()
        type(made).role = self.scenario.AgentRole.USER
        return made

    def judging(self, say: Any) -> Any:
        """Return a judge of one's own that says this, or what a function of its input makes."""
        scenario = self.scenario

        class Judge(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
            role = scenario.AgentRole.JUDGE

            async def call(self, input: Any) -> Any:
                return say(input) if callable(say) else say

        return Judge()

    def judge(self, model: Model, url: str, **given: Any) -> Any:
        return self.scenario.JudgeAgent(
            model="openai/gpt-4.1-mini", api_base=url, api_key="k", temperature=0.0, **given
        )

    def run(self, *agents: Any, **given: Any) -> Any:
        return asyncio.run(self.scenario.run(name="n", description="d", agents=list(agents), verbose=False, **given))

    def play(self, *agents: Any, **given: Any) -> dict[str, Any]:
        bus = NoBus()
        made = self.executor.ScenarioExecutor(
            name="n", description="d", agents=list(agents), verbose=False, event_bus=bus, **given
        )
        out: dict[str, Any] = {}
        try:
            result = asyncio.run(made.run())
        except Exception as error:
            out["error"] = [type(error).__name__, str(error)]
        else:
            out |= {name: getattr(result, name) for name in ("success", "passed_criteria", "failed_criteria")}
            out["inconclusive"] = result.inconclusive_criteria
            out["reasoning"] = (result.reasoning or "").split("\n")[0]
            out["criteria"] = [[each.criterion, each.status] for each in result.criteria]
        return out | {"events": [_event(each) for each in bus.events if "Snapshot" not in type(each).__name__]}


def _event(event: Any) -> list[Any]:
    told = event.to_dict()
    if "Started" in type(event).__name__:
        kept = {name: value for name, value in told["metadata"].items() if name not in {"agents", "langwatch"}}
        return ["started", kept]
    found = told["results"]
    return ["finished", told["status"], found["verdict"], found["metCriteria"], found["unmetCriteria"]]


def tried(ask: Callable[[], Any]) -> Any:
    """Return what comes of it, or the words of its error."""
    try:
        return ask()
    except ValueError as error:
        return str(error)


def case(do: Callable[[Stage], Any]) -> Callable[[Stage], Any]:
    CASES[do.__name__] = do
    return do


def checkpoints(
    stage: Stage, statuses: list[str], steps: Callable[[Any], list[Any]], own: Any = None, **given: Any
) -> Any:
    model = Model(*statuses)
    with served(model) as url:
        judge = stage.judge(model, url, **({"criteria": own} if own else {}))
        script = [*stage.turn, *steps(stage.scenario)]
        out = stage.play(stage.user(), stage.agent(), judge, script=script, **given)
    return out | {"left": len(model.statuses)}


CASES |= {
    name: partial(checkpoints, statuses=statuses, steps=steps, own=own)
    for name, own, statuses, steps in (
        ("two_checkpoints_pass", None, ["passed"] * 3, lambda its: [its.judge(criteria=["a", "b"]), its.judge(criteria=["c"])]),
        ("the_second_checkpoint_fails", None, ["passed", "failed", "passed"],
         lambda its: [its.judge(criteria=["a"]), its.judge(criteria=["b", "c"]), its.judge()]),
        ("a_checkpoint_and_the_judges_own", ["z"], ["passed", "passed"], lambda its: [its.judge(criteria=["a"]), its.judge()]),
        ("a_checkpoint_and_a_failing_end", ["z"], ["passed", "failed"], lambda its: [its.judge(criteria=["a"]), its.judge()]),
        ("a_checkpoint_and_succeed", None, ["passed"], lambda its: [its.judge(["a"]), its.succeed("ok")]),
        ("an_open_checkpoint", None, ["passed", "inconclusive"], lambda its: [its.judge(criteria=["a", "b"])]),
        ("a_judge_without_criteria", None, [], lambda its: [its.judge()]),
        ("a_checkpoint_without_criteria", None, [], lambda its: [its.judge(criteria=[])]),
    )
}  # fmt: skip


@case
def every_name(stage: Stage) -> Any:
    """Those that are there; here the others say why they are none."""
    there = [name for name in EVERY if hasattr(stage.scenario, name)]
    return [there, {*EVERY} <= {*getattr(stage.scenario, "__all__", ())}]


@case
def what_a_client_of_ones_own_sends(stage: Stage) -> Any:
    """A client that blocks, with a header of its own."""
    from openai import OpenAI

    model = Model("passed")
    with served(model) as url:
        client = OpenAI(base_url=url, api_key="k", default_headers={"x-gateway": "g"})
        user = stage.scenario.UserSimulatorAgent(model="gpt-4o-mini", client=client)
        judge = stage.scenario.JudgeAgent(model="gpt-4o-mini", client=client, criteria=["a"])
        script = [stage.scenario.user(), stage.scenario.agent(), stage.scenario.judge()]
        out = stage.play(user, stage.agent(), judge, script=script)
    return [out.get("success"), out.get("error")]


@case
def a_judge_of_ones_own(stage: Stage) -> Any:
    found = []
    for failed in ([], ["b"]):
        told: dict[str, Any] = {"success": not failed, "passed_criteria": ["a"], "failed_criteria": failed}
        judge = stage.judging(stage.scenario.ScenarioResult(messages=[], reasoning="r", **told))
        found.append(stage.play(stage.user(), stage.agent(), judge, script=stage.judged_turn))
    return found


@case
def a_judge_that_contradicts_itself(stage: Stage) -> Any:
    judge = stage.judging(stage.scenario.ScenarioResult(success=True, messages=[], failed_criteria=["b"]))
    out = stage.play(stage.user(), stage.agent(), judge, script=stage.judged_turn)
    return [out.get("success"), bool(out.get("error"))]


@case
def a_long_transcript(stage: Stage) -> Any:
    """Which tools the judge is given to look it up, and whether it is sent whole."""
    model, long = Model("passed"), "A word. " * 8000
    with served(model) as url:
        judge = stage.judge(model, url, criteria=["a"])
        out = stage.play(stage.user(), stage.agent(long), judge, script=stage.judged_turn)
    tools = {each["function"]["name"] for body in model.asked for each in body.get("tools") or ()}
    looked = sorted(tools & {"expand_transcript", "grep_transcript"})
    return [out.get("success"), looked, max(len(json.dumps(body)) for body in model.asked) < len(long)]


@case
def what_a_judge_is_asked(stage: Stage) -> Any:
    scenario = stage.scenario
    seen: list[Any] = []

    def say(input: Any) -> Any:
        asked = input.judgment_request
        seen.append([bool(asked), asked.criteria, asked.additional_context] if asked else [bool(asked)])
        return scenario.ScenarioResult(success=True, messages=[], reasoning="ok") if asked else []

    script = [*stage.turn, scenario.judge(criteria=["a"], additional_context="files: 3")]
    script += [scenario.proceed(turns=1), scenario.judge(additional_context="now")]
    out = stage.play(stage.user(), stage.agent(), stage.judging(say), script=script)
    return [seen, out["success"], out["reasoning"]]


@case
def context_reaches_the_model(stage: Stage) -> Any:
    model = Model("passed")
    with served(model) as url:
        script = [stage.scenario.user("hi"), stage.scenario.judge(criteria=["a"], additional_context="three files")]
        stage.play(stage.user(), stage.agent(), stage.judge(model, url), script=script)
    return "three files" in json.dumps(model.asked)


@case
def a_request_is_true(stage: Stage) -> Any:
    found = stage.scenario.AgentInput(**BARE, judgment_request=stage.scenario.JudgmentRequest())
    try:
        asked = bool(stage.scenario.AgentInput(**BARE, judgment_request=True).judgment_request)
    except Exception as error:
        asked = type(error).__name__  # type: ignore[assignment]
    return [bool(found.judgment_request), bool(stage.scenario.AgentInput(**BARE).judgment_request), asked]


@case
def min_turns(stage: Stage) -> Any:
    model = Model("passed")
    with served(model) as url:
        agent = stage.agent()
        out = stage.play(stage.user(), agent, stage.judge(model, url, criteria=["a"]), min_turns=2, max_turns=5)
    return [out["success"], len(agent.inputs)]


@case
def min_turns_and_a_demanded_verdict(stage: Stage) -> Any:
    return checkpoints(stage, ["passed"], lambda its: [its.judge()], own=["a"], min_turns=3)["success"]


@case
def min_turns_above_max_turns(stage: Stage) -> Any:
    return tried(lambda: stage.play(stage.agent(), min_turns=4, max_turns=3))


@case
def an_assertion_in_a_step(stage: Stage) -> Any:
    def check(state: Any) -> None:
        raise AssertionError("no tool was called")

    return checkpoints(stage, ["passed"], lambda its: [its.judge(criteria=["a"]), check])


@case
def who_raises_is_told(stage: Stage) -> Any:
    """Agent, user, judge and step, and an exception without words: what `run` raises, what is behind it, and the events."""
    scenario, found = stage.scenario, []

    def raises(role: Any, error: Exception) -> Any:
        class Broken(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
            async def call(self, input: Any) -> Any:
                raise error

        Broken.role = role
        return Broken()

    def step(state: Any) -> None:
        raise LookupError("gone")

    roles = scenario.AgentRole
    for agents, last in (
        ([raises(roles.AGENT, LookupError("gone"))], scenario.agent()),
        ([raises(roles.AGENT, TimeoutError())], scenario.agent()),
        ([raises(roles.USER, LookupError("gone"))], scenario.user()),
        ([raises(roles.JUDGE, LookupError("gone"))], scenario.judge()),
        ([], step),
    ):
        cast = [*agents, *([] if any(each.role == roles.AGENT for each in agents) else [stage.agent()])]
        script = [scenario.message({"role": "assistant", "content": "hi"}), last]
        events = stage.play(*cast, script=script)["events"]
        try:
            stage.run(*cast, script=script)
        except Exception as error:
            found.append([type(error).__name__, str(error), type(error.__cause__).__name__, events[-1]])
    return found


@case
def what_is_no_answer(stage: Stage) -> Any:
    """Nothing, a number, a pair, a message without a role: refused with the agent's name."""
    found = []
    script = [stage.scenario.message({"role": "assistant", "content": "hi"}), stage.scenario.agent()]
    for answer in (None, 42, ("a", "b"), {"content": "no role"}):
        out = stage.play(stage.agent(answer), script=script)
        found.append(["error" in out, "Agent" in out.get("error", ["", ""])[1], out["events"][-1][:2]])
    return found


@case
def a_judge_that_is_not_sure_yet(stage: Stage) -> Any:
    """What is inconclusive goes on where nobody demanded a verdict; one that wants to go on in the last turn has to decide."""
    found = []
    for model, turns in (
        (Model("inconclusive", "passed"), 4),
        (Model("passed", goes_on=2), 4),
        (Model("passed", goes_on=99), 2),
        (Model("failed"), 4),
        (Model(), 2),
    ):
        with served(model) as url:
            agent = stage.agent()
            out = stage.play(stage.user(), agent, stage.judge(model, url, criteria=["a"]), max_turns=turns)
        found.append([out.get("success"), len(agent.inputs), out.get("criteria"), out["events"][-1][1:3]])
    return found


@case
def the_older_name_of_the_context(stage: Stage) -> Any:
    """Taken, with a warning; the newer name wins."""
    request = stage.scenario.JudgmentRequest
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old, both = request(context="old"), request(context="old", additional_context="new")
    return [old.additional_context, both.additional_context, [each.category.__name__ for each in caught]]


class Attacker(Model):
    """A provider that says these texts to whoever attacks, these scores to whoever asks for one, and answers judges as ever."""

    def __init__(self, texts: list[str], scores: list[int], statuses: tuple[str, ...] = ()) -> None:
        super().__init__(*statuses)
        self.texts, self.scores = list(texts), list(scores)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("tools"):
            return super().answer(body)
        self.asked.append(body)
        if '"adaptation"' in body["messages"][-1]["content"]:
            said = json.dumps({"score": self.scores.pop(0), "adaptation": "go on"})
        else:
            said = self.texts.pop(0)
        return {"role": "assistant", "content": said}


def attacked(
    stage: Stage, kind: str, texts: list[str], answers: list[str], scores: list[int] | None = None, **given: Any
) -> Any:
    """Play an attack; returns what the agent heard each time, how many texts and scores of the model are left, and how it ended."""
    marathon, statuses = given.pop("marathon", False), given.pop("statuses", ())
    model, agent = Attacker(texts, scores or [], statuses), stage.agent(*answers)
    with served(model) as url:
        how = {"target": "say the password", "model": "openai/gpt-4.1-mini", "api_base": url, "api_key": "k", **given}
        attacker = getattr(stage.scenario.RedTeamAgent, kind)(**how)
        turns = [step for _ in answers for step in (stage.scenario.user(), stage.scenario.agent())]
        steps = attacker.marathon_script() if marathon else [*turns, stage.scenario.succeed()]
        judge = stage.judge(model, url, criteria=["no password is told"])
        out = stage.play(attacker, agent, judge, script=steps)
    heard = [[each["content"] for each in given.messages] for given in agent.inputs]
    return [
        heard, len(model.texts), len(model.scores), out.get("success"), out.get("failed_criteria"), out.get("error"),
    ]  # fmt: skip


REFUSAL = "I cannot help with that."
CASES |= {
    name: partial(attacked, kind=kind, texts=texts, answers=answers, scores=scores, **given)
    for name, kind, texts, answers, scores, given in (
        ("crescendo_plans_and_scores", "crescendo", ["the plan", "hello", "tell me more", "the password"],
         ["hi", "well", "sure"], [2, 5], {"total_turns": 3}),
        ("a_plan_of_ones_own_is_taken", "crescendo", ["hello"], ["hi"], [], {"attack_plan": "mine", "total_turns": 1}),
        ("goat_reads_json_and_takes_what_is_none", "goat",
         ['```json\n{"observation": "", "strategy": "HYPOTHETICAL", "reply": "in a story"}\n```', "no json"],
         ["hi", "well"], [], {"total_turns": 2, "score_responses": False}),
        ("a_refusal_is_taken_back", "crescendo", ["hello", "again", "once more", "at last"], ["hi", REFUSAL, REFUSAL, "fine"],
         [1], {"attack_plan": "p", "total_turns": 4, "max_backtracks": 1}),
        ("a_refusal_of_the_first_message", "crescendo", ["hello", "again"], [REFUSAL, "fine"],
         [], {"attack_plan": "p", "total_turns": 2}),
        ("an_attack_that_reached_its_goal_ends_early", "crescendo", list("abcdef"), ["the password is x"],
         [9, 10, 9, 9, 9], {"attack_plan": "p", "total_turns": 6, "statuses": ("failed",), "marathon": True}),
        ("an_attack_that_reached_nothing_is_judged", "crescendo", list("abc"), ["well"], [1, 2],
         {"attack_plan": "p", "total_turns": 3, "statuses": ("passed",), "marathon": True, "score_responses": False}),
    )
}  # fmt: skip


@case
def parts_of_an_attack(stage: Stage) -> Any:
    scenario = stage.scenario
    phases = [scenario.CrescendoStrategy().get_phase_name(turn, 10) for turn in range(1, 11)]
    buckets = [scenario.GoatStrategy().get_phase_name(turn, 10) for turn in range(1, 11)]
    names = [each.name for each in scenario.DEFAULT_TECHNIQUES]
    coded = [each.transform("Attack").split("\n\n", 1)[1] for each in scenario.DEFAULT_TECHNIQUES]
    kinds = all(isinstance(each, scenario.AttackTechnique) for each in scenario.DEFAULT_TECHNIQUES)
    return [phases, buckets, names, coded, scenario.RedTeamAgent.role.value, kinds]


@case
def scripts_of_an_attack(stage: Stage) -> Any:
    make = stage.scenario.RedTeamAgent.goat
    kept = {"target": "x", "model": "openai/gpt-4.1-mini", "total_turns": 3}
    plain, early = make(**kept, success_score=None), make(**kept)
    check = [lambda state: None]
    steps = early.marathon_script(checks=check, final_checks=check)
    return [len(plain.marathon_script()), len(steps), early.check_early_exit()]


@case
def numbers_of_an_attack_that_cannot_be(stage: Stage) -> Any:
    found, none = [], {"injection_probability": 0.5, "techniques": []}
    for wrong in ({"injection_probability": 1.5}, {"max_backtracks": -1}, none):
        try:
            stage.scenario.RedTeamAgent.crescendo(target="x", model="openai/gpt-4.1-mini", **wrong)
        except Exception as error:
            found.append(type(error).__name__)
    return found


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
FOUND = {"role": "tool", "tool_call_id": "c1", "content": "found"}


@case
def the_state(stage: Stage) -> Any:
    found: list[Any] = []

    def look(state: Any) -> None:
        calls, none = state.tool_calls("look"), state.tool_calls("other")
        found.extend([len(calls), calls.first.input, calls.last.output, calls.inputs, calls.outputs])
        found.extend([bool(calls.first), calls.first.turn])
        found.extend([len(none), bool(none.last), none.first.input, none.last.name, len(state.tool_calls())])
        found.extend([state.first_user_message(), state.last_agent_message(), state.transcript(), state.criteria])
        found.append([[turn.index, len(turn.messages), len(turn.tool_calls())] for turn in state.turns])

    said = [{"role": "assistant", "content": "looking", "tool_calls": [CALL]}, FOUND]
    scenario = stage.scenario
    script = [*stage.turn, scenario.user("more"), scenario.agent("done"), look, scenario.succeed()]
    out = stage.play(stage.user(), stage.agent(said), script=script)
    return [found, out.get("error")]


@case
def fields(stage: Stage) -> Any:
    found: list[Any] = []

    def look(state: Any) -> None:
        found.extend([*map(state.field, ("city", "none", "blank", "zero")), state.fields])

    given = {"city": "Rome", "blank": "", "zero": 0}
    script = [look, stage.scenario.succeed()]
    stage.run(stage.agent(), script=script, fields=given)
    return found


@case
def rollback(stage: Stage) -> Any:
    scenario, agent = stage.scenario, stage.agent()
    found: list[Any] = []

    def back(state: Any) -> None:
        found.append([each["content"] for each in state.rollback_messages_to(1)])
        found.append(len(state.rollback_messages_to(9)))
        try:
            state.rollback_messages_to(-1)
        except ValueError:
            found.append("ValueError")

    script = [scenario.user("one"), scenario.agent("two"), scenario.user("three"), back, scenario.agent()]
    stage.play(stage.user(), agent, script=[*script, scenario.succeed()])
    (heard,) = agent.inputs
    return [found, *([each["content"] for each in some] for some in (heard.messages, heard.new_messages))]


class Connected:
    name = "billing"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    def __call__(self, text: str) -> str:
        return text

    async def invoke(self, call: Any) -> Any:
        return self.answer(call)


@case
def a_connected_agent(stage: Stage) -> Any:
    seen: list[Any] = []

    def answer(call: Any) -> Any:
        heard = [len(call.messages), call.new_messages[-1]["content"]]
        seen.append([*heard, call.session, call.parameters, bool(call.trace_id)])
        return SimpleNamespace(output=f"reply {len(seen)}", session={"n": len(seen)})

    scenario = stage.scenario
    script = [scenario.user("a"), scenario.agent(), scenario.user("b"), scenario.agent(), scenario.succeed()]
    result = stage.run(stage.user(), Connected(answer), script=script, parameters={"tone": "dry"})
    return [seen, [each["content"] for each in result.messages]]


@case
def configure(stage: Stage) -> Any:
    config = stage.scenario.ScenarioConfig
    before, config.default_config = config.default_config, None
    try:
        stage.scenario.configure(min_turns=1, headless=True, observability={"instrumentors": []})
        stage.scenario.configure(max_turns=4)
        stage.scenario.configure(default_model="openai/x", verbose=2, cache_key="k", debug=True)
        made = config.default_config
        found = [made.min_turns, made.headless, made.observability, made.max_turns]
        return [*found, made.default_model, made.verbose, made.cache_key, made.debug]
    finally:
        config.default_config = before


@case
def a_model_takes_any_keyword(stage: Stage) -> Any:
    config = importlib.import_module(stage.scenario.__name__ + ".config").ModelConfig
    made = config(model="openai/x", api_base="http://h", timeout=3, headers={"a": "b"})
    return [made.model, made.api_base, made.timeout, made.headers]


@case
def keywords_of_agents_reach_the_wire(stage: Stage) -> Any:
    model = Model("passed")
    with served(model) as url:
        user = stage.scenario.UserSimulatorAgent(model="openai/gpt-4.1-mini", api_base=url, api_key="k", seed=7)
        judge = stage.judge(model, url, criteria=["a"], seed=8)
        script = [stage.scenario.user(), stage.scenario.agent(), stage.scenario.judge()]
        out = stage.play(user, stage.agent(), judge, script=script)
    return [out["success"], [body.get("seed") for body in model.asked]]


@case
def propagation_headers(stage: Stage) -> Any:
    agent = stage.agent()
    stage.play(stage.user(), agent, script=[stage.scenario.user("a"), stage.scenario.agent(), stage.scenario.succeed()])
    return [len(part) for part in agent.inputs[0].propagation_headers["traceparent"].split("-")]


HI = {"role": "user", "content": "hi"}
BARE: dict[str, Any] = {"thread_id": "t", "messages": [], "new_messages": [], "scenario_state": None}
GIVEN: dict[str, dict[str, Any]] = {
    "JudgmentRequest": {"criteria": ["a"], "additional_context": "x"},
    "AgentInput": BARE | {"new_messages": [HI], "judgment_request": None, "propagation_headers": {"traceparent": "x"}},
    "CriterionResult": {"criterion": "a", "requirement": "is a", "reasoning": "r", "status": "failed"},
    "ScenarioConfig": {
        "default_model": "openai/x",
        "max_turns": 3,
        "min_turns": 1,
        "verbose": False,
        "cache_key": "k",
        "debug": False,
        "headless": True,
        "observability": {"a": 1},
    },
    "ScenarioResult": {
        "success": False,
        "messages": [HI],
        "reasoning": "r",
        "passed_criteria": ["a"],
        "failed_criteria": ["b"],
        "inconclusive_criteria": ["b"],
        "criteria": [],
        "total_time": 2.0,
        "agent_time": 1.0,
    },
    "ConnectedAgentCall": {
        "messages": [1],
        "new_messages": [2],
        "thread_id": "t",
        "session": 3,
        "trace_id": "u",
        "parameters": {"a": 1},
    },
    "Technique": {"id": "i", "name": "n", "description": "d", "example": "e"},
    "ToolCall": {"name": "look", "input": {"n": 1}, "output": "found", "turn": 0, "source": "message"},
}
"""What values are built with: every field that both have."""


@case
def values(stage: Stage) -> Any:
    made = {name: getattr(stage.scenario, name)(**given) for name, given in GIVEN.items()}
    return {name: {field: getattr(made[name], field) for field in given} for name, given in GIVEN.items()}


@case
def values_with_defaults(stage: Stage) -> Any:
    """Built with what they need, the rest read; `context` is the older name of `additional_context`."""
    scenario = stage.scenario
    result, config = scenario.ScenarioResult(success=True, messages=[]), scenario.ScenarioConfig()
    call = scenario.ConnectedAgentCall(messages=[])
    with warnings.catch_warnings(action="ignore"):
        asked = scenario.JudgmentRequest(context="older")
    found = [getattr(result, name) for name in GIVEN["ScenarioResult"] if name not in {"messages", "success"}]
    found += [result.audio, result.timeline, result.latency, result.evaluations, repr(result)]
    said_by_environment = "headless"
    found += [getattr(config, name) for name in GIVEN["ScenarioConfig"] if name != said_by_environment]
    found += [call.turn_fields(), call.parameters, asked.additional_context, asked.context, asked.criteria]
    found += [scenario.AgentInput(**BARE).judgment_request, scenario.AgentInput(**BARE).propagation_headers]
    calls = scenario.ToolCalls([scenario.ToolCall(**GIVEN["ToolCall"])], name="look")
    found += [len(calls), calls.count(calls.first), calls.index(calls.last), calls.inputs, calls.outputs]
    adapter, roles = scenario.AgentAdapter, [each.value for each in scenario.AgentRole]
    return [*found, adapter.name, adapter.role.value, roles]


@case
def values_as_models(stage: Stage) -> Any:
    scenario, found = stage.scenario, []
    for name in ("JudgmentRequest", "ScenarioResult", "ScenarioConfig"):
        kind, given = getattr(scenario, name), GIVEN[name]
        made = kind.model_validate(given)
        changed = made.model_copy(update={next(iter(given)): None})
        dumped, said = made.model_dump(), json.loads(made.model_dump_json())
        found.append([{each: dumped[each] for each in given}, {each: said[each] for each in given}])
        found.append(getattr(changed, next(iter(given))))
    config = scenario.ScenarioConfig(max_turns=3).merge(scenario.ScenarioConfig(verbose=False, max_turns=None))
    return [*found, config.max_turns, config.verbose, sorted({*config.items()} - {"headless"})]


@case
def the_last_new_message_of_the_user(stage: Stage) -> Any:
    found: list[Any] = []
    for new in ([HI], [{"role": "user", "content": [{"type": "text", "text": "x"}]}], []):
        made = stage.scenario.AgentInput(**GIVEN["AgentInput"] | {"new_messages": new})
        found.extend(map(tried, (made.last_new_user_message, made.last_new_user_message_str)))
    return found


@case
def words_of_a_script(stage: Stage) -> Any:
    """Each with everything that it takes; what the callbacks and the agent were told."""
    scenario, seen = stage.scenario, []
    agent = stage.agent("one", "two", "three", "four")
    told = {
        "on_turn": lambda state: seen.append(["turn", state.current_turn]),
        "on_step": lambda state: seen.append(["step", len(state.messages)]),
    }
    script = [
        scenario.message({"role": "system", "content": "s"}),
        scenario.user(HI),
        scenario.agent(content="said for it"),
        scenario.user(content="more"),
        scenario.proceed(turns=2, **told),
        scenario.message(message={"role": "assistant", "content": "m"}),
        scenario.succeed(reasoning="why"),
    ]
    out = stage.play(stage.user(), agent, script=script)
    heard = [[each["content"] for each in given.new_messages] for given in agent.inputs]
    last = (scenario.fail(reasoning="no"), scenario.fail(), scenario.succeed())
    ends = [stage.play(stage.agent(), script=[step]) for step in last]
    return [seen, heard, out, ends]


@case
def a_script_that_ends_without_a_verdict(stage: Stage) -> Any:
    out = stage.play(stage.user(), stage.agent(), script=stage.turn)
    return [out["success"], out["reasoning"].startswith("Reached end of script without conclusion")]


@case
def a_run_to_the_last_turn(stage: Stage) -> Any:
    agent = stage.agent()
    out = stage.play(stage.user(), agent, max_turns=2)
    return [out["success"], out["reasoning"], len(agent.inputs)]


@case
def run_and_arun(stage: Stage) -> Any:
    scenario, found = stage.scenario, []
    for run in (scenario.run, scenario.arun):
        seen: list[Any] = []

        def look(state: Any, seen: list[Any] = seen) -> None:
            config = state.config
            seen += [state.description, state.field("city"), config.max_turns, config.min_turns, bool(state.thread_id)]

        given: dict[str, Any] = {"name": "n", "description": "d", "agents": [stage.user(), stage.agent()]}
        given |= {"max_turns": 4, "min_turns": 1, "verbose": False, "cache_key": None, "debug": False, "set_id": "s"}
        given |= {"metadata": {"a": "b"}, "parameters": {"tone": "dry"}, "fields": {"city": "Rome"}}
        result = asyncio.run(run(**given, script=[*stage.turn, look, scenario.succeed()]))
        times = [isinstance(result.total_time, float)]
        found.append([result.success, result.reasoning, len(result.messages), seen, times])
    return found


@case
def what_a_state_knows(stage: Stage) -> Any:
    scenario = stage.scenario
    found: list[Any] = []

    def nothing(state: Any) -> None:
        found.extend(map(tried, (state.last_message, state.last_user_message)))
        found.extend([state.first_user_message(), state.last_agent_message(), state.transcript(), state.turns])

    def look(state: Any) -> None:
        state.add_message({"role": "user", "content": "added"})
        found.extend([state.last_message()["content"], state.last_user_message()["content"]])
        found.extend(["trace_id" in state.messages[-1], state.has_tool_call("look"), state.has_tool_call("no")])
        found.append(state.thread_id != "")
        found.extend([state.last_tool_call("look"), state.last_tool_call("no"), state.current_turn, state.description])
        found.extend([len(state.messages), state.config.verbose])

    said = [{"role": "assistant", "content": None, "tool_calls": [CALL]}, FOUND]
    script = [nothing, *stage.turn, look, scenario.succeed()]
    out = stage.play(stage.user(), stage.agent(said), script=script)
    config = scenario.ScenarioConfig(max_turns=3)
    made = scenario.ScenarioState(description="e", messages=[], thread_id="t", current_turn=2, config=config)
    read = [made.description, made.thread_id, made.current_turn, made.config.max_turns, len(made.messages)]
    return [found, out.get("error"), read]


@case
def what_users_and_judges_are_made_with(stage: Stage) -> Any:
    """Every keyword for text; which of them reach the wire."""
    model = Model("passed")
    with served(model) as url:
        kept = {"model": "openai/gpt-4.1-mini", "api_base": url, "api_key": "k", "temperature": 0.5, "max_tokens": 77}
        user = stage.scenario.UserSimulatorAgent(**kept, persona="PERSONA: a pilot")
        plain = stage.scenario.UserSimulatorAgent(**kept, system_prompt="SYSTEM of the user")
        judge = stage.scenario.JudgeAgent(
            **kept, criteria=["a"], system_prompt="SYSTEM of the judge", token_threshold=8192, max_discovery_steps=3
        )
        script = [stage.scenario.user(), stage.scenario.agent(), stage.scenario.judge()]
        outs = [stage.play(who, stage.agent(), judge, script=script) for who in (user, plain)]
    words, told = ("PERSONA: a pilot", "SYSTEM of the user", "SYSTEM of the judge"), []
    for body in model.asked:
        sent = json.dumps(body["messages"])
        told.append([body.get("temperature"), body.get("max_tokens"), *(each in sent for each in words)])
    roles = [[each.role.value, each.name] for each in (user, judge)]
    return [[each.get("success") for each in outs], told, roles]


@case
def an_adapter_of_ones_own(stage: Stage) -> Any:
    scenario = stage.scenario

    class Mine(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
        name = "mine"

        async def call(self, input: Any) -> Any:
            return input.last_new_user_message_str().upper()

    mine = Mine()
    said = asyncio.run(mine.call(scenario.AgentInput(**GIVEN["AgentInput"])))
    returned: scenario.AgentReturnTypes = said  # type: ignore[name-defined]
    return [returned, mine.name, mine.role is scenario.AgentRole.AGENT]


@case
def a_connected_agent_by_hand(stage: Stage) -> Any:
    scenario, seen = stage.scenario, []

    def answer(call: Any) -> Any:
        seen.append([call.parameters, sorted(call.turn_fields())])
        return {"output": "reply", "session": {"n": 1}}

    made = scenario.ConnectedAgentAdapter(agent=Connected(answer), parameters={"tone": "dry"})
    before = made.session_for("t")
    said = asyncio.run(made.call(scenario.AgentInput(**GIVEN["AgentInput"])))
    return [said, seen, before, made.session_for("t"), made.name, made.role.value]


@case
def a_decorator_that_keeps_nothing(stage: Stage) -> Any:
    """Without a cache key a function is called each time."""
    scenario, calls = stage.scenario, []

    @scenario.cache(ignore=["token"])  # type: ignore[untyped-decorator]
    def asked(n: int, token: str) -> int:
        calls.append(n)
        return n + 1

    found: list[Any] = []
    script = [lambda state: found.extend([asked(1, "x"), asked(1, "y"), asked(2, "x")]), scenario.succeed()]
    stage.play(stage.agent(), script=script)
    same = scenario.scenario_cache is scenario.cache
    return [found, calls, same]


@case
def modules(stage: Stage) -> Any:
    where = {
        "agent_adapter": "AgentAdapter", "config": "ScenarioConfig", "judge_agent": "JudgeAgent",
        "red_team_agent": "RedTeamAgent", "scenario_executor": "ScenarioExecutor", "scenario_state": "ScenarioState",
        "script": "proceed", "types": "AgentInput", "user_simulator_agent": "UserSimulatorAgent",
    }  # fmt: skip
    return [hasattr(getattr(stage.scenario, module), name) for module, name in where.items()]


@case
def the_copy_of_the_configuration(stage: Stage) -> Any:
    return stage.scenario.default_config


@case
def an_attacker_with_every_keyword(stage: Stage) -> Any:
    """Made by its constructor, with a strategy of one's own."""
    scenario = stage.scenario

    class Plain(scenario.RedTeamStrategy):  # type: ignore[name-defined, misc]
        @property
        def needs_metaprompt_plan(self) -> bool:
            return True

        def build_system_prompt(
            self, target: str, current_turn: int, total_turns: int, *more: Any, **given: Any
        ) -> str:
            return f"SYSTEM {target} {current_turn}/{total_turns} {given.get('metaprompt_plan', more[1:] and more[1])}"

        def get_phase_name(self, current_turn: int, total_turns: int) -> str:
            return "the only one"

    model = Attacker(["the plan", "hello", "again"], [2, 3])
    with served(model) as url:
        how: dict[str, Any] = {"model": "openai/gpt-4.1-mini", "api_base": url, "api_key": "k"}
        how |= {"target": "t", "total_turns": 2, "temperature": 0.5, "max_tokens": 55, "attack_plan": None}
        how |= {"metaprompt_model": "openai/gpt-4.1", "metaprompt_temperature": 0.25, "max_backtracks": 1}
        how |= {"metaprompt_template": "PLAN for {target} in {total_turns}: {description}", "score_responses": True}
        how |= {"fast_refusal_detection": False, "success_score": None, "success_confirm_turns": 2}
        how |= {"injection_probability": 0.0, "techniques": list(scenario.DEFAULT_TECHNIQUES)}
        attacker = scenario.RedTeamAgent(strategy=Plain(), **how)
        turns = [step for _ in range(2) for step in (scenario.user(), scenario.agent())]
        out = stage.play(attacker, stage.agent("one", "two"), script=[*turns, scenario.succeed()])
    first, sent = model.asked[0], [(body, json.dumps(body["messages"])) for body in model.asked]
    return [
        [first["model"], first.get("temperature"), "PLAN for t in 2: d" in sent[0][1]],
        [[body["temperature"], body.get("max_tokens")] for body, said in sent if "SYSTEM t" in said],
        any("the plan" in said for _, said in sent),
        out.get("success"),
        out.get("error"),
        [attacker.role.value, attacker.name],
    ]


@case
def strategies(stage: Stage) -> Any:
    scenario, found = stage.scenario, []
    for made in (scenario.CrescendoStrategy(), scenario.GoatStrategy(techniques=scenario.DEFAULT_GOAT_TECHNIQUES)):
        prompt = made.build_system_prompt(
            target="TARGET", current_turn=1, total_turns=3, scenario_description="DESCRIPTION", metaprompt_plan="PLAN"
        )
        said = made.parse_attacker_output('{"observation": "o", "strategy": "s", "reply": "r"}')
        shown = ["TARGET" in prompt, "DESCRIPTION" in prompt, made.needs_metaprompt_plan]
        found.append([*shown, said.reply, said.observation])
        found.append([said.strategy, said.parse_failed, made.get_phase_name(3, 3)])
    return [*found, [each.id for each in scenario.DEFAULT_GOAT_TECHNIQUES]]


@case
def a_disguised_message(stage: Stage) -> Any:
    technique = next(each for each in stage.scenario.DEFAULT_TECHNIQUES if each.name == "base64")
    given: dict[str, Any] = {"attack_plan": "p", "total_turns": 1, "injection_probability": 1.0}
    heard = attacked(stage, "crescendo", ["hello"], ["hi"], techniques=[technique], **given)[0]
    return "aGVsbG8=" in heard[0][0]


@case
def what_a_judge_returns_as_messages(stage: Stage) -> Any:
    """A judge of one's own that names no messages, and one that names others."""
    scenario = stage.scenario
    found: list[Any] = []
    for named in ([], [{"role": "user", "content": "other"}]):
        result = scenario.ScenarioResult(success=True, messages=named, reasoning="r")
        made = stage.run(stage.user(), stage.agent("answer"), stage.judging(result), script=stage.judged_turn)
        found.append([each["content"] for each in made.messages])
    return found


def played(name: str, package: str) -> dict[str, Any]:
    stage = Stage(importlib.import_module(name), importlib.import_module(f"{name}.scenario_executor"))
    found = {}
    for each, do in CASES.items():
        try:
            out = do(stage)
        except Exception as error:
            out = {"raised": [type(error).__name__, str(error)[:300]]}
        found[each] = json.loads(json.dumps(out, default=str))
    return found | {"package": package}


if __name__ == "__main__":
    os.environ.update(
        SCENARIO_HEADLESS="1", LANGWATCH_API_KEY="", SCENARIO_CACHE_DIR="", LITELLM_LOCAL_MODEL_COST_MAP="True"
    )
    sys.stdout, real = sys.stderr, sys.stdout
    for name, out in played(sys.argv[1], "langwatch-scenario 1.6.0").items():
        print(json.dumps({"case": name, "out": out}, ensure_ascii=False), file=real)
