"""What votes come to."""

from __future__ import annotations

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.judging.voting import Vote, combine_votes, parties, vote_of
from llmproxy.scenario.values.criteria import Finding, Standing

WORDS = {"p": Standing.PASSED, "f": Standing.FAILED, "i": Standing.INCONCLUSIVE}


def outcome(votes: str, rule: Vote) -> str:
    """Return what votes for one criterion, a letter each, come to; a dash is a judge who said nothing."""
    given = [{} if each == "-" else {"c1": Finding(WORDS[each])} for each in votes]
    return combine_votes(["c1"], given, rule)[0]["c1"].status.value[0]


@pytest.mark.parametrize(
    ("votes", "majority", "unanimous"),
    [
        ("p", "p", "p"),
        ("ppp", "p", "p"),
        ("ppf", "p", "i"),
        ("pff", "f", "i"),
        ("fff", "f", "f"),
        ("pfi", "i", "i"),
        ("pii", "i", "i"),
        ("pp-", "p", "i"),
        ("p--", "i", "i"),
        ("pf", "i", "i"),
        ("ppff", "i", "i"),
        ("pppff", "p", "i"),
        ("---", "i", "i"),
    ],
)
def test_a_criterion_needs_more_than_half_of_all_votes(votes: str, majority: str, unanimous: str) -> None:
    """A missing vote counts as one that was cast; a tie decides nothing."""
    assert outcome(votes, Vote.MAJORITY) == outcome(votes, Vote.CONFIRM_ON_FAIL) == majority
    assert outcome(votes, Vote.UNANIMOUS) == unanimous


def test_the_winning_side_gives_the_evidence() -> None:
    """Evidence and reason come from a judge who voted as it was decided, and every vote is told."""
    votes = [
        {"c1": Finding(Standing.PASSED, "yes", "a")},
        {"c1": Finding(Standing.FAILED, "no", "b")},
        {"c1": Finding(Standing.FAILED, "never", "c")},
    ]
    found, cast = combine_votes(["c1"], votes, Vote.MAJORITY)
    assert found["c1"] == Finding(Standing.FAILED, "no", "b")
    assert cast == {"c1": ("passed", "failed", "failed")}


def test_disagreement_is_said() -> None:
    """A criterion on which judges do not agree says so."""
    votes = [{"c1": Finding(Standing.PASSED)}, {"c1": Finding(Standing.FAILED)}]
    assert combine_votes(["c1"], votes, Vote.MAJORITY)[0]["c1"].reason == "the judges do not agree: passed, failed"


def test_judges_are_parties_of_their_own() -> None:
    """The proxy keeps the calls of each judge apart."""
    assert parties(1) == ("judge",)
    assert parties(3) == ("judge", "judge.2", "judge.3")


def test_a_vote_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    """A typing mistake does not become a majority."""
    assert vote_of("Confirm_on_fail") is Vote.CONFIRM_ON_FAIL
    with pytest.raises(SettingsError, match=r"vote='most'(.|\n)*majority, unanimous, confirm-on-fail"):
        vote_of("most")
