"""What trials saw, put together: groups, whom they touch, what recording anew costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.changes.segment_change import (
    CarriedAnswerAttempt,
    CarriedAnswerRefusal,
    ChangeCause,
    ChangeSource,
    RefusalReason,
    SegmentChange,
    diff_hunks,
    digest_texts,
)
from llmproxy.core.sessions.journal import ChangedAgentTrialRunResult
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.traffic.interaction import Ending, Key
from llmproxy.report.request_change_summary import ChangedRequestsReport, group_request_changes


def change(before: str | None = "Be brief.", after: str | None = "Be brief and kind.", **more: object) -> SegmentChange:
    digests = ["" if text is None else digest_texts([text]) for text in (before, after)]
    made = SegmentChange("system", "system prompt", before, after, digests[0], digests[1], diff_hunks(before, after))
    return made._replace(**more)  # type: ignore[arg-type]


def call(
    recording: int | None, *changes: SegmentChange, cost: float | None = 0.01, why: RefusalReason | None = None
) -> CarriedAnswerAttempt:
    """Return a call that was carried under these changes, or refused."""
    refusal = None if why is None else CarriedAnswerRefusal(why, "message 1 (user)")
    pending = tuple(each.name for each in changes)
    place = (1, "refund", 1, "agent", "chat.completions")
    return CarriedAnswerAttempt(*place, recording, changes, refusal, pending, 10, 2, cost, 2000.0)


def trial(
    name: str, *seen: CarriedAnswerAttempt, calls: int = 4, passed: bool | None = True
) -> ChangedAgentTrialRunResult:
    return ChangedAgentTrialRunResult(name, 1, 0.0, passed, calls, seen)


def total(*trials: ChangedAgentTrialRunResult, after: dict[int, float | None] | None = None) -> ChangedRequestsReport:
    """Put trials together; each cassette holds these recordings, with what they cost."""
    return group_request_changes(
        trials, lambda _: {number: row(number, cost) for number, cost in (after or {}).items()}
    )


def row(number: int, cost: float | None) -> StoredCallSummary:
    place = (number, "refund", 1, "agent", number, 1)
    head = (*place, Key(f"v2:{number}"), "anthropic", "messages", "m", True, "POST", "/v1")
    return StoredCallSummary(
        *head, 200, Ending.COMPLETE, 0.0, 1.0, 2.0, 10, 2, cost, False, False, "hi", "ho", "Claude Code 2.1.1", 0.0
    )


def test_one_edit_in_several_cassettes_is_one_change() -> None:
    """It has one name, its calls and cassettes; what has changed by origin is told apart; tests are counted by how they ended."""
    edit, tool = change(), change("x", "y", origin=ChangeCause(ChangeSource.CLIENT, "claude-code", "2.1.332"))
    found = total(
        trial("refund", call(1, edit), call(2, edit)), trial("vip", call(5, edit, tool)), trial("plain"),
        trial("broken", call(7, why=RefusalReason.QUESTION), passed=False),
    )  # fmt: skip
    seen = {(each.name, each.calls, tuple(each.cassettes)) for each in found.groups}
    assert seen == {(edit.name, 3, ("refund", "vip")), (tool.name, 1, ("vip",))}
    told = "\n".join(found.format_lines())
    assert "2 changes in 4 of 16 calls, 3 of 4 cassettes" in told
    assert 'system prompt: "Be brief." -> "Be brief and kind."   3 calls  refund vip' in told
    assert "question" in told
    assert "with recorded answers: 1 test passes as before, 2 with carried answers, 1 fail" in told
    assert found.has_changes


def test_two_edits_of_one_name_are_two_changes() -> None:
    """A name has four digits: who accepts one edit has seen it."""
    edit, other = change(), change(after="Delete files freely. 109669")
    assert edit.name == other.name
    found = total(trial("a", call(1, edit), call(2, other)))
    assert sorted(str(each.text) for each in found.groups) == sorted(map(str, (edit, other)))
    assert all(len(digests) == 1 for each in found.groups for digests in each.cassettes.values())


def test_a_call_that_is_no_longer_made_is_a_change() -> None:
    """It is the client's where the client was upgraded; nothing is said of a run that failed, was cut, or went astray."""
    upgrade = change("x", "y", origin=ChangeCause(ChangeSource.CLIENT, "Claude Code", "2.1.2"))
    ended = trial("refund", call(1, upgrade))._replace(served=frozenset({2}))
    found = total(ended, after=dict.fromkeys((1, 2, 3), 0.1))
    (gone,) = [each for each in found.groups if each.name.startswith("gone-")]
    assert (gone.text, gone.calls, gone.origin) == ('call messages m "hi" is gone', 1, "client Claude Code 2.1.2")
    assert found.bill is not None
    assert len(found.bill.costs) == 1
    plain = trial("plain")._replace(served=frozenset({1, 2}))
    (alone,) = total(plain, after=dict.fromkeys((1, 2, 3), 0.1)).groups
    assert (alone.origin, alone.name) == ("prompt", gone.name)
    astray = ended._replace(seen=(call(1, why=RefusalReason.QUESTION),))
    for each in (ended._replace(served=None), ended._replace(passed=False), astray):
        assert not [one for one in total(each, after={3: 0.1}).groups if one.name.startswith("gone-")]


