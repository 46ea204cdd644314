"""Dataclasses with the few methods of pydantic that programs call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from llmproxy.report.events import PartyUse
from llmproxy.scenario import AgentRole
from llmproxy.scenario.values.plain import Plain, dumped, names_of


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
    assert dumped(value) == want


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
