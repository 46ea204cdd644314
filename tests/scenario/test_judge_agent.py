"""The judge: it fails closed, sees a transcript, decides at the end, and does not judge the description."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import Exit, LLMProxyError, MissError, SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.judge_agent import (
    EXPAND,
    GREP,
    JudgeAgent,
    JudgeError,
    JudgeQuestionOnConversation,
    JudgeRulingOnConversation,
    JudgeTranscriptTools,
    VoteRule,
    combine_votes,
    estimate_tokens,
    list_judge_party_names,
    read_vote_rule,
)
from llmproxy.scenario.models.model_calls import ToolChoiceRefused
from llmproxy.scenario.types import AgentInput
from llmproxy.scenario.user_simulator_agent import UserSimulatorAgent
from llmproxy.scenario.values.criteria import Criteria, CriterionStatus, JudgeFinding
from tests.provider import Provider, Step, step
from tests.scenario.parties import (
    MODEL,
    TALK,
    Echo,
    bodies,
    called,
    finish,
    go_on,
    model,
    raw,
    refusal,
    run_session,
    shown,
    words,
)
from tests.scenario.people import Agent, User, play, roles
from tests.support import near
from tests.support.forked import program
from tests.support.process import clean_env

pytestmark = pytest.mark.usefixtures("untouched")


def judged(*steps: Step, forced: bool = True, given: AgentInput | None = None, **how: Any) -> tuple[Any, list[Any]]:
    """Return what a judge says who answers so, and what it was asked."""
    how = {"criteria": ["polite", "fast"]} | how
    with model(*steps) as (config, provider):
        said = asyncio.run(JudgeAgent(model=config, **how).call(given or shown(forced=forced)))
        provider.finish()
        return said, bodies(provider)


def test_all_passed_is_success() -> None:
    """Every criterion with its finding, and the judge's own words; the messages are what was said to the agent (row 16)."""
    result, _ = judged(finish("passed", "passed", evidence=["On its way"]))
    assert (result.success, result.reasoning, result.messages) == (True, "so it is", TALK)
    assert result.passed_criteria == ["polite", "fast"]
    found = [(each.id, each.status, each.evidence) for each in result.criteria]
    assert found == [("c1", "passed", "On its way"), ("c2", "passed", "")]


@pytest.mark.parametrize("second", ["failed", "inconclusive"])
def test_anything_else_is_none(second: str) -> None:
    """Row 12: a failed or an inconclusive criterion is never a success when a verdict is demanded."""
    result, _ = judged(finish("passed", second))
    assert not result.success
    assert result.passed_criteria == ["polite"]
    other = {"failed": "inconclusive", "inconclusive": "failed"}[second]
    assert (getattr(result, f"{second}_criteria"), getattr(result, f"{other}_criteria")) == (["fast"], [])


def test_a_missing_criterion_is_no_success() -> None:
    """Row 12: what the judge leaves out twice is inconclusive; a criterion passes only with words that were really said."""
    result, _ = judged(finish("passed"), finish("passed"))
    assert (result.success, result.inconclusive_criteria) == (False, ["fast"])
    assert result.criteria[1].reason == "the judge said nothing about it"
    result, _ = judged(finish("passed", "passed", evidence=["Delivered yesterday"]))
    assert (result.success, result.inconclusive_criteria) == (False, ["polite"])
    assert result.criteria[0].evidence == "[not in the conversation] Delivered yesterday"


def test_a_verdict_of_its_own_cannot_make_a_success_but_unmake_one() -> None:
    """The verdict follows from the criteria; a judge that contradicts itself has not passed anybody."""
    findings = {"c1": {"status": "passed"}, "c2": {"status": "passed"}}
    arguments = {"criteria": findings, "reasoning": "", "verdict": "failure"}
    result, _ = judged(step(call=[{"name": "finish_test", "arguments": arguments}]))
    assert not result.success
    assert "'failure'" in result.reasoning
    findings["c2"]["status"] = "inconclusive"
    result, _ = judged(step(call=[{"name": "finish_test", "arguments": arguments | {"verdict": "success"}}]))
    assert not result.success


def test_an_open_verdict_lets_the_conversation_go_on() -> None:
    """What is not decided yet does not end a run that can go on; a failure and a full success do."""
    assert judged(go_on(), forced=False)[0] == []
    assert judged(finish("passed", "inconclusive"), forced=False)[0] == []
    assert judged(finish("failed", "inconclusive"), forced=False)[0].failed_criteria == ["polite"]
    assert judged(finish("passed", "passed"), forced=False)[0].success