def test_nothing_changed_is_said_in_one_line() -> None:
    assert list(total(trial("plain", passed=None)).format_lines()) == ["no change in 4 calls, 1 cassette"]
    assert "1 test passes as before" in [*total(trial("plain")).format_lines()][1]
    alone = replace(total(trial("plain")), is_of_command=True)
    assert [*alone.format_lines()][1] == "with recorded answers: the command passes as before"
    assert not total(trial("plain")).has_changes


def test_calls_without_a_recording_are_no_change_that_can_be_accepted() -> None:
    """Nothing is pending, so the only command is the one that records them, or the one that another place prints."""
    found = total(trial("refund", call(None, why=RefusalReason.NO_PLACE)))
    assert next(found.format_lines()) == (
        "1 call has no recorded answer, of 4 calls in 1 cassette; there is no change to accept"
    )
    store = Path("llmproxy.db")
    assert found.list_next_steps(store, None, "x --mode auto") == [
        "record what has no answer, with your keys: x --mode auto"
    ]
    assert found.list_next_steps(store) == []


@pytest.mark.parametrize(("seen", "after", "said"), [
    ([call(1, change())], {1: 0.01}, "to record anew: 1 call: $0.0100, about 2.0 s"),
    (
        [call(1, change())],
        dict.fromkeys(range(1, 27), 0.01),
        "1 call, about 3 with what follows, at most 26: $0.0100 to $0.2600",
    ),
    ([call(2, change())], {1: 0.5, 2: 0.01}, "1 call: $0.0100"),
    ([call(1, change(), cost=None)], {1: None}, "1 call: at an unknown price"),
    ([call(1, change()), call(2, change(), cost=None)], {}, "2 calls: $0.0100 and 1 call of unknown price"),
    ([call(1, change())], {1: 0.01, 2: None}, "at most 2: $0.0100 and 1 call of unknown price"),
    ([call(1, change()), call(None, why=RefusalReason.NO_PLACE, cost=None)], {}, "1 call: $0.0100"),
])  # fmt: skip
def test_the_bill_counts_what_is_known_and_says_what_is_not(
    seen: list[CarriedAnswerAttempt], after: dict[int, float | None], said: str
) -> None:
    """The changed calls at least, with all that their recordings hold after them at most; unknown is never 0."""
    assert said in str(total(trial("refund", *seen), after=after).bill)


def test_a_table_for_a_pull_request_holds_every_change() -> None:
    edit = change("a|b", "c")
    rows = list(
        total(trial("refund", call(1, edit)), trial("new", call(None, why=RefusalReason.NO_PLACE))).to_markdown()
    )
    assert rows[0] == "**1 change in 1 of 8 calls, 1 of 2 cassettes**"
    assert f'| `{edit.name}` | system prompt: "a\\|b" -> "c" | 1 | refund |' in rows
    assert any(row.startswith("| `new` | chat.completions without a recorded counterpart | 1 | new |") for row in rows)


def test_what_is_accepted_is_no_change_any_more() -> None:
    """Calls that are carried under accepted changes are counted, and neither listed nor paid for."""
    found = total(trial("refund", call(1, change())._replace(pending=())))
    assert next(found.format_lines()) == "no change in 4 calls, 1 cassette; 1 carried under accepted changes"
    assert (found.has_changes, found.groups, found.bill) == (False, [], None)
