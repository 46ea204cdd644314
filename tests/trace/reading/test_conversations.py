"""Which conversation a request belongs to."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace import SpanKind
from llmproxy.trace.reading.conversations import digest_message_prefixes, remove_whitespace
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.messages import asks, call, result, said, user
from tests.trace.runs import SYSTEM, chat


def conversations(*exchanges: Interaction) -> list[str]:
    spans = build_spans(exchanges)
    return [span.metadata["gen_ai.conversation.id"] for span in spans if span.kind is SpanKind.LLM_REQUEST]


def responses(n: int, body: dict[str, Any], *, made: str) -> Interaction:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {n}"}]}]
    answer = json.dumps({"id": made, "object": "response", "status": "completed", "output": output}).encode()
    made_of = chat(n, [], said(""), operation="responses", made_ids=(made,))
    chunk = dataclasses.replace(made_of.response.chunks[0], data=answer)
    return dataclasses.replace(
        made_of,
        request=dataclasses.replace(made_of.request, body=json.dumps(body).encode()),
        response=dataclasses.replace(made_of.response, chunks=(chunk,)),
    )


FIRST = [SYSTEM, user("one")]
GROWN = [*FIRST, said("1."), user("two")]


@pytest.mark.parametrize(("later", "same"), [
    (GROWN, True),
    ([*FIRST, said(" 1. \n"), user("two")], True),  # white space
    ([{"role": "system", "content": "Be  brief."}, *GROWN[1:]], True),
    ([*FIRST, said("Another answer."), user("two")], True),  # edited
    ([*FIRST, user("two")], True),  # the answer left out
    ([SYSTEM, user("other"), said("1."), user("two")], False),
    ([{"role": "system", "content": "Be long."}, *GROWN[1:]], False),
    ([user("two")], False),
])  # fmt: skip
def test_a_conversation_goes_on_with_its_prefix(later: list[Any], same: bool) -> None:
    """What was asked and answered is at the beginning of what is asked next, give or take what clients change."""
    assert conversations(chat(1, FIRST, said("1.")), chat(2, later, said("2."))) == ["1", "1" if same else "2"]


def test_the_date_in_a_system_prompt_does_not_matter() -> None:
    """A clock that goes on starts no new conversation."""

    def at(time: str) -> list[Any]:
        return [{"role": "system", "content": f"It is 2026-11-20 {time}."}]

    first = chat(1, [*at("10:00"), user("one")], said("1."))
    assert conversations(first, chat(2, [*at("10:01"), user("one"), said("1."), user("two")], said("2."))) == ["1", "1"]


def test_ids_and_layout_of_tool_calls_do_not_matter() -> None:
    asked = chat(1, [user("x")], asks(call(arguments='{"b": 1, "a": 2}', call_id="call_1")))
    renamed = asks(call(arguments='{"a":2,"b":1}', call_id="other"))
    later = chat(2, [user("x"), renamed, result("r", "other")], said("y"))
    assert conversations(asked, later) == ["1", "1"]


def test_a_cut_history_is_known_by_the_call_it_answers() -> None:
    """A window that slides leaves the beginning out; the result's id tells."""
    asked = chat(1, FIRST, asks(call(call_id="call_unique")))
    later = chat(
        2, [user("summary of before"), asks(call(call_id="call_unique")), result("r", "call_unique")], said("y")
    )
    assert conversations(asked, later) == ["1", "1"]


def test_half_a_surrogate_pair_may_stand_anywhere() -> None:
    """JSON can say it, in a role as well as in a text: such a history goes on like any other."""
    odd = [SYSTEM, {"role": "\ud800", "content": "one \udc00"}]
    assert conversations(chat(1, odd, said("1.")), chat(2, [*odd, said("1."), user("two")], said("2."))) == ["1", "1"]


def test_a_chain_by_id_goes_on() -> None:
    """The responses API names the answer before and sends only what is new."""
    first = responses(1, {"input": "one"}, made="resp_1")
    second = responses(2, {"input": "two", "previous_response_id": "resp_1"}, made="resp_2")
    third = responses(3, {"input": "three", "previous_response_id": "resp_2"}, made="resp_3")
    branch = responses(4, {"input": "zwei", "previous_response_id": "resp_1"}, made="resp_4")
    alone = responses(5, {"input": "two", "previous_response_id": "resp_unknown"}, made="resp_5")
    assert conversations(first, second, third, branch, alone) == ["1", "1", "1", "1", "2"]


def test_two_runs_that_said_the_same_are_continued_one_each() -> None:
    """The first that goes on is the first run's, the second the second's."""
    runs = [chat(n, FIRST, said("1.")) for n in (1, 2)]
    later = [chat(n, [*FIRST, said("1."), user(f"go {n}")], said("2.")) for n in (3, 4)]
    assert conversations(*runs, *later) == ["1", "2", "1", "2"]


def test_other_tools_and_another_prompt_are_another_agent() -> None:
    """The same user's words do not make it one conversation."""
    one = chat(1, [SYSTEM, user("x")], said("y"), names=("search",))
    other = chat(2, [SYSTEM, user("x"), user("more")], said("y"), names=("write",))
    assert conversations(one, other) == ["1", "2"]


def test_answers_in_pieces_are_one() -> None:
    """An answer that comes back as a text and a call, in two messages, is the one that was given."""
    whole = [Message("assistant", "Let me see.", (ToolCall("a", "f", "{}"),))]
    pieces = [
        Message("assistant", "Let me "),
        Message("assistant", "see."),
        Message("assistant", "", (ToolCall("b", "f", ""),)),
    ]
    assert [mark for mark, _ in digest_message_prefixes(b"", whole)] == [
        mark for mark, _ in digest_message_prefixes(b"", pieces)
    ]
    assert [n for _, n in digest_message_prefixes(b"", pieces)] == [3]
    assert list(digest_message_prefixes(b"", [Message("assistant", "", reasoning="hm")])) == []


def test_a_long_text_loses_the_same_white_space_as_a_short_one() -> None:
    """Whatever counts as white space, and whichever way is the quicker."""
    every = "".join(map(chr, range(128)))
    assert remove_whitespace(every * 100) == "".join((every * 100).split()) == remove_whitespace(every) * 100
    assert remove_whitespace((every + "\u00a0é\u2003") * 100) == remove_whitespace(every + "\u00a0é\u2003") * 100
