"""How findings combine."""

from __future__ import annotations

import itertools

import pytest

from llmproxy.suite.matchers.registry import (
    Match,
    MatcherOutcomeKind,
    choose_eq_or_ref_matcher,
    combine_alternative_matches,
    combine_required_matches,
)
from llmproxy.suite.matchers.variable_references import CaseVariables

HOLDS, FAILS, UNFIT, MISTYPED, UNCLEAR = MatcherOutcomeKind


@pytest.mark.parametrize(("left", "right"), list(itertools.product(MatcherOutcomeKind, repeat=2)))
def test_all_and_any_over_every_pair(left: MatcherOutcomeKind, right: MatcherOutcomeKind) -> None:
    """All: a clear failure decides, else what is unclear. Any: what holds decides, else what is unclear. In any order."""
    pair = {left, right}
    every = next(each for each in (FAILS, UNCLEAR, UNFIT, MISTYPED, HOLDS) if each in pair)
    some = next(each for each in (HOLDS, UNCLEAR, UNFIT, MISTYPED, FAILS) if each in pair)
    assert combine_required_matches([Match(left), Match(right)]).outcome is every
    assert combine_alternative_matches([Match(left), Match(right)]).outcome is some


def test_reasons_are_kept() -> None:
    """Of what decided; a list of branches tells each."""
    assert combine_required_matches([Match(FAILS, "a"), Match(HOLDS), Match(FAILS, "b")]).message == "a; b"
    assert combine_alternative_matches([Match(FAILS, "a"), Match(FAILS, "b")]).message == "a; and b"
    assert combine_required_matches([Match(HOLDS, note="n"), Match(HOLDS)]).note == "n"


def test_a_text_that_is_a_reference_compares_like_one() -> None:
    """`$task.id` and `{ref: $task.id}` are the same; prices and the environment are plain texts."""
    scope = CaseVariables({"a": 1})
    assert [
        choose_eq_or_ref_matcher(each, scope) for each in ("$a", "${a}", "$b.c", "$b", "$a!", "$5", "${env:A}", 1)
    ] == [
        *["ref"] * 3,
        *["eq"] * 5,
    ]
