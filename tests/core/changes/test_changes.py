"""What an agent changed since it was recorded: texts, accepted changes, frames, and generated changes that are known."""

from __future__ import annotations

from datetime import date

import pytest

from llmproxy.core.changes.accepted_change_model import (
    AcceptedChange,
    ClientVersionCondition,
    UnreadableAcceptedChange,
    build_accepted_changes,
    merge_accepted_change_lists,
)
from llmproxy.core.changes.recordings_by_position import FAILS_NOW, find_tool_result_rewording
from llmproxy.core.changes.request_diff import (
    can_request_member_hold_question,
    check_answer_fits_new_request,
    explain_schema_violation,
)
from llmproxy.core.changes.request_parsing import (
    ClientPromptBoilerplate,
    RecordedAnswersByToolCalls,
    digest_stripped_line,
    extract_text_only_content,
    get_client_prompt_boilerplate,
    parse_request_into_segments,
)
from llmproxy.core.changes.segment_change import (
    CarriedAnswerAttempt,
    CarriedAnswerRefusal,
    RefusalReason,
    SegmentChange,
    diff_hunks,
    digest_texts,
)
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.providers.provider_table import ClientProgram, parse_user_agent_client
from llmproxy.core.traffic.canonical_json import dump
from tests.core.changes.cases import LIES, case
from tests.core.changes.judging import Judge
from tests.support.narrowing import known

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
    found = find_tool_result_rewording(before, after, "tool", [before, f"{before}\nBye"], [after])
    assert isinstance(found, str), found


def test_an_output_is_no_error() -> None:
    """Gemini's SDKs wrap a result's text in a member that says which of the two it is."""
    output, error = (extract_text_only_content({"name": "f", "response": {name: "no"}}) for name in ("output", "error"))
    assert output is not None
    assert error is not None
    assert (output[0] == error[0], output == error) == (True, False)


def test_a_wording_is_systematic() -> None:
    """Offered where several results had the text, unless the tool says the old one today, or said the new one then."""
    before, after, other = "Wrote 5 lines into a.txt", "Put 5 lines into a.txt", "Wrote 8 lines into c.txt"
    assert isinstance(find_tool_result_rewording(before, after, "write", [before], [after]), str)
    found = find_tool_result_rewording(before, after, "write", [before, other], [after])
    assert not isinstance(found, str)
    assert (found[0][0].before, found[0][0].after, found[1]) == (("Wrote {} lines into {}",),
                                                                ("Put {} lines into {}",), "")  # fmt: skip
    assert isinstance(
        find_tool_result_rewording(before, after, "write", [before, other], [after, "Wrote 6 lines into a.txt"]), str
    )
    assert isinstance(
        find_tool_result_rewording(before, after, "write", [before, other, "Put 7 lines into a.txt"], [after]), str
    )
    lost = find_tool_result_rewording("Intent logged", "Tool 'log' does not exist.", "log", ["Intent logged"], [])
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
    sides = [parse_request_into_segments(_request(**each), [], RecordedAnswersByToolCalls()) for each in (was, now)]
    assert (check_answer_fits_new_request(answer, 3, *sides) == "") is possible


def test_parameters_may_hold_a_question() -> None:
    """By their names, or by prose in them; schemas are full of prose, and are none."""
    assert can_request_member_hold_question("prompt", "x")
    assert can_request_member_hold_question("vendor_note", "please pay 5 euros")
    assert not can_request_member_hold_question("temperature", 1)
    assert not can_request_member_hold_question("response_format", {"description": "please pay"})
    assert explain_schema_violation("x", {"type": "STRING"}) == ""
    assert explain_schema_violation(None, {"type": "STRING"}) != ""


DAY = date(2026, 11, 26)


def _change(before: str | None, after: str | None, segment: str = "system prompt") -> SegmentChange:
    digests = ["" if text is None else digest_texts([text]) for text in (before, after)]
    return SegmentChange("system", segment, before, after, digests[0], digests[1], diff_hunks(before, after))


BRIEF = _change("You help.\nBe brief.", "You help.\nBe brief and kind.")


