"""The way back: what `story.plain` made of an event becomes the event again, for events that another process saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

__all__ = ["revived"]

_EVENTS: Mapping[str, type[Event]] = {
    each.__name__.lower(): each for each in (Selected, Started, Message, Step, Verdict, Finished, Completed)
}


def revived(tree: Mapping[str, Any]) -> Event:
    """Return the event that plain values stand for. Raises KeyError or TypeError if they stand for none."""
    fields = {name: value for name, value in tree.items() if name != "event"}
    if "status" in fields:
        fields["status"] = Status(fields["status"])
    if "assertions" in fields:
        found = [{**each, "status": Status(each["status"])} for each in fields["assertions"]]
        fields["assertions"] = tuple(Assertion(**each) for each in found)
    if tree["event"] in {"verdict", "finished"}:
        fields["criteria"] = tuple(Criterion(**each) for each in fields.get("criteria", ()))
    if "usage" in fields:
        fields["usage"] = {party: PartyUse(**use) for party, use in fields["usage"].items()}
    return _EVENTS[tree["event"]](**fields)
