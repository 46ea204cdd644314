"""The values of a run, and how a row is bound to a name."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.entities.items import Looking, all_passed, bind, whose, with_more
from tests.suite.runs import lines, run


def test_without_a_store_every_look_is_an_error() -> None:
    """Nothing about entities passes by there being no entities."""
    made = run()
    look = Looking(adapter=None, scope=made.scope, user=None, clock=lambda: 0, sleep=lambda _: None)
    with pytest.raises(SuiteError, match="no store is configured"):
        _ = look.store


def test_one_row_is_bound() -> None:
    """The whole row, its key as the name's own value."""
    made = run()
    info = made.store.describe("tasks")
    assert bind(made.look, "verify", info, [{"id": 7, "title": "a"}], "$new", overwrite=False) == []
    assert (made.scope.lookup("$new"), made.scope.lookup("$new.title")) == (7, "a")


def test_which_row_is_meant_is_never_guessed() -> None:
    """Several candidates are listed by key, none at all is said, and a name is not taken twice."""
    made = run()
    info = made.store.describe("tasks")
    several = bind(made.look, "verify", info, [{"id": n} for n in range(12)], "$new", overwrite=False)
    assert lines(several)[0].startswith(
        "environment_error verify.as: $new: 12 rows of tasks could be meant (id 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ...)"
    )
    assert "there is no row" in lines(bind(made.look, "verify", info, [], "$new", overwrite=False))[0]
    assert bind(made.look, "verify", info, [{"id": 1}], "$new", overwrite=False) == []
    assert "has a value already" in lines(bind(made.look, "verify", info, [{"id": 2}], "$new", overwrite=False))[0]
    assert bind(made.look, "verify", info, [{"id": 2}], "$new", overwrite=True) == []
    assert made.scope.lookup("$new") == 2


def test_more_is_only_said_of_what_went_wrong() -> None:
    """A passed assertion needs no words."""
    good, bad = Assertion(name="a", status=Status.PASSED), Assertion(name="b", status=Status.FAILED, message="no")
    assert with_more(good, "x") is good
    assert with_more(bad, "x").message == "no (x)"
    assert not all_passed([good, bad])
    made = run()
    assert whose(made.store.describe("tasks"), "anna") == " for the user 'anna' (userId)"
    assert whose(made.store.describe("notes"), "anna") == ""
