"""The replay engine: the constructs of the documents as written, and every edge of the original's behaviour."""

from __future__ import annotations

import json
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmproxy.trace import (
    AgentRun,
    Cassette,
    NetworkBlocked,
    OverrideNotUsed,
    OverrideWarning,
    ReplayDiff,
    ReplayEngine,
    Span,
    SpanKind,
    replay,
)
from tests.support.narrowing import known
from tests.trace.runs import Json, weather


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(weather().save(tmp_path / "weather.json"))


def test_quick_replay(path: str) -> None:
    """`replay` gives a run with what was recorded, whatever is overridden; overrides by name replace result and output."""
    run = replay(path)
    assert run.replayed
    assert run.success
    assert run.error is None
    assert run.cassette.output_text == "It's 18°C and cloudy in Paris."
    assert run.cassette.tool_call_count == 1
    assert run.cassette.get_tool_sequence() == ["get_weather"]
    overridden = ReplayEngine(path).override_llm_response(3, "something else").run()
    assert overridden.cassette.output_text == run.cassette.output_text
    run = replay(path, tool_overrides={"get_weather": {"temp": 5, "condition": "snow"}})
    (call,) = run.cassette.get_tool_calls()
    assert call.tool_result == call.output == {"temp": 5, "condition": "snow"}


def test_overrides_are_chained(path: str) -> None:
    engine = ReplayEngine(path)
    run = (
        engine.override_tool_result("get_weather", {"results": []})
        .override_llm_response(0, "I don't know the weather.")
        .filter_spans(lambda span: span.kind != SpanKind.USER_INPUT)
        .run()
    )
    assert isinstance(run, AgentRun)
    assert run.cassette.get_llm_calls()[0].output == "I don't know the weather."


