"""What a running proxy told of a session's calls, as interactions, exchanges and spans.

    [call or recording, ...] -> [Interaction, ...] -> [Exchange, ...] or [Span, ...]

A call is what `Control.walk` returns, or its JSON form; a recording is the member `recording` of it. Calls without a recording (passed
through, refused, lost) have nothing to read and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmproxy.calls import Call
from llmproxy.core.cassettes.plain import from_json
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT
from llmproxy.trace.reading.exchange import CHAT, OpenedExchange, open_exchange
from llmproxy.trace.reading.history import History
from llmproxy.trace.reading.spans import build
from llmproxy.trace.values.model import Span

Told = Call | Mapping[str, Any]


def interactions(calls: Iterable[Told]) -> list[Interaction]:
    """Return the interactions of calls, in their order. Raises CassetteCorrupt for what no proxy of this version tells."""
    found: list[Interaction] = []
    for number, told in enumerate(calls, 1):
        recording, occurrence = _recording(told)
        if recording is not None:
            made = from_json(recording, number)
            found.append(made if occurrence is None else replace(made, occurrence=occurrence))
    return found


def _recording(told: Told) -> tuple[Mapping[str, Any] | None, int | None]:
    if not isinstance(told, Mapping):
        return told.recording, told.occurrence
    if "llmproxy" in told:
        return told, None
    return told.get("recording"), told.get("occurrence")


def exchanges(calls: Iterable[Told], party: str | None = AGENT) -> Iterator[OpenedExchange]:
    """Give the conversations of calls, opened: asked, answered, tools, times. `party` None takes everybody's."""
    history = History()
    for interaction in interactions(calls):
        if party in (None, interaction.party) and interaction.operation in CHAT:
            yield open_exchange(interaction, history)


def spans(calls: Iterable[Told], party: str | None = AGENT) -> list[Span]:
    """Return the spans of calls; `party` None takes everybody's."""
    return list(build(each for each in interactions(calls) if party in (None, each.party)))


def plain_spans(made: Iterable[Interaction]) -> list[dict[str, Any]]:
    """Return the spans of interactions as plain JSON values."""
    return [span.to_dict() for span in build(made)]
