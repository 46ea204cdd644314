"""A recorded cassette read as the wire that it was: what models asked for and read, and what servers of tools got and returned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmproxy.calls import Call
from llmproxy.protocol import Decision
from llmproxy.trace.observing.servers import find_differences, find_misread
from llmproxy.trace.observing.wire import Wire

if TYPE_CHECKING:
    from llmproxy.core.traffic.interaction import Interaction

_MS = 1000


def find_kept_differences(made: Iterable[Interaction]) -> list[str]:
    """Say where servers got something else than models asked for, and where models read something else than servers returned.

    `made`: a cassette's interactions, in order. Empty also where no server or no model was seen, and where an answer of a model cannot be read.
    """
    wire = Wire()
    wire.feed((_call(number, each), each) for number, each in enumerate(made, 1))
    served = wire.read_served()
    if served.unknown or not any(each.chat for each in wire.seen) or wire.step(0).unread:
        return []
    return [*find_differences(wire.tools(), served), *find_misread(wire.tools(), served)]


def _call(number: int, made: Interaction) -> Call:
    chunks = made.response.chunks
    return Call(
        decision=Decision.RECORD,
        status=made.response.status,
        party=made.party,
        operation=made.operation,
        key=made.key,
        interaction=made.id,
        at=made.started_at,
        ms=chunks[-1].offset / _MS if chunks else 0.0,
        occurrence=made.occurrence,
        seq=number,
    )
