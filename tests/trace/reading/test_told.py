"""What a proxy told, as interactions and spans."""

from __future__ import annotations

import dataclasses

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.cassettes.anonymized_export import convert_interaction_to_json
from llmproxy.errors import CassetteCorrupt
from llmproxy.mitm.proxy_context import interactions_to_span_json
from llmproxy.trace.export import build_trace_from_calls
from llmproxy.trace.reading.recording_spans import parse_recording_json_of_call
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.chats import chat


def call(
    seq: int, text: str, *, party: str = "agent", recorded: bool = True, occurrence: int = 1, at: float = 0
) -> Call:
    made = convert_interaction_to_json(chat(text, f"re {text}", party=party)) if recorded else None
    return Call.from_json({"seq": seq, "party": party, "occurrence": occurrence, "recording": made, "at": at})


def test_a_call_has_what_was_recorded_of_it() -> None:
    """Played once more it is the next occurrence; of what passed through there is nothing."""
    assert parse_recording_json_of_call(call(1, "hi")) == chat("hi", "re hi")
    assert parse_recording_json_of_call(call(1, "hi", occurrence=2)) == dataclasses.replace(
        chat("hi", "re hi"), occurrence=2
    )
    assert parse_recording_json_of_call(call(1, "hi", recorded=False)) is None


def test_a_recording_played_twice_has_spans_of_its_own_each_time() -> None:
    """Ids are those of calls: nothing is lost in a table of them."""
    told = [parse_recording_json_of_call(each) for each in (call(1, "a"), call(2, "a", occurrence=2))]
    made = list(build_spans(each for each in told if each))
    assert len({span.id for span in made}) == len(made) > 4


def test_spans_are_plain_values_for_the_control_api() -> None:
    assert {span["kind"] for span in interactions_to_span_json([chat()])} >= {"llm_request", "llm_response"}


def test_what_is_no_recording_is_said() -> None:
    with pytest.raises(CassetteCorrupt, match="recording 1"):
        parse_recording_json_of_call(Call.from_json({"seq": 1, "recording": {"llmproxy": 1}}))


def test_calls_are_a_trace_at_the_times_of_this_run() -> None:
    """A replayed answer is as old as its recording, and was given now; judges' and unrecorded ones are left out."""
    told = [call(1, "a", at=5.0), call(2, "x", recorded=False), call(3, "b"), call(4, "c", party="judge")]
    made = build_trace_from_calls(told, "run")
    assert (made.name, made.output_text, made.created_at) == ("run", "re b", 5.0)
    assert made.llm_call_count == 4
