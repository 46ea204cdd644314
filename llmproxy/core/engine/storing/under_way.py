"""Answers that are being recorded: which occurrence each will be, and which ids it made already."""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.core.dialects.conversation import made_ids
from llmproxy.core.keys.normalize import new_ids
from llmproxy.core.keys.walk import Origin
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.reading import RecordingSlot
from llmproxy.protocol import Decision


class UnderWay:
    """Exchanges of one engine that are to be recorded and are not yet over."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], dict[int, Exchange]] = {}
        """By cassette and sample, then by `id`."""

    def reserve(self, exchange: Exchange, slots: Sequence[RecordingSlot]) -> None:
        """Give an answer that will be recorded its occurrence now: ids in it may come back in a request before it is stored."""
        if exchange.decision is not Decision.RECORD:
            return
        session = exchange.session
        beside = self._places.setdefault(exchange.place, {})
        taken = [each.occurrence for each in beside.values() if each.walker == exchange.walker]
        if not session.policy.anew:
            taken += [slot.occurrence for slot in slots]
        exchange.occurrence = exchange.nth if exchange.nth not in taken else max(taken) + 1
        beside[id(exchange)] = exchange

    @property
    def none(self) -> bool:
        return not any(self._places.values())

    def note_end(self, exchange: Exchange) -> None:
        """Hear that an exchange is over, whatever became of it."""
        self._places.get(exchange.place, {}).pop(id(exchange), None)

    def made_by(self, place: tuple[str, int], name: str) -> Origin | None:
        """Return which answer that is not stored yet made an id: a client may use what came in the first chunk before the last one came."""
        for each in self._places.get(place, {}).values():
            so_far = each.recording.so_far if each.key is not None else b""
            if name.encode("utf-8", "surrogatepass") not in so_far:
                continue
            made = new_ids(made_ids(each.family, each.operation, each.recording.kind, so_far), each.refs)
            if each.key is not None and name in made:
                return Origin(each.key, each.occurrence, made.index(name))
        return None
