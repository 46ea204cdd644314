"""What a running proxy told of a session's calls, as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from llmproxy.protocol import AGENT
from llmproxy.trace.files.cassette import Cassette, from_interactions
from llmproxy.trace.reading.told import Told, interactions


def cassette(calls: Iterable[Told], name: str, party: str | None = AGENT) -> Cassette:
    """Return calls as a trace, at the times when they arrived in this run."""
    given = [(told, _at(told)) for told in calls]
    made = [(each, at) for told, at in given for each in interactions([told])]
    placed = (replace(each, started_at=at) if at else each for each, at in made)
    return from_interactions(placed, name, party=party)


def _at(told: Told) -> float:
    at = told.get("at") if isinstance(told, Mapping) else getattr(told, "at", None)
    return float(at or 0)