def test_stepping_through(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`step` gives one span at a time, None at the end, and `reset` begins again."""
    engine = ReplayEngine(path)
    while True:
        span = engine.step()
        if span is None:
            break
        print(f"[{span.kind}] {span.name}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[SpanKind.USER_INPUT] user_input"
    assert len(lines) == 8
    assert engine.step() is None
    assert engine.reset() is None  # type: ignore[func-returns-value]
    assert engine.step() is not None


def test_queries(path: str) -> None:
    """Spans, tool calls, LLM calls and the sequence of tools can be asked for, as they were recorded."""
    engine = ReplayEngine(path).override_tool_result("get_weather", 7)
    (call,) = engine.get_tool_calls()
    assert (call.tool_name, call.tool_args, call.tool_result) == ("get_weather", {"city": "Paris"}, {"temp": 18})
    assert len(engine.get_llm_calls()) == 4
    assert engine.get_tool_sequence() == ["get_weather"]
    assert len(engine.spans) == 8


def test_diff_of_two_files(path: str, tmp_path: Path) -> None:
    """An engine compares its recording with a file or a cassette."""
    other = weather(name="v2")
    other.add_span(Span(kind=SpanKind.TOOL_CALL, tool_name="summarize"))
    other.total_tokens = 210
    diff = ReplayEngine(path).diff(other)
    assert (diff.has_changes, diff.tool_sequence_changed, diff.output_changed) == (True, True, False)
    assert (diff.old_tokens, diff.new_tokens) == (135, 210)
    found = diff.summary().splitlines()[:2]
    assert found == ["Tool sequence: ['get_weather'] → ['get_weather', 'summarize']", "Tokens: 135 → 210"]
    assert ReplayEngine(path).diff(other.save(tmp_path / "v2.json")).tool_sequence_changed
    assert ReplayDiff.compute(Cassette.load(path), other).to_dict()["has_changes"]


@pytest.mark.parametrize("result", [{"temp": 30, "condition": "sunny"}, {"temp": -10, "condition": "blizzard"}])
def test_regression_patterns(path: str, result: dict[str, Any]) -> None:
    """A stored fingerprint holds for an unchanged file, and an override changes it; the output is what was recorded."""
    assert replay(path).cassette.fingerprint == weather().fingerprint
    run = ReplayEngine(path).override_tool_result("get_weather", result).run()
    assert run.cassette.fingerprint != weather().fingerprint
    assert run.cassette.output_text == weather().output_text


def test_the_last_override_wins_for_every_call_of_the_tool() -> None:
    """It sets result and output of each TOOL_CALL, by reference, and touches nothing else."""
    cassette = weather()
    cassette.add_span(
        Span(kind=SpanKind.TOOL_CALL, tool_name="get_weather", error="timeout", tool_args={"city": "Oslo"})
    )
    value = {"temp": 5}
    run = ReplayEngine(cassette).override_tool_result("get_weather", 1).override_tool_result("get_weather", value).run()
    first, second = run.cassette.get_tool_calls()
    assert first.tool_result is first.output is second.tool_result is value
    assert (second.error, second.tool_args) == ("timeout", {"city": "Oslo"})
    results = [span for span in run.cassette.spans if span.kind is SpanKind.TOOL_RESULT]
    assert results[0].tool_result == {"temp": 18}


def test_llm_overrides_count_requests_and_responses() -> None:
    """Index 1 is the first answer, without requests the second; usage, cost and model stay."""
    run = ReplayEngine(weather()).override_llm_response(1, {"any": "type"}).run()
    request, response = run.cassette.get_llm_calls()[:2]
    assert (request.output, response.output) == (None, {"any": "type"})
    assert (response.cost_usd, response.model) == (0.0002, "gpt-4o")
    engine = ReplayEngine(weather()).filter_spans(lambda span: span.kind is SpanKind.LLM_RESPONSE)
    assert [span.output for span in engine.override_llm_response(1, "x").run().cassette.spans] == ["", "x"]


def test_a_second_filter_replaces_the_first_and_none_clears() -> None:
    """There is one predicate; it shrinks spans (which are the engine's own without it), run, steps and queries; not the diff."""
    engine = ReplayEngine(weather()).filter_spans(lambda span: False).override_tool_result("get_weather", 1)
    assert not engine.diff(weather()).has_changes
    engine = ReplayEngine(weather())
    assert engine.spans is engine.cassette.spans
    engine.filter_spans(lambda span: False)
    assert (engine.spans, engine.step(), engine.get_llm_calls()) == ([], None, [])
    engine.filter_spans(lambda span: span.kind is SpanKind.TOOL_CALL)
    run = engine.run()
    assert [span.kind for span in run.cassette.spans] == [SpanKind.TOOL_CALL]
    assert (run.cassette.total_tokens, run.cassette.total_cost_usd, run.cassette.llm_call_count) == (0, 0.0, 0)
    assert run.cassette.output_text == weather().output_text
    assert len(engine.filter_spans(None).spans) == 8
    assert engine.filter_spans(lambda span: True).spans is not engine.cassette.spans


def test_run_is_repeatable_and_changes_nothing() -> None:
    """Neither the caller's cassette nor the engine's changes; stepping does not matter."""
    cassette = weather()
    before = cassette.to_dict()
    engine = ReplayEngine(cassette).override_tool_result("get_weather", {"temp": 5})
    first = engine.run()
    engine.step()
    assert first.cassette.fingerprint == engine.run().cassette.fingerprint
    assert cassette.to_dict() == engine.cassette.to_dict() == before
    first.cassette.spans.clear()
    assert len(engine.run().cassette.spans) == 8


def test_step_applies_both_kinds_of_overrides() -> None:
    """Tool results as in the original, and (ours) answers by index."""
    engine = ReplayEngine(weather()).override_tool_result("get_weather", 5).override_llm_response(3, "cold")
    steps = list(iter(engine.step, None))
    assert steps[3].tool_result == 5
    assert steps[6].output == "cold"
    assert [step.to_dict() for step in steps] == [span.to_dict() for span in engine.run().cassette.spans]


def test_step_gives_copies_and_the_cursor_stays_when_the_filter_changes() -> None:
    """The cursor is an index into the list of now; reset takes only the cursor back."""
    engine = ReplayEngine(weather())
    first = known(engine.step())
    first.input = "changed"
    assert engine.spans[0].input == "Weather in Paris?"
    engine.filter_spans(lambda span: span.kind in (SpanKind.TOOL_CALL, SpanKind.TOOL_RESULT))
    second = known(engine.step())
    assert second.kind is SpanKind.TOOL_RESULT
    engine = ReplayEngine(weather()).filter_spans(lambda span: span.kind is SpanKind.TOOL_CALL)
    engine.override_tool_result("get_weather", 7)
    for _ in range(2):
        step = known(engine.step())
        assert step.tool_result == 7
        engine.reset()


@pytest.mark.parametrize("cassette", [None, {"spans": []}])
def test_what_is_no_cassette_fails_late(cassette: Json) -> None:
    """Anything is taken; it fails with AttributeError when it is used."""
    with pytest.raises(AttributeError):
        ReplayEngine(cassette).run()


def test_run_to_dict_has_four_members(path: str) -> None:
    """A run can be written as JSON."""
    assert set(json.loads(json.dumps(replay(path).to_dict()))) == {"cassette", "success", "error", "replayed"}


def test_an_override_that_matches_nothing_warns(path: str) -> None:
    """A slip in a tool's name or an index is said once; with strict=True it is an error each time, a LookupError too."""
    engine = (
        ReplayEngine(path)
        .override_tool_result("get_wether", 1)
        .override_llm_response(9, "")
        .override_llm_response(-1, "")
    )
    with pytest.warns(OverrideWarning, match=r"tool 'get_wether', LLM call 9, LLM call -1.*0 to 3.*'get_weather'"):
        engine.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.run()
        engine.step()
    engine = ReplayEngine(path, strict=True).override_tool_result("nope", 1)
    for use in (engine.run, engine.step, engine.run):
        with pytest.raises(OverrideNotUsed):
            use()
    with pytest.raises(LookupError):
        replay(path, {"nope": 1}, strict=True)
    engine = ReplayEngine(path, strict=True).override_tool_result("get_weather", 1)
    with pytest.raises(OverrideNotUsed):
        engine.filter_spans(lambda span: span.kind is SpanKind.USER_INPUT).run()


def test_run_closes_the_network(path: str) -> None:
    """A predicate that connects is refused, unless the guard is off or the host is allowed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()

        def connects(_: Span) -> bool:
            socket.create_connection(where).close()
            return True

        with pytest.raises(NetworkBlocked):
            ReplayEngine(path).filter_spans(connects).run()
        assert ReplayEngine(path, block_network=False).filter_spans(connects).run().success
        assert ReplayEngine(path, network_allowlist=["127.0.0.1"]).filter_spans(connects).run().success
        assert replay(path, block_network=False, network_allowlist=None).success
