"""One judge is asked: the schema as sent to each provider, the way down where it is refused, answers that are none."""

# ruff: noqa: ANN401 (adapters as their users write them; JSON)

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.errors import Exit, LLMProxyError, MissError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.judging.question import JudgeError, Question, Ruling
from llmproxy.scenario.models.models import RefusedChoice
from llmproxy.scenario.proxy.session import RunSession
from llmproxy.scenario.values.criteria import Criteria, Standing
from tests.provider import Provider, Step, step
from tests.scenario.parties import bodies, called, finish, go_on, model, raw, refusal
from tests.support import near
from tests.support.process import clean_env

MODELS = ("openai/gpt-4.1-mini", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash")
NO_CHOICE = "This model does not support tool_choice"
JSON_VERDICT = json.dumps({"decision": "finish_test", "criteria": {"c1": {"status": "passed"}}, "reasoning": "ok"})


def question(*texts: str, forced: bool = True) -> Question:
    """Return a question about these criteria."""
    return Question("Judge.", "<transcript>hi</transcript>", Criteria(texts or ("polite",)), forced)


def put(*steps: Step, forced: bool = True, texts: tuple[str, ...] = ()) -> tuple[Ruling, Provider]:
    """Ask the judge that answers so."""
    with model(*steps) as (config, provider):
        ruling = asyncio.run(question(*texts, forced=forced).put(config, "judge", None))
        provider.finish()
        return ruling, provider


# -- on the wire


async def ask_all(url: str, cassette: str, key: str | None, forced: bool) -> list[Any]:
    """Ask a judge of each provider in one session; errors are returned."""
    session = await RunSession.open(url, cassette=cassette)
    try:
        said: list[Any] = []
        for name in MODELS:
            try:
                said.append(await question(forced=forced).put(ModelConfig(model=name, api_key=key), "judge", session))
            except LLMProxyError as error:
                said.append(error)
        return said
    finally:
        await session.close()


REPLAY = """
import asyncio, json, socket, sys
sys.path.insert(0, ".")
hosts, resolve = set(), socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **how: hosts.add(str(host)) or resolve(host, *more, **how)
from tests.scenario.judging.test_question import ask_all
found = asyncio.run(ask_all(sys.argv[1], "a", None, True))
print(json.dumps([[{id: str(finding.status) for id, finding in each.findings.items()} for each in found], sorted(hosts)]))
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
    assert [ruling.findings["c1"].status for ruling in rulings] == [Standing.PASSED] * 3
    with FileStore.open(store, writable=False, now=lambda: 0.0) as opened:
        assert [each.party for each in opened.interactions("a")] == ["judge"] * 3
    assert b"sk-secret" not in store.read_bytes()


@pytest.mark.slow
def test_a_new_process_replays_them_without_a_call(wire: Any) -> None:
    """Row 1: a second run, offline, with no key and in another process, gets the same rulings."""
    with near("replay", wire[0]) as px:
        done = subprocess.run(
            [sys.executable, "-c", REPLAY, px.url],
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


# -- the way down


def test_a_refused_choice_is_asked_as_required() -> None:
    """Row 37: some models take tools, but none by name."""
    ruling, provider = put(refusal(NO_CHOICE), finish("passed"))
    assert ruling.findings["c1"].status is Standing.PASSED
    assert bodies(provider)[1]["tool_choice"] == "required"


def test_refused_again_it_is_a_schema() -> None:
    """A model that takes no tools at all answers in a JSON schema, with the same members."""
    ruling, provider = put(refusal(NO_CHOICE), refusal(NO_CHOICE), step(say=JSON_VERDICT))
    assert ruling.findings["c1"].status is Standing.PASSED
    last = bodies(provider)[2]
    assert not {"tools", "tool_choice"} & set(last)
    schema = last["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"]["decision"]["enum"] == ["finish_test"]
    assert "one JSON object" in last["messages"][-1]["content"]


def test_at_the_bottom_it_is_asked_for_json() -> None:
    """Where a response format is refused too, words must do; fenced JSON is read."""
    ruling, provider = put(
        refusal(NO_CHOICE), refusal("response_format json_schema unavailable"), step(say=f"```json\n{JSON_VERDICT}\n```"),
        forced=False,
    )  # fmt: skip
    assert ruling.findings["c1"].status is Standing.PASSED
    assert set(bodies(provider)[2]) == {"model", "messages", "temperature"}
    assert '"finish_test" or "continue_test"' in bodies(provider)[2]["messages"][-1]["content"]


def test_who_refuses_everything_is_an_error() -> None:
    """There is no way below the last one."""
    with model(refusal(NO_CHOICE, 400), *[refusal("response_format and tools")] * 3) as (config, provider):
        with pytest.raises(RefusedChoice):
            asyncio.run(question().put(config, "judge", None))
        assert len(provider.requests) == 4


# -- answers that are none

ODD = {
    "prose": (step(say="I think it is fine."), r"Invalid response from judge agent, tool calls not found: 'I think"),
    "nothing": (step(say=""), "tool calls not found: ''"),
    "unknown tool": (called("approve", "{}"), "unknown tool: 'approve'"),
    "broken JSON": (called("finish_test", '{"criteria": {"c1"'), "no JSON object"),
    "a list": (called("finish_test", "[1]"), "no JSON object"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_malformed_answer_is_repaired_once(kind: str) -> None:
    """Row 37: the judge is told what was wrong, and what it said, and asked again."""
    ruling, provider = put(ODD[kind][0], finish("failed"))
    assert ruling.findings["c1"].status is Standing.FAILED
    first, second = (body["messages"] for body in bodies(provider))
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
    assert second[-1]["content"].startswith("Your answer cannot be used: ")


@pytest.mark.parametrize("kind", ODD)
def test_malformed_twice_is_a_typed_error(kind: str) -> None:
    """Row 37: not a plain Exception, and no fault of the agent under test."""
    answer, says = ODD[kind]
    with model(answer, answer) as (config, _), pytest.raises(JudgeError, match=says) as caught:
        asyncio.run(question().put(config, "judge.2", None))
    assert caught.value.exit_code is Exit.ENVIRONMENT
    assert "(judge.2) was asked twice" in str(caught.value)


def test_a_missing_criterion_is_asked_for_once_and_then_missing() -> None:
    """Row 12: a verdict that leaves something out is a verdict in which that is open."""
    ruling, provider = put(finish("passed"), finish("passed"), texts=("a", "b"))
    assert set(ruling.findings) == {"c1"}
    assert "c2 is missing" in bodies(provider)[1]["messages"][-1]["content"]


def test_continuing_what_is_over_is_asked_again_and_then_no_verdict() -> None:
    """Row 14: a judge that wants to see more in the last turn has not decided anything."""
    assert put(go_on(), finish("passed"))[0].findings["c1"].status is Standing.PASSED
    ruling = put(go_on(), go_on())[0]
    assert (ruling.goes_on, dict(ruling.findings)) == (True, {})


def test_only_the_first_tool_call_counts() -> None:
    """A judge that calls both tools has said the first one."""
    both = [{"name": "continue_test", "arguments": {}}, {"name": "finish_test", "arguments": {}}]
    assert put(step(call=both), forced=False)[0].goes_on


def test_who_passes_and_fails_has_decided_nothing() -> None:
    """Two verdicts that differ, in two calls or in one object, are asked for again; two that are alike are one."""
    passed, failed = ({"criteria": {"c1": {"status": word}}, "reasoning": ""} for word in ("passed", "failed"))
    twice = [{"name": "finish_test", "arguments": each} for each in (passed, failed)]
    ruling, provider = put(step(call=twice), finish("failed"))
    assert (ruling.findings["c1"].status, len(provider.requests)) == (Standing.FAILED, 2)
    assert "decides more than once" in bodies(provider)[1]["messages"][-1]["content"]
    torn = '{"criteria": {"c1": {"status": "failed"}, "c1": {"status": "passed"}}, "reasoning": ""}'
    with pytest.raises(JudgeError):
        put(called("finish_test", torn), called("finish_test", torn))
    assert len(put(step(call=[twice[0], twice[0]]))[1].requests) == 1


def test_a_verdict_in_the_text_is_read() -> None:
    """Models that write the arguments instead of calling are understood without another call."""
    ruling, provider = put(raw({"content": f"<think>hm {{}}</think>Here you are: {JSON_VERDICT}"}), forced=False)
    assert ruling.findings["c1"].status is Standing.PASSED
    assert len(provider.requests) == 1


def test_nothing_sent_changes_in_a_second_run() -> None:
    """Row 1: the repair quotes no ids, so that the whole exchange is found again."""
    assert bodies(put(ODD["unknown tool"][0], finish("passed"))[1]) == bodies(
        put(ODD["unknown tool"][0], finish("passed"))[1]
    )
