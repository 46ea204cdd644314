"""The way back: what `story.plain` made of an event becomes the event again, for events that another process saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from llmproxy.report.events import (
    Assertion,
    Completed,
    Criterion,
    Event,
    Finished,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)
from llmproxy.report.sharding import check_shard

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_EVENTS: Mapping[str, type[Event]] = {
    each.__name__.lower(): each for each in (Selected, Started, Message, Step, Verdict, Finished, Completed)
}


_SCALARS: Mapping[str, Callable[[Any], bool]] = {
    "Any": lambda _: True,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST,
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST,
}
"""By the annotation of a field: what a value must be."""
_MOST = 1 << 53
"""Of a number in a report; NaN is not below it either."""
LATEST = 253_402_300_800
"""Unix seconds at which there are no years any more."""


def is_of(value: object, kind: str) -> bool:
    """Tell whether a plain value is of the kind that an annotation names; of what no table names it is."""
    kind, _, optional = kind.partition(" | ")
    if optional and value is None:
        return True
    if kind.startswith("Sequence["):
        return isinstance(value, list | tuple) and all(is_of(each, kind[9:-1]) for each in value)
    if kind.startswith("Mapping["):
        inner = kind.partition(", ")[2][:-1]
        return isinstance(value, dict) and all(
            isinstance(name, str) and is_of(each, inner) for name, each in value.items()
        )
    return kind not in _SCALARS or _SCALARS[kind](value)


def _check_fields[T: DataclassInstance](made: T) -> T:
    """Return what was made if each of its fields holds what is declared. Raises TypeError."""
    for field in fields(made):
        value = getattr(made, field.name)
        right = is_of(value, str(field.type))
        if right and field.name == "at":
            right = 0 <= value < LATEST
        if right and field.name == "cost_usd" and value is not None:
            right = is_amount(value)
        if not right:
            raise TypeError(
                f"`{field.name}` of {type(made).__name__.lower()} is {value!r:.60}, which is no {field.type}"
            )
    return made


def is_amount(text: str) -> bool:
    """Tell whether a text is a number of dollars."""
    try:
        return Decimal(text).is_finite() and abs(Decimal(text)) < _MOST
    except ArithmeticError:
        return False


def revive_event(tree: Mapping[str, Any]) -> Event:
    """Return the event that plain values stand for. Raises KeyError, TypeError or ValueError if they stand for none."""
    said = {name: value for name, value in tree.items() if name != "event"}
    if "status" in said:
        said["status"] = Status(said["status"])
    if "assertions" in said:
        found = [{**each, "status": Status(each["status"])} for each in said["assertions"]]
        said["assertions"] = tuple(_check_fields(Assertion(**each)) for each in found)
    if tree["event"] in {"verdict", "finished"}:
        said["criteria"] = tuple(_check_fields(Criterion(**each)) for each in said.get("criteria", ()))
    if "usage" in said:
        said["usage"] = {party: _check_fields(PartyUse(**use)) for party, use in said["usage"].items()}
    event = _check_fields(_EVENTS[tree["event"]](**said))
    if isinstance(event, Selected) and event.shard is not None:
        check_shard(event.shard)
    return event
