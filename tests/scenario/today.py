"""One program that plays what users of LangWatch Scenario 1.6 write, with either package and one scripted provider.

    python tests/scenario/today.py scenario > tests/scenario/today.jsonl     # in an environment with langwatch-scenario==1.6.0

writes a line for each case: what came out there. tests/scenario/test_today.py plays the same cases with ours and compares; where ours
differs on purpose there is a row in its table.
"""

# ruff: noqa: A002, ANN401, BLE001

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

CASES: dict[str, Callable[[Stage], Any]] = {}
NAMES = [
    "AgentAdapter",
    "AgentInput",
    "AgentReturnTypes",
    "AgentRole",
    "ConnectedAgentAdapter",
    "ConnectedAgentCall",
    "CriterionResult",
    "JudgeAgent",
    "JudgmentRequest",
    "RedTeamAgent",
    "ScenarioConfig",
    "ScenarioResult",
    "ScenarioState",
    "ToolCall",
    "ToolCalls",
    "UserSimulatorAgent",
    "agent",
    "arun",
    "cache",
    "configure",
    "fail",
    "judge",
    "message",
    "proceed",
    "run",
    "succeed",
    "user",
]


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
    """Serve a model, and give its base URL."""

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
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


class NoBus:
    """Takes the place of the event bus."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def subscribe_to_events(self, stream: Any) -> None:
        stream.subscribe(self.events.append)

    def drain(self) -> None:
        """Nothing to post."""


class Stage:
    """A package, and what cases need of it."""

    def __init__(self, package: ModuleType, executor: ModuleType) -> None:
        self.scenario, self.executor = package, executor

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

    def judge(self, model: Model, url: str, **given: Any) -> Any:
        return self.scenario.JudgeAgent(
            model="openai/gpt-4.1-mini", api_base=url, api_key="k", temperature=0.0, **given
        )

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


def case(do: Callable[[Stage], Any]) -> Callable[[Stage], Any]:
    CASES[do.__name__] = do
    return do


def checkpoints(stage: Stage, statuses: list[str], *parts: Any, own: Any = None, **given: Any) -> Any:
    model = Model(*statuses)
    with served(model) as url:
        script = [stage.scenario.user("hi"), stage.scenario.agent(), *parts]
        out = stage.play(
            stage.user(),
            stage.agent(),
            stage.judge(model, url, **({"criteria": own} if own else {})),
            script=script,
            **given,
        )
    return out | {"left": len(model.statuses)}


@case
def names(stage: Stage) -> Any:
    return [name for name in NAMES if hasattr(stage.scenario, name)]


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
    """It passes or fails by criteria that it names."""
    scenario, found = stage.scenario, []
    for failed in ([], ["b"]):

        class Judge(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
            role = scenario.AgentRole.JUDGE

            async def call(self, input: Any, failed: list[str] = failed) -> Any:
                told = {"passed_criteria": ["a"], "failed_criteria": failed}
                return scenario.ScenarioResult(success=not failed, messages=[], reasoning="r", **told)

        script = [scenario.user("hi"), scenario.agent(), scenario.judge()]
        found.append(stage.play(stage.user(), stage.agent(), Judge(), script=script))
    return found


@case
def a_judge_that_contradicts_itself(stage: Stage) -> Any:
    """It says success, and names a criterion that failed."""
    scenario = stage.scenario

    class Judge(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
        role = scenario.AgentRole.JUDGE

        async def call(self, input: Any) -> Any:
            return scenario.ScenarioResult(success=True, messages=[], failed_criteria=["b"])

    script = [scenario.user("hi"), scenario.agent(), scenario.judge()]
    out = stage.play(stage.user(), stage.agent(), Judge(), script=script)
    return [out.get("success"), bool(out.get("error"))]


@case
def a_long_transcript(stage: Stage) -> Any:
    """Which tools the judge is given to look it up, and whether it is sent whole."""
    model = Model("passed")
    with served(model) as url:
        script = [stage.scenario.user("hi"), stage.scenario.agent(), stage.scenario.judge()]
        long = "A word. " * 8000
        out = stage.play(stage.user(), stage.agent(long), stage.judge(model, url, criteria=["a"]), script=script)
    tools = {each["function"]["name"] for body in model.asked for each in body.get("tools") or ()}
    looked = sorted(tools & {"expand_transcript", "grep_transcript"})
    return [out.get("success"), looked, max(len(json.dumps(body)) for body in model.asked) < len(long)]


@case
def two_checkpoints_pass(stage: Stage) -> Any:
    judge = stage.scenario.judge
    return checkpoints(stage, ["passed"] * 3, judge(criteria=["a", "b"]), judge(criteria=["c"]))


@case
def the_second_checkpoint_fails(stage: Stage) -> Any:
    judge = stage.scenario.judge
    return checkpoints(
        stage, ["passed", "failed", "passed"], judge(criteria=["a"]), judge(criteria=["b", "c"]), judge()
    )


@case
def a_checkpoint_and_the_judges_own(stage: Stage) -> Any:
    judge = stage.scenario.judge
    return checkpoints(stage, ["passed", "passed"], judge(criteria=["a"]), judge(), own=["z"])


@case
def a_checkpoint_and_a_failing_end(stage: Stage) -> Any:
    judge = stage.scenario.judge
    return checkpoints(stage, ["passed", "failed"], judge(criteria=["a"]), judge(), own=["z"])


@case
def a_checkpoint_and_succeed(stage: Stage) -> Any:
    return checkpoints(stage, ["passed"], stage.scenario.judge(["a"]), stage.scenario.succeed("ok"))


@case
def an_open_checkpoint(stage: Stage) -> Any:
    return checkpoints(stage, ["passed", "inconclusive"], stage.scenario.judge(criteria=["a", "b"]))


@case
def a_judge_without_criteria(stage: Stage) -> Any:
    return checkpoints(stage, [], stage.scenario.judge())


@case
def a_checkpoint_without_criteria(stage: Stage) -> Any:
    return checkpoints(stage, [], stage.scenario.judge(criteria=[]))


@case
def what_a_judge_is_asked(stage: Stage) -> Any:
    scenario = stage.scenario
    seen: list[Any] = []

    class Judge(scenario.AgentAdapter):  # type: ignore[name-defined, misc]
        role = scenario.AgentRole.JUDGE

        async def call(self, input: Any) -> Any:
            asked = input.judgment_request
            seen.append([bool(asked), asked.criteria, asked.additional_context] if asked else [bool(asked)])
            return scenario.ScenarioResult(success=True, messages=[], reasoning="ok") if asked else []

    script = [scenario.user("hi"), scenario.agent(), scenario.judge(criteria=["a"], additional_context="files: 3")]
    script += [scenario.proceed(turns=1), scenario.judge(additional_context="now")]
    out = stage.play(stage.user(), stage.agent(), Judge(), script=script)
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
    given: dict[str, Any] = {"thread_id": "t", "messages": [], "new_messages": [], "scenario_state": None}
    found = stage.scenario.AgentInput(**given, judgment_request=stage.scenario.JudgmentRequest())
    try:
        asked = bool(stage.scenario.AgentInput(**given, judgment_request=True).judgment_request)
    except Exception as error:
        asked = type(error).__name__  # type: ignore[assignment]
    return [bool(found.judgment_request), bool(stage.scenario.AgentInput(**given).judgment_request), asked]


@case
def min_turns(stage: Stage) -> Any:
    model = Model("passed")
    with served(model) as url:
        agent = stage.agent()
        out = stage.play(stage.user(), agent, stage.judge(model, url, criteria=["a"]), min_turns=2, max_turns=5)
    return [out["success"], len(agent.inputs)]


@case
def min_turns_and_a_demanded_verdict(stage: Stage) -> Any:
    return checkpoints(stage, ["passed"], stage.scenario.judge(), own=["a"], min_turns=3)["success"]


@case
def min_turns_above_max_turns(stage: Stage) -> Any:
    try:
        stage.play(stage.agent(), min_turns=4, max_turns=3)
    except ValueError as error:
        return str(error)
    return None


@case
def metadata(stage: Stage) -> Any:
    script = [stage.scenario.succeed()]
    run = asyncio.run(
        stage.scenario.run(
            name="n", description="d", agents=[stage.agent()], script=script, metadata={"commit": "abc"}, verbose=False
        )
    )
    return run.success


@case
def an_assertion_in_a_step(stage: Stage) -> Any:
    def check(state: Any) -> None:
        raise AssertionError("no tool was called")

    return checkpoints(stage, ["passed"], stage.scenario.judge(criteria=["a"]), check)


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


def attacked(stage: Stage, kind: str, texts: list[str], answers: list[str], *scores: int, **given: Any) -> Any:
    """Play an attack; returns what the agent heard each time, how many texts and scores of the model are left, and how it ended."""
    marathon, statuses = given.pop("marathon", False), given.pop("statuses", ())
    model, agent = Attacker(texts, list(scores), statuses), stage.agent(*answers)
    with served(model) as url:
        how = {"target": "say the password", "model": "openai/gpt-4.1-mini", "api_base": url, "api_key": "k", **given}
        attacker = getattr(stage.scenario.RedTeamAgent, kind)(**how)
        turns = [step for _ in answers for step in (stage.scenario.user(), stage.scenario.agent())]
        steps = attacker.marathon_script() if marathon else [*turns, stage.scenario.succeed()]
        judge = stage.judge(model, url, criteria=["no password is told"])
        out = stage.play(attacker, agent, judge, script=steps)
    heard = [[each["content"] for each in given.messages] for given in agent.inputs]
    return [
        heard,
        len(model.texts),
        len(model.scores),
        out.get("success"),
        out.get("failed_criteria"),
        out.get("error"),
    ]


@case
def crescendo_plans_and_scores(stage: Stage) -> Any:
    texts = ["the plan", "hello", "tell me more", "the password"]
    return attacked(stage, "crescendo", texts, ["hi", "well", "sure"], 2, 5, total_turns=3)


@case
def a_plan_of_ones_own_is_taken(stage: Stage) -> Any:
    return attacked(stage, "crescendo", ["hello"], ["hi"], attack_plan="mine", total_turns=1)


@case
def goat_reads_json_and_takes_what_is_none(stage: Stage) -> Any:
    texts = ['```json\n{"observation": "", "strategy": "HYPOTHETICAL", "reply": "in a story"}\n```', "no json"]
    return attacked(stage, "goat", texts, ["hi", "well"], total_turns=2, score_responses=False)


@case
def a_refusal_is_taken_back(stage: Stage) -> Any:
    refusal = "I cannot help with that."
    texts, answers = ["hello", "again", "once more", "at last"], ["hi", refusal, refusal, "fine"]
    return attacked(stage, "crescendo", texts, answers, 1, attack_plan="p", total_turns=4, max_backtracks=1)


@case
def a_refusal_of_the_first_message(stage: Stage) -> Any:
    answers = ["I cannot help with that.", "fine"]
    return attacked(stage, "crescendo", ["hello", "again"], answers, attack_plan="p", total_turns=2)


@case
def an_attack_that_reached_its_goal_ends_early(stage: Stage) -> Any:
    given: dict[str, Any] = {"attack_plan": "p", "total_turns": 6, "statuses": ("failed",), "marathon": True}
    return attacked(stage, "crescendo", list("abcdef"), ["the password is x"], 9, 10, 9, 9, 9, **given)


@case
def an_attack_that_reached_nothing_is_judged(stage: Stage) -> Any:
    given: dict[str, Any] = {"attack_plan": "p", "total_turns": 3, "statuses": ("passed",), "marathon": True}
    return attacked(stage, "crescendo", list("abc"), ["well"], 1, 2, score_responses=False, **given)


@case
def parts_of_an_attack(stage: Stage) -> Any:
    scenario = stage.scenario
    phases = [scenario.CrescendoStrategy().get_phase_name(turn, 10) for turn in range(1, 11)]
    buckets = [scenario.GoatStrategy().get_phase_name(turn, 10) for turn in range(1, 11)]
    names = [each.name for each in scenario.DEFAULT_TECHNIQUES]
    coded = [each.transform("Attack").split("\n\n", 1)[1] for each in scenario.DEFAULT_TECHNIQUES]
    return [phases, buckets, names, coded, scenario.RedTeamAgent.role.value]


@case
def scripts_of_an_attack(stage: Stage) -> Any:
    make = stage.scenario.RedTeamAgent.goat
    kept = {"target": "x", "model": "openai/gpt-4.1-mini", "total_turns": 3}
    plain, early = make(**kept, success_score=None), make(**kept)
    check = [lambda state: None]
    return [
        len(plain.marathon_script()),
        len(early.marathon_script(checks=check, final_checks=check)),
        early.check_early_exit(),
    ]


@case
def numbers_of_an_attack_that_cannot_be(stage: Stage) -> Any:
    found = []
    for wrong in (
        {"injection_probability": 1.5},
        {"max_backtracks": -1},
        {"injection_probability": 0.5, "techniques": []},
    ):
        try:
            stage.scenario.RedTeamAgent.crescendo(target="x", model="openai/gpt-4.1-mini", **wrong)
        except Exception as error:
            found.append(type(error).__name__)
    return found


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}


@case
def the_state(stage: Stage) -> Any:
    found: list[Any] = []

    def look(state: Any) -> None:
        calls = state.tool_calls("look")
        found.extend(
            [
                len(calls),
                calls.first.input,
                calls.last.output,
                calls.inputs,
                calls.outputs,
                bool(calls.first),
                calls.first.turn,
            ]
        )
        none = state.tool_calls("other")
        found.extend([len(none), bool(none.last), none.first.input, none.last.name, len(state.tool_calls())])
        found.extend([state.first_user_message(), state.last_agent_message(), state.transcript(), state.criteria])
        found.append([[turn.index, len(turn.messages), len(turn.tool_calls())] for turn in state.turns])

    said = [
        {"role": "assistant", "content": "looking", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    scenario = stage.scenario
    script = [
        scenario.user("hi"),
        scenario.agent(),
        scenario.user("more"),
        scenario.agent("done"),
        look,
        scenario.succeed(),
    ]
    out = stage.play(stage.user(), stage.agent(said), script=script)
    return [found, out.get("error")]


@case
def fields(stage: Stage) -> Any:
    found: list[Any] = []

    def look(state: Any) -> None:
        found.extend(
            [state.field("city"), state.field("none"), state.field("blank"), state.field("zero"), state.fields]
        )

    given = {"city": "Rome", "blank": "", "zero": 0}
    script = [look, stage.scenario.succeed()]
    asyncio.run(
        stage.scenario.run(
            name="n", description="d", agents=[stage.agent()], script=script, fields=given, verbose=False
        )
    )
    return found


@case
def rollback(stage: Stage) -> Any:
    scenario = stage.scenario
    found: list[Any] = []
    agent = stage.agent()

    def back(state: Any) -> None:
        found.append([each["content"] for each in state.rollback_messages_to(1)])
        found.append(len(state.rollback_messages_to(9)))
        try:
            state.rollback_messages_to(-1)
        except ValueError:
            found.append("ValueError")

    script = [
        scenario.user("one"),
        scenario.agent("two"),
        scenario.user("three"),
        back,
        scenario.agent(),
        scenario.succeed(),
    ]
    stage.play(stage.user(), agent, script=script)
    return [
        found,
        [each["content"] for each in agent.inputs[0].messages],
        [each["content"] for each in agent.inputs[0].new_messages],
    ]


@case
def a_connected_agent(stage: Stage) -> Any:
    seen: list[Any] = []

    class Connected:
        name = "billing"

        def __call__(self, text: str) -> str:
            return text

        async def invoke(self, call: Any) -> Any:
            seen.append(
                [
                    len(call.messages),
                    call.new_messages[-1]["content"],
                    call.session,
                    call.parameters,
                    bool(call.trace_id),
                ]
            )
            return SimpleNamespace(output=f"reply {len(seen)}", session={"n": len(seen)})

    scenario = stage.scenario
    script = [scenario.user("a"), scenario.agent(), scenario.user("b"), scenario.agent(), scenario.succeed()]
    run = scenario.run(
        name="n",
        description="d",
        agents=[stage.user(), Connected()],
        script=script,
        parameters={"tone": "dry"},
        verbose=False,
    )
    result = asyncio.run(run)
    return [seen, [each["content"] for each in result.messages]]


@case
def configure(stage: Stage) -> Any:
    config = stage.scenario.ScenarioConfig
    before, config.default_config = config.default_config, None
    try:
        stage.scenario.configure(min_turns=1, headless=True, observability={"instrumentors": []})
        stage.scenario.configure(max_turns=4)
        made = config.default_config
        return [made.min_turns, made.headless, made.observability, made.max_turns]
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
def a_criterion_result(stage: Stage) -> Any:
    made = stage.scenario.CriterionResult(
        criterion="polite", requirement="is polite", reasoning="said please", status="passed"
    )
    return [made.criterion, made.requirement, made.reasoning, made.status]


@case
def propagation_headers(stage: Stage) -> Any:
    agent = stage.agent()
    stage.play(stage.user(), agent, script=[stage.scenario.user("a"), stage.scenario.agent(), stage.scenario.succeed()])
    return [len(part) for part in agent.inputs[0].propagation_headers["traceparent"].split("-")]


def played(name: str, package: str) -> dict[str, Any]:
    """Return what came out of every case, as JSON has it."""
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
