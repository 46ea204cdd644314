"""What a proxy told, as interactions, exchanges and spans."""

from __future__ import annotations

import pytest

from llmproxy.core.cassettes.anonymized_export import to_json
from llmproxy.errors import CassetteCorrupt
from llmproxy.proxy_calls import Call
from llmproxy.trace.export import build_call_trace
from llmproxy.trace.reading.recording_spans import (
    build_span_dicts,
    decode_exchanges,
    read_call_spans,
    read_interactions,
)
from llmproxy.trace.spans import SpanKind
from tests.support.chats import chat


def call(seq: int, text: str, *, party: str = "agent", recorded: bool = True, occurrence: int = 1) -> dict[str, object]:
    made = to_json(chat(text, f"re {text}", party=party))
    return {"seq": seq, "party": party, "occurrence": occurrence, "recording": made if recorded else None}


def test_calls_recordings_and_their_json_are_taken_alike() -> None:
    """`Control.calls` gives values, the endpoint objects, an export lines."""
    told = call(1, "hi")
    plain = chat("hi", "re hi")
    assert read_interactions([told]) == [plain]
    assert read_interactions([Call.from_json(told)]) == [plain]
    assert read_interactions([to_json(plain)]) == [plain]


def test_calls_without_a_recording_are_left_out() -> None:
    assert [each.messages[-1].text for each in decode_exchanges([call(1, "a", recorded=False), call(2, "b")])] == ["b"]


def test_the_agents_exchanges_are_told_apart() -> None:
    """What simulator and judges said is no behaviour of the agent."""
    told = [call(1, "a"), call(2, "b", party="judge")]
    assert [each.messages[-1].text for each in decode_exchanges(told)] == ["a"]
    assert len(list(decode_exchanges(told, party=None))) == 2
    outputs = [span.output for span in read_call_spans(told) if span.kind is SpanKind.AGENT_OUTPUT]
    assert outputs == ["re a"]


def test_a_recording_played_twice_has_spans_of_its_own_each_time() -> None:
    """Ids are those of calls: nothing is lost in a table of them."""
    made = read_call_spans([call(1, "a"), call(2, "a", occurrence=2)])
    assert len({span.id for span in made}) == len(made) > 4


def test_spans_are_plain_values_for_the_control_api() -> None:
    assert {span["kind"] for span in build_span_dicts([chat()])} >= {"llm_request", "llm_response"}


def test_what_is_no_recording_is_said() -> None:
    with pytest.raises(CassetteCorrupt, match="recording 1"):
        read_interactions([{"recording": {"llmproxy": 1}}])


def test_calls_are_a_trace_at_the_times_of_this_run() -> None:
    """A replayed answer is as old as its recording, and was given now."""
    made = build_call_trace([call(1, "a") | {"at": 5.0}, call(2, "b"), call(3, "c", party="judge")], "run")
    assert (made.name, made.output_text, made.created_at) == ("run", "re b", 5.0)
    assert made.llm_call_count == 4
