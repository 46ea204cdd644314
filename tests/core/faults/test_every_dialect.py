"""Every kind that is done to an answer, in every dialect, whole and streamed: what a reader of the dialect then reads."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, get_args

import pytest

from llmproxy.core.dialects.answer_writing import (
    build_provider_answer,
    can_build_provider_answer,
    has_tool_arguments_as_text,
)
from llmproxy.core.dialects.conversation import parse_answer_body_as_message
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.stream_events import classify_response_ending, list_stream_events
from llmproxy.core.dialects.usage_and_cost import read_usage
from llmproxy.core.faults.kinds import KINDS, is_streamed
from llmproxy.core.faults.rules import CallSeenByFaultRules, FaultyAnswer
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, Response, header
from tests.core.faults.cases import call
from tests.support.narrowing import known

FAMILIES: dict[str, Family] = {
    "messages": "anthropic", "invoke": "bedrock", "converse": "bedrock", "generateContent": "gemini",
    "api.chat": "ollama", "v2.chat": "cohere", "v1.chat": "cohere",
}  # fmt: skip
TEXT = Message("assistant", "Grüße aus Oslo, dort regnet es.")
TOOL = Message("assistant", "", (ToolCall("call_123456", "get_weather", '{"city":"Oslo","unit":"celsius"}'),))
USED = {"prompt_tokens": 15, "completion_tokens": 4, "total_tokens": 19}
DONE_TO_ANSWERS = [name for name, kind in KINDS.items() if kind.needs_answer]


class Case(NamedTuple):
    operation: str
    stream: bool
    said: Message

    @property
    def call(self) -> CallSeenByFaultRules:
        target = "/v1beta/models/g:streamGenerateContent?alt=sse" if self.stream else "/v1/x"
        body = b'{"stream_options":{"include_usage":true}}'
        family = FAMILIES.get(self.operation, "openai")
        made = build_provider_answer(
            self.operation, body, target, "gpt-4o", self.said, stream=self.stream, call=1, usage=USED
        )
        return call(
            operation=self.operation, family=family, stream=self.stream, target=target, body=body, answer=lambda: made
        )

    def __str__(self) -> str:
        return f"{self.operation}{'-stream' if self.stream else ''}-{'tool' if self.said is TOOL else 'text'}"


CASES = [
    Case(operation, stream, said)
    for operation in sorted(filter(can_build_provider_answer, CHAT))
    for stream in (False, True)
    for said in (TEXT, TOOL)
]


def do(kind: str, case: Case, **values: float) -> FaultyAnswer | None:
    row = KINDS[kind]
    return row.do(case.call, row.defaults | values)


def broken(kind: str, case: Case, **values: float) -> Response:
    return known(known(do(kind, case, **values)).response)


def read(case: Case, response: Response) -> Message:
    said = parse_answer_body_as_message(case.operation, response.mime_type, response.body)
    return said or Message("assistant", "")


def recorded(case: Case) -> Response:
    return known(case.call.answer())


def calls_of(said: Message) -> list[tuple[str, Any]]:
    return [(each.name, parse_json_or_none(each.arguments)) for each in said.tool_calls]


@pytest.mark.parametrize("kind", DONE_TO_ANSWERS)
def test_a_kind_changes_the_answer_or_finds_nothing_to_be_done_to(kind: str) -> None:
    """It never hands back the recorded bytes in their time as if it had done something, and never raises."""
    for case in CASES:
        if (found := do(kind, case)) is None:
            continue
        before, after = ((one.body, one.ending, one.chunks[-1:]) for one in (recorded(case), known(found.response)))
        assert found.reset or after != before, case


@pytest.mark.parametrize("kind", ["reset-after", "cut-frame", "cut-character"])
def test_what_breaks_off_begins_as_recorded(kind: str) -> None:
    """Some of it comes, never all, and without a proper end."""
    for case in CASES:
        before, after = recorded(case), broken(kind, case)
        sent = after.body.removesuffix(b"\xc3")
        assert before.body.startswith(sent), case
        assert 0 < len(sent) < len(before.body), case
        assert after.ending is Ending.CUT, case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cut_character_is_no_text(case: Case) -> None:
    """Whoever decodes what came finds half a character at its end."""
    with pytest.raises(UnicodeDecodeError):
        broken("cut-character", case).body.decode()


@pytest.mark.parametrize("case", [case for case in CASES if case.stream], ids=str)
def test_an_early_end_is_in_order_and_without_the_last_event(case: Case) -> None:
    """The provider's mark of the end is missing, HTTP's is not."""
    before, after = recorded(case), broken("early-end", case) if do("early-end", case) else None
    if after is None:
        assert not is_streamed(before)
        return
    assert after.ending is Ending.COMPLETE
    assert len(after.chunks) < len(before.chunks) or len(after.body) < len(before.body)
    if case.operation not in ("writer.chat", "generateContent"):  # their streams have no mark
        how = classify_response_ending(case.operation, True, 200, after.mime_type, after.body, True)
        assert how is Ending.UNTERMINATED


@pytest.mark.parametrize("case", [case for case in CASES if case.stream], ids=str)
def test_an_error_event_is_the_last_thing_that_comes(case: Case) -> None:
    """In the framing and the words of the provider."""
    if (found := do("error-event", case)) is None or found.response is None:
        assert not is_streamed(recorded(case))
        return
    last = list_stream_events(found.response.mime_type, found.response.body)[-1]
    assert isinstance(last, dict)
    assert "error" in json.dumps(last).lower() or "exception" in last


@pytest.mark.parametrize("case", CASES, ids=str)
def test_truncated_arguments(case: Case) -> None:
    """As text they are no JSON any more; as an object they lack the last one. An answer without calls has none."""
    if case.said is TEXT:
        assert do("truncated-arguments", case) is None
        return
    (made,) = read(case, broken("truncated-arguments", case)).tool_calls
    if has_tool_arguments_as_text(case.operation, stream=case.stream):
        assert parse_json_or_none(made.arguments) is None
        assert '{"city":"Oslo","unit":"celsius"}'.startswith(made.arguments.replace(" ", ""))
    else:
        assert parse_json_or_none(made.arguments) == {"city": "Oslo"}


@pytest.mark.parametrize("case", [case for case in CASES if case.said is TOOL], ids=str)
def test_calls_that_nobody_can_run(case: Case) -> None:
    """The same call twice, with ids that differ where there are ids; a name that is no tool's."""
    arguments = {"city": "Oslo", "unit": "celsius"}
    twice = read(case, broken("duplicate-call", case))
    assert calls_of(twice) == [("get_weather", arguments)] * 2
    ids = [each.id for each in twice.tool_calls]
    assert ids[0] != ids[1] or ids[0] is None
    assert calls_of(read(case, broken("unknown-tool", case))) == [("get_weather_v2", arguments)]


