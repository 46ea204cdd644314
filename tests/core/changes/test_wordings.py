"""What of a tool's result is its wording, and what of a changed request leaves an answer possible."""

from __future__ import annotations

import pytest

from llmproxy.core.changes.answer_plausibility import AnswerRequests, check_schema, find_impossible, is_question
from llmproxy.core.changes.request import KnownAnswers, read_request
from llmproxy.core.changes.result_wordings import FAILS_NOW, find_rewording
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.traffic.json_bytes import dump

NEVER = [
    ("2 tests passed", "2 tests failed"),
    ("Tests passed", "Tests failed"),
    ("the debtor Ann pays 5 to Bob", "the debtor Bob pays 5 to Ann"),
    ("a.txt, b.txt, c.txt", "a.txt, b.txt, d.txt"),
    ("Wrote 5 lines", "Wrote -5 lines"),
    ("Wrote 5 lines", "Wrote .5 lines"),
    ("x = 5", "x != 5"),
    ("x < 5", "x > 5"),
    ("total: 5", "total: 5\nand 6 more"),
    ("total: 5\nand more", "total: 5"),
    ("written to ann@x.org", "written to bob@x.org"),
    ("written to a.txt", "written to b.txt"),
    ("it is ALPHA", "it is BETA"),
    ('{"paid": true}', '{"paid": false}'),
    ("Payment done", "Payment failed"),
    ("Access allowed", "Access denied"),
    ("The file is open", "The file is closed"),
    ("3 of 5", "5 of 3"),
    ("", "Something"),
]
"""Old and new, of which nobody may say that they are one."""


@pytest.mark.parametrize(("before", "after"), NEVER)
def test_what_a_tool_answered_is_no_wording(before: str, after: str) -> None:
    """Values, outcomes, lists, signs and lines stay; where they do not, the reason is said."""
    found = find_rewording(before, after, "tool", [before, f"{before}\nBye"], [after])
    assert isinstance(found, str), found


def test_a_wording_is_systematic() -> None:
    """Literal text for literal text is offered where several results had it, unless the tool says the old one today, or
    said the new one then.
    """
    before, after, other = "Wrote 5 lines into a.txt", "Put 5 lines into a.txt", "Wrote 8 lines into c.txt"
    assert isinstance(find_rewording(before, after, "write", [before], [after]), str)
    found = find_rewording(before, after, "write", [before, other], [after])
    assert not isinstance(found, str)
    assert (found[0][0].before, found[0][0].after, found[1]) == (("Wrote {} lines into {}",),
                                                                ("Put {} lines into {}",), "")  # fmt: skip
    assert isinstance(find_rewording(before, after, "write", [before, other], [after, "Wrote 6 lines into a.txt"]), str)
    assert isinstance(find_rewording(before, after, "write", [before, other, "Put 7 lines into a.txt"], [after]), str)
    lost = find_rewording("Intent logged", "Tool 'log' does not exist.", "log", ["Intent logged"], [])
    assert not isinstance(lost, str)
    assert lost[1] == FAILS_NOW


def _request(**more: object) -> Canonical:
    tree = {"model": "m", "messages": [{"role": "user", "content": "Who?"}], **more}
    return Canonical("openai", "POST", "chat.completions", None, stream=False, headers=(), query=(), kind="json",
                     body=dump(tree), tree=tree, refs=())  # fmt: skip


_TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["q"]}}}
_CALLS = Message("assistant", "", (ToolCall("1", "find", '{"q": 1}'),))
_TEXT = Message("assistant", "It is 5.")
_STRICT = {"type": "function", "function": {"name": "find", "parameters": {"required": ["q", "why"]}}}
_WANTED = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


@pytest.mark.parametrize(("answer", "was", "now", "possible"), [
    (_TEXT, {}, {"temperature": 1}, True),
    (_TEXT, {}, {"max_tokens": 2}, False),
    (_TEXT, {"max_tokens": 9}, {"max_tokens": 90}, True),
    (_TEXT, {"max_tokens": 3}, {"max_tokens": 90}, False),
    (_TEXT, {}, {"stop": ["5"]}, False),
    (_TEXT, {}, {"stop": ["x"]}, True),
    (_TEXT, {}, {"n": 2}, False),
    (_TEXT, {}, {"logprobs": True}, False),
    (_TEXT, {}, {"tool_choice": "required"}, False),
    (_TEXT, {}, {"response_format": _WANTED}, False),
    (Message("assistant", "{}"), {}, {"response_format": _WANTED}, True),
    (_CALLS, {"tools": [_TOOL]}, {"tools": []}, False),
    (_CALLS, {"tools": [_TOOL]}, {"tools": [_STRICT]}, False),
    (_CALLS, {"tools": [_TOOL]}, {"tools": [_TOOL], "tool_choice": "none"}, False),
    (_CALLS, {"tools": [_TOOL]}, {"tools": [_TOOL], "parallel_tool_calls": False}, True),
    (_CALLS, {"tools": [_TOOL]}, {"tools": [_TOOL], "tool_choice": {"function": {"name": "other"}}}, False),
])  # fmt: skip
def test_an_answer_is_possible_or_the_parameter_is_named(
    answer: Message, was: dict[str, object], now: dict[str, object], possible: bool
) -> None:
    """Limits, formats, choices and schemas of today are held against the recorded answer, which had three tokens."""
    sides = [read_request(_request(**each), [], KnownAnswers()) for each in (was, now)]
    assert (find_impossible(AnswerRequests(answer, 3), *sides) == "") is possible


def test_parameters_may_hold_a_question() -> None:
    """By their names, or by prose in them; schemas are full of prose, and are none."""
    assert is_question("prompt", "x")
    assert is_question("vendor_note", "please pay 5 euros")
    assert not is_question("temperature", 1)
    assert not is_question("response_format", {"description": "please pay"})
    assert check_schema("x", {"type": "STRING"}) == ""
    assert check_schema(None, {"type": "STRING"}) != ""