def test_an_empty_criterion_is_refused() -> None:
    with pytest.raises(ValueError, match=r"criteria\[0\] is ''"):
        JudgeAgent(model=MODEL, criteria=[""])
    with pytest.raises(ValueError, match="takes a list"):
        JudgeAgent(model=MODEL, criteria="polite")


def test_without_criteria_a_demanded_verdict_fails_without_a_call() -> None:
    """There is nothing to judge against, and nobody is asked; a run ends without conclusion (row 14)."""
    result, asked = judged(criteria=None)
    assert (result.success, asked) == (False, [])
    assert result.reasoning == "TestingAgent was called as a judge, but it has no criteria to judge against"
    result = play(Agent(), User(), JudgeAgent(model=MODEL), max_turns=2)
    assert (result.success, result.reasoning) == (False, "Reached maximum turns (2) without conclusion")


def test_it_sees_a_transcript_and_ends_on_the_user() -> None:
    """Row 17: no tool calls of somebody else as its own, two messages, the last one the user's."""
    call = {"id": "call_7", "type": "function", "function": {"name": "track", "arguments": '{"id":"A-1"}'}}
    talk = [*TALK[:1], {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_7", "content": "in Kassel"}, TALK[1]]  # fmt: skip
    _, (request,) = judged(
        finish("passed", "passed", evidence=['track({"id": "A-1"})']), given=shown(*talk, forced=True)
    )
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert '    calls track({"id": "A-1"})\n[3] tool track: in Kassel\n[4] assistant: On its way.' in words(request)
    assert "call_7" not in words(request)


def test_the_description_is_context_and_no_criterion() -> None:
    """The scenario is told apart from the criteria; `system_prompt` replaces how to judge, not what."""
    _, (request,) = judged(finish("passed", "passed"))
    said = words(request)
    assert "<scenario>\nSomebody misses a lamp.\n</scenario>" in said
    assert "<criteria>\nc1: polite\nc2: fast\n</criteria>" in said
    assert "it is context" in said
    _, (request,) = judged(finish("passed", "passed"), system_prompt="You are a strict reviewer {x} $y")
    assert request["messages"][0] == {"role": "system", "content": "You are a strict reviewer {x} $y"}
    assert "c2: fast" in request["messages"][1]["content"]


def test_the_context_of_a_demanded_verdict_is_shown() -> None:
    """Row 27: `judge(text)` is told to the judge, and is no part of the conversation."""
    with model(finish("passed")) as (config, provider):
        script = [scenario.user("hi"), scenario.agent(), scenario.judge("The shop was closed.")]
        result = play(Echo(), JudgeAgent(model=config, criteria=["polite"]), script=script)
        assert "<context>\nThe shop was closed.\n</context>" in words(bodies(provider)[0])
    assert (result.success, roles(result)) == (True, "ua")


def test_an_empty_conversation_can_be_judged() -> None:
    """A verdict before anybody spoke is asked for as it is."""
    given = shown(forced=True)
    given.messages = []
    assert "(nothing was said)" in words(judged(finish("failed", "failed"), given=given)[1][0])


def test_it_knows_its_last_turn() -> None:
    """Row 14: in the last turn the same call demands the verdict; there is no extra one."""
    with model(go_on(), go_on(), finish("passed")) as (config, provider):
        result = play(Echo(), User(), JudgeAgent(model=config, criteria=["polite"]), max_turns=3)
        provider.finish()
        assert ["can still go on" in words(body) for body in bodies(provider)] == [True, True, False]
        assert "Give your final verdict now" in words(bodies(provider)[2])
    assert (result.success, roles(result)) == (True, "uauaua")


@pytest.mark.parametrize(
    ("turns", "said", "passed", "inconclusive"),
    [(2, [go_on()] * 3, [], ["polite", "fast"]), (1, [finish("passed", "inconclusive")], ["polite"], ["fast"])],
    ids=["without a verdict", "an open verdict"],
)
def test_at_the_end_every_criterion_has_its_status(
    turns: int, said: list[Step], passed: list[str], inconclusive: list[str]
) -> None:
    """Rows 14 and 15: judged or not, what was not decided is listed as inconclusive, and is no success."""
    with model(*said) as (config, _):
        result = play(Echo(), User(), JudgeAgent(model=config, criteria=["polite", "fast"]), max_turns=turns)
    assert (result.success, result.passed_criteria, result.inconclusive_criteria) == (False, passed, inconclusive)
    assert passed or result.reasoning == "Reached maximum turns (2) without conclusion"


def test_a_verdict_in_mid_script_goes_on_when_it_is_open() -> None:
    """Row 27: something inconclusive and steps left: the script goes on; a failure ends it."""
    for status, spoken in (("inconclusive", "uaua"), ("failed", "ua")):
        with model(finish("passed", status)) as (config, _):
            judge, turn = JudgeAgent(model=config, criteria=["polite", "fast"]), [scenario.user("a"), scenario.agent()]
            script = [*turn, scenario.judge(), *turn, scenario.succeed()]
            assert roles(play(Echo(), judge, script=script)) == spoken


def test_min_turns_spares_the_calls() -> None:
    """Before so many turns are over nobody is asked, unless a verdict is demanded."""
    assert judged(forced=False, min_turns=2) == ([], [])
    assert judged(go_on(), given=shown(turn=1), min_turns=2)[0] == []
    assert judged(finish("passed", "passed"), min_turns=9)[0].success


@pytest.mark.parametrize("kind", [JudgeAgent, UserSimulatorAgent])
def test_no_model_is_refused_with_what_to_write(kind: type[Any]) -> None:
    """The error comes when the judge or the user is made, not in the middle of a run, and says TestingAgent."""
    with pytest.raises(SettingsError, match=rf"TestingAgent(.|\n)*{kind.__name__}(.|\n)*configure\(default_model="):
        kind()


@pytest.mark.parametrize("kind", [JudgeAgent, UserSimulatorAgent])
def test_parameters_and_defaults_are_those_of_the_documentation(kind: type[Any]) -> None:
    """Keyword-only, with the documented defaults; the temperature prints as 0.0 and knows whether it was given."""
    parameters = inspect.signature(kind).parameters
    documented = ["model", "api_key", "temperature", "max_tokens", "system_prompt"]
    documented += ["criteria"] if kind is JudgeAgent else []
    defaults = {name: repr(parameters[name].default) for name in documented}
    assert defaults == dict.fromkeys(documented, "None") | {"temperature": "0.0"}
    assert all(each.kind in {each.KEYWORD_ONLY, each.VAR_KEYWORD} for each in parameters.values())


MODELS = ("openai/gpt-4.1-mini", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash")
NO_CHOICE = "This model does not support tool_choice"
JSON_VERDICT = json.dumps({"decision": "finish_test", "criteria": {"c1": {"status": "passed"}}, "reasoning": "ok"})


def question(*texts: str, forced: bool = True) -> JudgeQuestionOnConversation:
    return JudgeQuestionOnConversation("Judge.", "<transcript>hi</transcript>", Criteria(texts or ("polite",)), forced)


def put(*steps: Step, forced: bool = True, texts: tuple[str, ...] = ()) -> tuple[JudgeRulingOnConversation, Provider]:
    with model(*steps) as (config, provider):
        ruling = asyncio.run(question(*texts, forced=forced).ask_judge(config, "judge", None))
        provider.finish()
        return ruling, provider


async def ask_all(url: str, cassette: str, key: str | None, forced: bool) -> list[Any]:
    """Ask a judge of each provider in one session; errors are returned."""
    async with run_session(url, cassette=cassette) as session:
        said: list[Any] = []
        for name in MODELS:
            config = ModelConfig(model=name, api_key=key)
            try:
                said.append(await question(forced=forced).ask_judge(config, "judge", session))
            except LLMProxyError as error:
                said.append(error)
        return said


REPLAY = """
import asyncio, json, socket, sys
sys.path.insert(0, ".")
hosts, resolve = set(), socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **how: hosts.add(str(host)) or resolve(host, *more, **how)
from tests.scenario.test_judge_agent import ask_all
found = asyncio.run(ask_all(sys.argv[1], "a", None, True))
told = [{id: str(finding.status) for id, finding in each.findings.items()} for each in found]
print(json.dumps([told, sorted(hosts)]))
"""


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bool, list[Any]], list[Any]]:
    """Record a judge of each provider, forced and not; give the store, the requests as sent, and the rulings."""
    store = tmp_path_factory.mktemp("wire") / "x.db"
    with Provider([finish("passed", times=None)]) as provider:
        upstreams = {"openai": f"{provider.url}/v1", "anthropic": provider.url, "gemini": provider.url}
        with near("record", store, upstreams=upstreams) as px:
            rulings = asyncio.run(ask_all(px.url, "a", "sk-secret", forced=True))
            asyncio.run(ask_all(px.url, "b", "sk-secret", forced=False))
        assert not [name for name in provider.header_names() if name.startswith("x-llmproxy")]
    return store, {True: provider.requests[:3], False: provider.requests[3:]}, rulings


def strings_only(schema: dict[str, Any]) -> None:
    """Check that every enum in a schema is one of strings."""
    if schema["type"].lower() == "object":
        for each in schema.get("properties", {}).values():
            strings_only(each)
    else:
        assert schema["type"].lower() == "string"
        assert all(isinstance(word, str) for word in schema.get("enum", []))


@pytest.mark.slow
def test_openai_gets_the_schema_strict(wire: Any) -> None:
    """The tool is pinned when a verdict is demanded, and any of two is required when not."""
    forced, free = (wire[1][each][0].fields for each in (True, False))
    function = forced["tools"][0]["function"]
    assert (function["name"], function["strict"], len(forced["tools"])) == ("finish_test", True, 1)
    assert forced["tool_choice"] == {"type": "function", "function": {"name": "finish_test"}}
    finding = function["parameters"]["properties"]["criteria"]["properties"]["c1"]
    assert list(finding["properties"]) == ["evidence", "reason", "status"]
    assert finding["properties"]["status"] == {"type": "string", "enum": ["passed", "failed", "inconclusive"]}
    strings_only(function["parameters"])
    assert [tool["function"]["name"] for tool in free["tools"]] == ["continue_test", "finish_test"]
    assert free["tool_choice"] == "required"


@pytest.mark.slow
def test_anthropic_gets_the_schema_in_its_form(wire: Any) -> None:
    """Litellm translates tools and choice; the conversation ends with the user's message."""
    forced, free = (wire[1][each][1].fields for each in (True, False))
    (tool,) = forced["tools"]
    assert (tool["name"], forced["tool_choice"]) == ("finish_test", {"type": "tool", "name": "finish_test"})
    strings_only(tool["input_schema"])
    assert tool["input_schema"]["properties"]["criteria"]["required"] == ["c1"]
    assert free["tool_choice"] == {"type": "any"}
    assert [message["role"] for message in forced["messages"]] == ["user"]


@pytest.mark.slow
def test_gemini_gets_the_schema_in_its_form(wire: Any) -> None:
    """Every status is still an enum of three strings after litellm has rewritten the schema."""
    forced, free = (wire[1][each][2].fields for each in (True, False))
    (declared,) = forced["tools"][0]["function_declarations"]
    strings_only(declared["parameters"])
    status = declared["parameters"]["properties"]["criteria"]["properties"]["c1"]["properties"]["status"]
    assert status == {"type": "string", "enum": ["passed", "failed", "inconclusive"]}
    assert forced["toolConfig"]["functionCallingConfig"]["allowed_function_names"] == ["finish_test"]
    assert free["toolConfig"]["functionCallingConfig"]["mode"] == "ANY"


@pytest.mark.slow
def test_each_provider_is_understood_and_stored_as_the_judges_call(wire: Any) -> None:
    """Three dialects, one ruling; every recording belongs to the party `judge`, and no key is in the store."""
    store, _, rulings = wire
    assert [ruling.findings["c1"].status for ruling in rulings] == [CriterionStatus.PASSED] * 3
    with SqliteCassetteStore.open(store, writable=False, now=lambda: 0.0) as opened:
        assert [each.party for each in opened.iter_interactions("a")] == ["judge"] * 3
    assert b"sk-secret" not in store.read_bytes()


@pytest.mark.slow
def test_a_new_process_replays_them_without_a_call(wire: Any) -> None:
    """Row 1: a second run, offline, with no key and in another process, gets the same rulings."""
    with near("replay", wire[0]) as px:
        done = subprocess.run(
            [*program("python"), "-c", REPLAY, px.url],
            capture_output=True, text=True, check=False, timeout=400, env=clean_env(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        rulings, hosts = json.loads(done.stdout)
        assert rulings == [{"c1": "passed"}] * 3
        assert set(hosts) <= {"127.0.0.1"}  # nor does litellm fetch anything when it is imported


@pytest.mark.slow
def test_a_miss_is_told_in_our_words_by_each_provider(wire: Any) -> None:
    """In replay, a request that was never recorded is a MissError that explains itself."""
    with near("replay", wire[0]) as px:
        errors = asyncio.run(ask_all(px.url, "never", None, forced=True))
    for name, error in zip(MODELS, errors, strict=True):
        assert type(error) is MissError
        assert str(error).startswith("llmproxy: no recorded response for this request")
        assert name.partition("/")[2] in str(error)
        assert "What to do:\n  1. " in str(error)


def test_a_refused_choice_is_asked_as_required() -> None:
    """Row 37: some models take tools, but none by name."""
    ruling, provider = put(refusal(NO_CHOICE), finish("passed"))
    assert ruling.findings["c1"].status is CriterionStatus.PASSED
    assert bodies(provider)[1]["tool_choice"] == "required"


def test_refused_again_it_is_a_schema() -> None:
    """A model that takes no tools at all answers in a JSON schema, with the same members."""
    ruling, provider = put(refusal(NO_CHOICE), refusal(NO_CHOICE), step(say=JSON_VERDICT))
    assert ruling.findings["c1"].status is CriterionStatus.PASSED
    last = bodies(provider)[2]
    assert not {"tools", "tool_choice"} & set(last)
    schema = last["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"]["decision"]["enum"] == ["finish_test"]
    assert "one JSON object" in last["messages"][-1]["content"]


def test_at_the_bottom_it_is_asked_for_json() -> None:
    """Where a response format is refused too, words must do; fenced JSON is read."""
    fenced = step(say=f"```json\n{JSON_VERDICT}\n```")
    ruling, provider = put(refusal(NO_CHOICE), refusal("response_format json_schema unavailable"), fenced, forced=False)
    assert ruling.findings["c1"].status is CriterionStatus.PASSED
    assert set(bodies(provider)[2]) == {"model", "messages", "temperature"}
    assert '"finish_test" or "continue_test"' in bodies(provider)[2]["messages"][-1]["content"]


def test_who_refuses_everything_is_an_error() -> None:
    """There is no way below the last one."""
    with model(refusal(NO_CHOICE, 400), *[refusal("response_format and tools")] * 3) as (config, provider):
        with pytest.raises(ToolChoiceRefused):
            asyncio.run(question().ask_judge(config, "judge", None))
        assert len(provider.requests) == 4


ODD = {
    "prose": (step(say="I think it is fine."), r"Invalid response from judge agent, tool calls not found: 'I think"),
    "an example": (step(say='No. Example: {"criteria": {"c1": "passed"}} is bad.'), "tool calls not found: 'No"),
    "nothing": (step(say=""), "tool calls not found: ''"),
    "unknown tool": (called("approve", "{}"), "unknown tool: 'approve'"),
    "broken JSON": (called("finish_test", '{"criteria": {"c1"'), "no JSON object"),
    "a list": (called("finish_test", "[1]"), "no JSON object"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_malformed_answer_is_repaired_once(kind: str) -> None:
    """Row 37: the judge is told what was wrong, and what it said; a second one is a typed error, and no fault of the agent."""
    answer, says = ODD[kind]
    ruling, provider = put(answer, finish("failed"))
    assert ruling.findings["c1"].status is CriterionStatus.FAILED
    first, second = (body["messages"] for body in bodies(provider))
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
    assert second[-1]["content"].startswith("Your answer cannot be used: ")
    with model(answer, answer) as (config, _), pytest.raises(JudgeError, match=says) as caught:
        asyncio.run(question().ask_judge(config, "judge.2", None))
    assert caught.value.exit_code is Exit.ENVIRONMENT
    assert "(judge.2) was asked twice" in str(caught.value)


def test_a_missing_criterion_is_asked_for_once_and_then_missing() -> None:
    """Row 12: what a verdict leaves out is open; row 14: a judge that wants to see more in the last turn decided nothing."""
    ruling, provider = put(finish("passed"), finish("passed"), texts=("a", "b"))
    assert set(ruling.findings) == {"c1"}
    assert "c2 is missing" in bodies(provider)[1]["messages"][-1]["content"]
    assert put(go_on(), finish("passed"))[0].findings["c1"].status is CriterionStatus.PASSED
    ruling = put(go_on(), go_on())[0]
    assert (ruling.goes_on, dict(ruling.findings)) == (True, {})


def test_only_the_first_tool_call_counts() -> None:
    """A judge that calls both tools has said the first one; arguments that are written instead are understood at once."""
    both = [{"name": "continue_test", "arguments": {}}, {"name": "finish_test", "arguments": {}}]
    assert put(step(call=both), forced=False)[0].goes_on
    ruling, provider = put(raw({"content": f"<think>hm {{}}</think>Here you are: {JSON_VERDICT}"}), forced=False)
    assert ruling.findings["c1"].status is CriterionStatus.PASSED
    assert len(provider.requests) == 1


def test_who_passes_and_fails_has_decided_nothing() -> None:
    """Two verdicts that differ, in two calls or in one object, are asked for again; two that are alike are one."""
    passed, failed = ({"criteria": {"c1": {"status": word}}, "reasoning": ""} for word in ("passed", "failed"))
    twice = [{"name": "finish_test", "arguments": each} for each in (passed, failed)]
    ruling, provider = put(step(call=twice), finish("failed"))
    assert (ruling.findings["c1"].status, len(provider.requests)) == (CriterionStatus.FAILED, 2)
    assert "decides more than once" in bodies(provider)[1]["messages"][-1]["content"]
    torn = '{"criteria": {"c1": {"status": "failed"}, "c1": {"status": "passed"}}, "reasoning": ""}'
    with pytest.raises(JudgeError):
        put(called("finish_test", torn), called("finish_test", torn))
    assert len(put(step(call=[twice[0], twice[0]]))[1].requests) == 1


def test_nothing_sent_changes_in_a_second_run() -> None:
    """Row 1: the repair quotes no ids, so that the whole exchange is found again."""
    first, second = (bodies(put(ODD["unknown tool"][0], finish("passed"))[1]) for _ in range(2))
    assert first == second


# -- A judge of a long conversation: an outline, what it looks up, and what ends that

LONG = "The refund of 40 EUR is paid. " + "So it goes. " * 400
LONG_TALK: Any = [
    {"role": "user", "content": "Where is my lamp?"},
    {"role": "assistant", "content": LONG + "Bye, Ada."},
]


def looks(name: str, **arguments: Any) -> Any:
    """Return the step in which a judge looks something up."""
    return step(call=[{"name": name, "arguments": arguments}])


def looked_up(*steps: Any, forced: bool = True, **how: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return what a judge of a long conversation says, and what it was asked."""
    with model(*steps) as (config, provider):
        judge = JudgeAgent(model=config, criteria=["polite"], **({"token_threshold": 100} | how))
        said = asyncio.run(judge.call(shown(*LONG_TALK, forced=forced)))
        provider.finish()
        return said, bodies(provider)


def names(request: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] for each in request["tools"]]


def test_it_looks_up_what_it_needs_and_quotes_it() -> None:
    """The words that it quotes stand where the outline ends; they are evidence all the same."""
    result, asked = looked_up(
        looks(GREP, pattern="ada"), looks(EXPAND, indices=[2]), finish("passed", evidence=["Bye, Ada."])
    )
    assert result.success
    first, second, third = (request["messages"] for request in asked)
    assert "Bye, Ada" not in first[1]["content"]
    assert "Bye, Ada" in second[-1]["content"]
    assert third[-1]["content"].endswith("Bye, Ada.")
    assert names(asked[0]) == [EXPAND, GREP, "finish_test"]
    assert asked[0]["tool_choice"] == "required"


def test_a_short_conversation_is_shown_whole() -> None:
    _, (asked,) = looked_up(finish("passed"), token_threshold=8192)
    assert names(asked) == ["finish_test"]
    assert "Bye, Ada." in asked["messages"][1]["content"]


def test_who_only_looks_has_to_decide_in_the_end() -> None:
    """After so many look-ups the verdict is demanded, also before the last turn; what is open then ends it."""
    result, asked = looked_up(
        looks(EXPAND, indices=[9]), looks(GREP, pattern=""), finish("inconclusive"), forced=False, max_discovery_steps=2
    )
    assert names(asked[0]) == [EXPAND, GREP, "continue_test", "finish_test"]
    assert names(asked[2]) == ["finish_test"]
    assert (result.success, result.inconclusive_criteria) == (False, ["polite"])
    assert "numbered 1 to 2" in asked[1]["messages"][-1]["content"]


def test_a_model_without_tools_gets_all_of_it() -> None:
    """It cannot look anything up, so nothing is kept from it."""
    result, asked = looked_up(refusal("tools are not supported by this model: tool_choice"), step(JSON_VERDICT))
    assert result.success
    assert "Bye, Ada." in asked[-1]["messages"][1]["content"]


def test_look_ups_are_no_larger_than_the_outline_saves() -> None:
    """What is cut says so; a pattern is words, never an expression that runs for hours."""
    lookup = JudgeTranscriptTools(["[1] user: " + "a" * 50_000, *(f"[{n}] user: needle {n}" for n in range(2, 40))])
    assert "more characters: ask for fewer messages" in lookup.answer_tool_call(EXPAND, '{"indices": [1, 1, "x"]}')
    assert "There is no such message" in lookup.answer_tool_call(EXPAND, '{"indices": [true]}')
    assert "(18 more matches)" in lookup.answer_tool_call(GREP, '{"pattern": "NEEDLE"}')
    assert lookup.answer_tool_call(GREP, '{"pattern": "(a+)+$"}') == "No message has '(a+)+$'."
    assert "no JSON" in lookup.answer_tool_call(GREP, "{")
    assert "longer than" in lookup.answer_tool_call(GREP, '{"pattern": "' + "x" * 300 + '"}')
    assert estimate_tokens("abcd" * 10) == 10
    assert len(lookup.format_outline().splitlines()) == 40


WORDS = {"p": CriterionStatus.PASSED, "f": CriterionStatus.FAILED, "i": CriterionStatus.INCONCLUSIVE}


def outcome(votes: str, rule: VoteRule) -> str:
    """Return what votes for one criterion, a letter each, come to; a dash is a judge who said nothing."""
    given = [{} if each == "-" else {"c1": JudgeFinding(WORDS[each])} for each in votes]
    return combine_votes(["c1"], given, rule)[0]["c1"].status.value[0]


@pytest.mark.parametrize(("votes", "majority", "unanimous"), [
    ("p", "p", "p"),
    ("ppp", "p", "p"),
    ("ppf", "p", "i"),
    ("pff", "f", "i"),
    ("fff", "f", "f"),
    ("pfi", "i", "i"),
    ("pii", "i", "i"),
    ("pp-", "p", "i"),
    ("p--", "i", "i"),
    ("pf", "i", "i"),
    ("ppff", "i", "i"),
    ("pppff", "p", "i"),
    ("---", "i", "i"),
])  # fmt: skip
def test_a_criterion_needs_more_than_half_of_all_votes(votes: str, majority: str, unanimous: str) -> None:
    """A missing vote counts as one that was cast; a tie decides nothing."""
    assert outcome(votes, VoteRule.MAJORITY) == outcome(votes, VoteRule.CONFIRM_ON_FAIL) == majority
    assert outcome(votes, VoteRule.UNANIMOUS) == unanimous


def test_the_winning_side_gives_the_evidence() -> None:
    """Evidence and reason come from a judge who voted as it was decided, every vote is told, and disagreement is said."""
    cast_so = (("p", "yes", "a"), ("f", "no", "b"), ("f", "never", "c"))
    votes = [{"c1": JudgeFinding(WORDS[vote], *why)} for vote, *why in cast_so]
    found, cast = combine_votes(["c1"], votes, VoteRule.MAJORITY)
    assert found["c1"] == JudgeFinding(CriterionStatus.FAILED, "no", "b")
    assert cast == {"c1": ("passed", "failed", "failed")}
    votes = [{"c1": JudgeFinding(CriterionStatus.PASSED)}, {"c1": JudgeFinding(CriterionStatus.FAILED)}]
    assert combine_votes(["c1"], votes, VoteRule.MAJORITY)[0]["c1"].reason == "the judges do not agree: passed, failed"


def test_judges_are_parties_of_their_own() -> None:
    """The proxy keeps the calls of each judge apart; a typing mistake does not become a majority."""
    assert list_judge_party_names(1) == ("judge",)
    assert list_judge_party_names(3) == ("judge", "judge.2", "judge.3")
    assert read_vote_rule("Confirm_on_fail") is VoteRule.CONFIRM_ON_FAIL
    with pytest.raises(SettingsError, match=r"vote='most'(.|\n)*majority, unanimous, confirm-on-fail"):
        read_vote_rule("most")
