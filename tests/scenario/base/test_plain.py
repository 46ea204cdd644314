"""Dataclasses with the few methods of pydantic that programs call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, get_type_hints

import pytest
from pydantic import BaseModel

from llmproxy.report.events import PartyUse, Status
from llmproxy.scenario import (
    AgentInput,
    AgentRole,
    ModelConfig,
    ScenarioConfig,
    ScenarioResult,
    ScenarioState,
)
from llmproxy.scenario.base.plain import Plain, names_of, to_plain


@dataclass(kw_only=True)
class Thing(Plain):
    """Something with everything."""

    kind: ClassVar[str] = "no field"
    name: str = "x"
    inner: Any = None
    _secret: str = field(default="s", repr=False)


class Model(BaseModel):
    """A pydantic object."""

    a: int = 1


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (Thing(inner=Thing(inner=2)), {"name": "x", "inner": {"name": "x", "inner": 2}}),
        (AgentRole.USER, "User"),
        ((1, [AgentRole.USER]), [1, ["User"]]),
        ({"k": Model()}, {"k": {"a": 1}}),
        (PartyUse(calls=2), {"calls": 2, "input_tokens": None, "output_tokens": None, "cost_usd": None}),
        (Model, Model),
        (PartyUse, PartyUse),
    ],
)
def test_dumps_are_plain_data(value: object, want: object) -> None:
    """Private fields and class variables are no part of it."""
    assert to_plain(value) == want


def test_a_dump_can_leave_things_out() -> None:
    """By name, or what is None; keywords that only pydantic knows change nothing."""
    assert Thing().model_dump(exclude={"name"}, mode="json") == {"inner": None}
    assert Thing().model_dump(exclude_none=True) == {"name": "x"}
    assert names_of(Thing()) == ["name", "inner"]


def test_json_says_everything_somehow() -> None:
    """What JSON cannot say becomes a text."""
    assert Thing(name="ü", inner={1}).model_dump_json() == '{"name": "ü", "inner": "{1}"}'


def test_a_copy_can_change_and_the_original_stays() -> None:
    """Shallow, private fields and all."""
    thing = Thing(inner=[1])
    thing._secret = "kept"
    made = thing.model_copy(update={"name": "y"})
    assert (made.name, thing.name, made._secret) == ("y", "x", "kept")
    assert made.inner is thing.inner


def test_what_has_its_default_can_be_left_out() -> None:
    """Nobody remembers what was set: `exclude_unset` and `exclude_defaults` say the same."""
    thing = Thing(inner=1)
    assert thing.model_dump(exclude_unset=True) == thing.model_dump(exclude_defaults=True) == {"inner": 1}
    assert thing.model_dump(include={"name"}) == {"name": "x"}


def test_a_deep_copy_shares_nothing_but_what_is_private() -> None:
    """A shallow one shares what it holds."""
    thing = Thing(inner=[1])
    assert thing.model_copy().inner is thing.inner
    deep = thing.model_copy(deep=True, update={"name": "y"})
    assert (deep.inner, deep.name, thing.name) == ([1], "y", "x")
    assert deep.inner is not thing.inner


def test_one_is_made_of_a_mapping() -> None:
    """As `model_dump` gives it; members that nobody knows are left out."""
    made = Thing.model_validate({"name": "n", "what": 1})
    assert made == Thing(name="n")
    assert Thing.model_validate(made) is made
    state = ScenarioResult.model_validate({"success": True, "messages": []})
    assert state.status is Status.PASSED


@pytest.mark.parametrize(
    ("value", "words"), [({}, "ScenarioResult: missing success, messages"), ("x", "a mapping is wanted, not str")]
)
def test_what_is_no_such_value_is_refused(value: object, words: str) -> None:
    """With what is missing."""
    with pytest.raises(ValueError, match=words):
        ScenarioResult.model_validate(value)


@pytest.mark.parametrize("kind", [AgentInput, ScenarioState, ScenarioResult, ScenarioConfig, ModelConfig])
def test_type_hints_can_be_read(kind: type) -> None:
    """Frameworks ask for them."""
    assert get_type_hints(kind)
