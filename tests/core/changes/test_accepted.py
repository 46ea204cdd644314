"""Accepted changes: what they cover, how they stand in a file, and how two lists of them become one."""

from __future__ import annotations

from datetime import date

import pytest

from llmproxy.core.changes.accepted import AcceptedChange, BadChange, Condition, accept_changes, unite_accepted
from llmproxy.core.changes.values import Change, Reason, Refusal, TrialCall, digest_of, list_hunks
from llmproxy.core.providers.table import Client, client_of

DAY = date(2026, 11, 26)


def _change(before: str | None, after: str | None, segment: str = "system prompt") -> Change:
    digests = ["" if text is None else digest_of([text]) for text in (before, after)]
    return Change("system", segment, before, after, digests[0], digests[1], list_hunks(before, after))


BRIEF = _change("You help.\nBe brief.", "You help.\nBe brief and kind.")


def test_a_change_is_named_by_its_lines() -> None:
    """Equal edits in otherwise different texts have one name; another edit, or another segment, has another."""
    assert BRIEF.name == _change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind.").name
    assert BRIEF.name != _change("You help.\nBe brief.", "You help.\nBe kind.").name
    assert BRIEF.digest != BRIEF._replace(segment="tool search").digest
    assert str(BRIEF) == 'system prompt, line 2: "Be brief." -> "Be brief and kind."'
    assert str(_change(None, "x")) == "system prompt is new"
    read = Change.from_json(BRIEF.to_json())
    assert (read.name, read.digests, str(read), read.difference) == (
        BRIEF.name,
        BRIEF.digests,
        str(BRIEF),
        BRIEF.difference,
    )


@pytest.mark.parametrize(("change", "client", "covered"), [
    (BRIEF, None, True),
    (_change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind."), None, False),  # nobody saw this text
    (_change("You help.\nBe brief.", "You help.\nBe kind."), None, False),
])  # fmt: skip
def test_it_covers_what_was_seen(change: Change, client: Client | None, covered: bool) -> None:
    """An accepted change holds for the very texts that somebody accepted, and for no others."""
    assert accept_changes([BRIEF], DAY)[0].covers_change(change, client) is covered


def test_it_may_hold_for_one_client_and_until_a_day() -> None:
    """A condition asks who sends the request, in which version; after the last day it holds no more."""
    made = accept_changes([BRIEF], DAY, until=date(2026, 12, 1), when=Condition("claude-code", "2.1.300"))[0]
    versions = ["2.1.300", "2.1.332", "2.2", "2.1.197", "2.1.29"]
    assert [made.covers_change(BRIEF, Client("Claude Code", each)) for each in versions] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not made.covers_change(BRIEF, Client("codex", "3.0"))
    assert [made.has_expired(date(2026, 12, day)) for day in (1, 2)] == [False, True]
    assert made.covers_change(BRIEF, client_of((("User-Agent", "claude-cli/2.1.332 (external, cli)"),)))
    assert not made.covers_change(BRIEF, None)


def test_its_form_in_a_file_is_read_back() -> None:
    """What is written is read as it was, also where a segment is new."""
    made = accept_changes([BRIEF, _change(None, "x")], DAY, until=DAY, when=Condition("codex"))
    assert [AcceptedChange.from_member(each.to_member()) for each in made] == made


@pytest.mark.parametrize(
    "edit",
    [{"exactly": []}, {"exactly": ["abc..def"]}, {"accepted": "soon"}, {"accepted": None}, {"until": "2026-13-01"},
     {"name": 3}, {"more": 1}, {"when": "codex"}, {"when": {"since": "1"}}],
)  # fmt: skip
def test_what_cannot_be_read_is_an_error(edit: dict[str, object]) -> None:
    """A file that was edited so that it says nothing clear covers nothing: it is refused whole."""
    with pytest.raises(BadChange):
        AcceptedChange.from_member(accept_changes([BRIEF], DAY)[0].to_member() | edit)


def test_two_lists_become_one() -> None:
    """What both accept is accepted once, for the texts of both; under another end it stays another one."""
    other = _change("Day 3.\nBe brief.", "Day 3.\nBe brief and kind.")
    ours, theirs = accept_changes([BRIEF], DAY), accept_changes([other], date(2026, 11, 27))
    (both,) = unite_accepted(ours, theirs)
    assert both.exactly == {BRIEF.digests, other.digests}
    assert both.accepted == date(2026, 11, 27)
    ended = accept_changes([other], DAY, until=DAY)
    assert unite_accepted(ours, ended) == [*ours, *ended]


def test_a_call_of_a_trial_is_plain_json_and_back() -> None:
    """Who counts a trial's calls over the control API reads what was written."""
    call = TrialCall(
        3, "a", 1, "agent", "messages", 7, (BRIEF,), Refusal(Reason.QUESTION, "message 1"), ("x",), 10, 2, 0.5
    )
    assert TrialCall.from_json(call.to_json())._replace(changes=(BRIEF,)) == call
    assert not call.is_new
    assert call._replace(refusal=Refusal(Reason.NO_PLACE, "")).is_new