def test_a_change_is_named_by_its_lines() -> None:
    """Equal edits in otherwise different texts have one name; another edit, or another segment, has another."""
    assert BRIEF.name == _change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind.").name
    assert BRIEF.name != _change("You help.\nBe brief.", "You help.\nBe kind.").name
    assert BRIEF.edit_digest != BRIEF._replace(segment="tool search").edit_digest
    assert str(BRIEF) == 'system prompt, line 2: "Be brief." -> "Be brief and kind."'
    assert str(_change(None, "x")) == "system prompt is new"
    changes = (BRIEF, SegmentChange.from_json(BRIEF.to_json()))
    made, read = ((each.name, each.digests, str(each), each.difference_text) for each in changes)
    assert (made, str(SegmentChange.from_json(BRIEF.to_json() | {"place": "autre", "text": "autre"}))) == (
        read,
        "autre",
    )


@pytest.mark.parametrize(("change", "client", "covered"), [
    (BRIEF, None, True),
    (_change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind."), None, False),  # nobody saw this text
    (_change("You help.\nBe brief.", "You help.\nBe kind."), None, False),
])  # fmt: skip
def test_it_covers_what_was_seen(change: SegmentChange, client: ClientProgram | None, covered: bool) -> None:
    """An accepted change holds for the very texts that somebody accepted, and for no others."""
    assert build_accepted_changes([BRIEF], DAY)[0].covers_change(change, client) is covered


def test_it_may_hold_for_one_client_and_until_a_day() -> None:
    """A condition asks who sends the request, in which version; after the last day it holds no more."""
    made = build_accepted_changes(
        [BRIEF], DAY, until=date(2026, 12, 1), when=ClientVersionCondition("claude-code", "2.1.300")
    )[0]
    versions = ["2.1.300", "2.1.332", "2.2", "2.1.197", "2.1.29"]
    covered = [made.covers_change(BRIEF, ClientProgram("Claude Code", each)) for each in versions]
    assert covered == [True, True, True, False, False]
    assert not made.covers_change(BRIEF, ClientProgram("codex", "3.0"))
    assert [made.has_expired(date(2026, 12, day)) for day in (1, 2)] == [False, True]
    assert made.covers_change(BRIEF, parse_user_agent_client((("User-Agent", "claude-cli/2.1.332 (external, cli)"),)))
    assert not made.covers_change(BRIEF, None)


def test_its_form_in_a_file_is_read_back() -> None:
    """What is written is read as it was, also where a segment is new."""
    made = build_accepted_changes([BRIEF, _change(None, "x")], DAY, until=DAY, when=ClientVersionCondition("codex"))
    assert [AcceptedChange.from_member(each.to_member()) for each in made] == made


@pytest.mark.parametrize(
    "edit",
    [{"exactly": []}, {"exactly": ["abc..def"]}, {"accepted": "soon"}, {"accepted": None}, {"until": "2026-13-01"},
     {"name": 3}, {"more": 1}, {"when": "codex"}, {"when": {"since": "1"}}],
)  # fmt: skip
def test_what_cannot_be_read_is_an_error(edit: dict[str, object]) -> None:
    """A file that was edited so that it says nothing clear covers nothing: it is refused whole."""
    with pytest.raises(UnreadableAcceptedChange):
        AcceptedChange.from_member(build_accepted_changes([BRIEF], DAY)[0].to_member() | edit)


def test_two_lists_become_one() -> None:
    """What both accept is accepted once, for the texts of both; under another end it stays another one."""
    other = _change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind.")
    ours, theirs = build_accepted_changes([BRIEF], DAY), build_accepted_changes([other], date(2026, 11, 27))
    (both,) = merge_accepted_change_lists(ours, theirs)
    assert both.exactly == {BRIEF.digests, other.digests}
    assert both.accepted == date(2026, 11, 27)
    ended = build_accepted_changes([other], DAY, until=DAY)
    assert merge_accepted_change_lists(ours, ended) == [*ours, *ended]


def test_a_call_of_a_trial_is_plain_json_and_back() -> None:
    """Who counts a trial's calls over the control API reads what was written."""
    refusal = CarriedAnswerRefusal(RefusalReason.QUESTION, "message 1")
    call = CarriedAnswerAttempt(3, "a", 1, "agent", "messages", 7, (BRIEF,), refusal, ("x",), 10, 2, 0.5)
    assert CarriedAnswerAttempt.from_json(call.to_json())._replace(changes=(BRIEF,)) == call
    assert not call.has_no_place
    assert call._replace(refusal=CarriedAnswerRefusal(RefusalReason.NO_PLACE, "")).has_no_place


OPENING, NEXT = "<system-reminder>", "As you answer, you can use the following context:"
IMPORTANT = "IMPORTANT: this context may or may not be relevant."
OWN = (OPENING, NEXT, "# currentDate", "</system-reminder>", "---", IMPORTANT)
FRAMES = ClientPromptBoilerplate({
    "lines": [digest_stripped_line(line) for line in OWN], "holes": ["Today's date is {}.", "You are the model named {*}."],
    "tools": [], "parameters": [], "members": [],
})  # fmt: skip


def text(*lines: str) -> str:
    """Return lines between the client's own, as one part."""
    day = ("# currentDate", "Today's date is 2026-11-28.")
    return "\n".join([OPENING, NEXT, *lines, *day, IMPORTANT, "</system-reminder>\n"])


@pytest.mark.parametrize(("lines", "others"), [
    (("# House rules", "", "Be brief."), ["# House rules\n\nBe brief."]),
    (("Be brief.", "---", "Be kind."), ["Be brief.\n---\nBe kind."]),
    (("Be brief.", "---"), ["Be brief.\n---"]),
    ((f"{NEXT} Really.",), [f"{NEXT} Really."]),
    (("You are the model named Opus 5.",), []),
    ((), []),
])  # fmt: skip
def test_what_stands_between_is_kept_whole(lines: tuple[str, ...], others: list[str]) -> None:
    """Only whole lines of the client are its own; a short one that anybody writes is not, beside others' lines."""
    split = FRAMES.split(text(*lines))
    assert [*split.others] == others
    assert split.values == ("2026-11-28",)


@pytest.mark.parametrize(("part", "writes"), [
    (text("Be brief."), True),
    (f"{OPENING}\nWhat do my notes say?\n</system-reminder>", False),
    (f"{OPENING}\n</system-reminder>", False),
    (f"{text('Be brief.')}\nWhat do my notes say?", False),
    (f"What do my notes say?\n{text('Be brief.')}", False),
    ("What do my notes say?", False),
])  # fmt: skip
def test_a_tag_that_anybody_could_type_makes_no_frame(part: str, writes: bool) -> None:
    """A part of a user's message is the client's only if its head and its end are the client's very lines."""
    assert FRAMES.is_client_part(part) is writes


def test_frames_ship_for_two_agents() -> None:
    """Of other programs nobody knows what is theirs."""
    clients = ClientProgram("Claude Code", "2.1.332"), ClientProgram("Codex", "0.171.0")
    claude, codex = (known(get_client_prompt_boilerplate(each)) for each in clients)
    assert {"Bash", "Read"} <= claude.tools
    assert "exec_command" in codex.tools
    own = "You are Claude Code, Anthropic's official CLI for Claude, running within the Claude Agent SDK."
    assert claude.split(own).others == ()
    assert get_client_prompt_boilerplate(ClientProgram("shop", "1.0")) is get_client_prompt_boilerplate(None) is None


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("cases"))


def test_each_lie_is_a_miss_in_every_dialect(judge: Judge) -> None:
    """A changed question, amount, result, tool or history gets no answer, whatever else changed."""
    assert judge.judge([case(6 * n + (n + more) % 6, lie) for n, lie in enumerate(LIES) for more in (0, 3)]) == []


def test_what_changed_is_what_was_edited(judge: Judge) -> None:
    """Answers are carried under exactly the segments that were edited, and everything else is an exact hit."""
    assert judge.judge([case(seed) for seed in range(1000, 1048)]) == []