FINISHES = {
    "length": ("length", "max_output_tokens", "max_tokens", "MAX_TOKENS"),
    "content-filter": ("content_filter", "refusal", "SAFETY", "content_filtered", "ERROR", "ERROR_TOXIC"),
    "refusal": ("refusal", "PROHIBITED_CONTENT"),
}


@pytest.mark.parametrize("case", [case for case in CASES if case.said is TEXT], ids=str)
@pytest.mark.parametrize("kind", FINISHES)
def test_answers_that_end_for_another_reason(kind: str, case: Case) -> None:
    """Half of the text, or an apology, and the provider's own name for why."""
    after = broken(kind, case)
    half = TEXT.text[: (len(TEXT.text) + 1) // 2]
    assert read(case, after).text == ("I'm sorry, but I can't help with that." if kind == "refusal" else half)
    raw = after.body.decode("latin-1")
    if kind == "refusal" and case.operation in ("converse", "api.chat", "v1.chat", "v2.chat", "invoke"):
        return  # there a refusal is words and no more (but for Anthropic's models)
    if case.operation == "api.chat" and kind == "content-filter":
        return  # it has none
    if case.operation == "invoke":
        raw = json.dumps(list_stream_events(after.mime_type, after.body))
    assert any(f'"{name}"' in raw for name in FINISHES[kind])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_empty_answer_is_whole_and_says_nothing(case: Case) -> None:
    """No text, no call; and an empty body has not even that."""
    said = read(case, broken("empty-answer", case))
    assert (said.text, said.tool_calls) == ("", ())
    assert broken("empty-body", case).body == b""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_usage_is_gone_or_wrong(case: Case) -> None:
    """What was said stays; the tokens are unknown, or ten times as many."""

    def used(response: Response) -> tuple[int | None, int | None]:
        kind = response.mime_type
        found = read_usage(case.call.family, case.operation, kind, response.body, response.headers)
        return found.input, found.output

    before = recorded(case)
    if (found := do("no-usage", case)) is None:
        assert used(before) == (None, None)
        return
    without = known(found.response)
    assert used(without) == (None, None)
    said = read(case, without)
    assert (said.text, calls_of(said)) == (case.said.text, calls_of(case.said))
    given = used(before)
    if any(given):
        assert used(broken("wrong-usage", case)) == tuple(None if each is None else each * 10 for each in given)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_malformed_json_comes_whole_and_cannot_be_read(case: Case) -> None:
    """HTTP ends in order; one of its values is no JSON."""
    after = broken("malformed-json", case)
    assert after.ending is Ending.COMPLETE
    before = recorded(case)
    events = list_stream_events(after.mime_type, after.body)
    sound = [each for each in events if isinstance(each, dict) and None not in each.values()]
    assert len(sound) < len(list_stream_events(before.mime_type, before.body))


@pytest.mark.parametrize("case", [Case("chat.completions", True, TEXT), Case("messages", False, TEXT)], ids=str)
def test_slow_answers_are_whole(case: Case) -> None:
    """The same bytes, later: at the beginning, between any two events, in the middle."""
    before = recorded(case)
    late = broken("slow-start", case, seconds=2)
    assert late.body == before.body
    assert late.chunks[0].offset == 2_000_000
    assert late.head_offset == (0 if case.stream else 2_000_000)
    stalled = broken("stall", case, seconds=3)
    assert stalled.body == before.body
    assert [each.offset for each in stalled.chunks][0::100] == [0]
    assert stalled.chunks[-1].offset == 3_000_000
    if case.stream:
        slow = broken("slow-tokens", case, seconds=0.5)
        assert [each.offset for each in slow.chunks] == [500_000 * n for n in range(len(slow.chunks))]
    else:
        assert do("slow-tokens", case) is None


EXPECTED = {
    "openai": ("error", "code", "rate_limit_exceeded"),
    "anthropic": ("error", "type", "rate_limit_error"),
    "gemini": ("error", "status", "RESOURCE_EXHAUSTED"),
}


def refuse(kind: str, family: Family, **values: float) -> Response:
    return known(known(KINDS[kind].do(call(family=family), values)).response)


@pytest.mark.parametrize("family", get_args(Family))
def test_a_429_says_when_to_come_back(family: Family) -> None:
    """In the provider's own body, with retry-after in whole seconds, and the header by which AWS's SDKs choose the exception."""
    found = refuse("http-429", family, retry_after=1.5)
    assert (found.status, header(found.headers, "retry-after")) == (429, "2")
    if family in EXPECTED:
        outer, inner, value = EXPECTED[family]
        assert json.loads(found.body)[outer][inner] == value
    assert family != "bedrock" or (header(found.headers, "x-amzn-errortype") or "").startswith("ThrottlingException")
    assert "llmproxy" not in found.body.decode()
    assert header(found.headers, "x-should-retry") is None


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("status", [500, 502, 503, 529])
def test_the_other_refusals(family: Family, status: int) -> None:
    """JSON of the provider's, but for a gateway's 502, which is a page."""
    found = refuse(f"http-{status}", family)
    assert found.status == status
    assert found.body.startswith(b"<html>" if status == 502 else b"{")
