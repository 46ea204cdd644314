"""Events in the order in which one machine would tell them, whichever run ends first.

A run is handed on as soon as all before it were; a test that is killed leaves everything up to the first run that had not ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.report.events import Completed, Event, Finished, Handler, Selected, Started
from llmproxy.report.functions import tell


class InOrder:
    """Hands events on, run by run."""

    def __init__(self, handlers: Sequence[Handler], order: Sequence[tuple[str, int]]) -> None:
        """Hand them to `handlers`; `order`: scenario and sample of each run."""
        self._handlers, self._order = handlers, list(order)
        self._place: dict[str, tuple[str, int]] = {}
        self._runs: dict[tuple[str, int], list[Event]] = {}
        self._ended: set[tuple[str, int]] = set()
        self._next = 0

    def handle(self, event: Event) -> None:
        if isinstance(event, Selected):
            self._tell([event])
        elif isinstance(event, Completed):
            for place in [*self._order[self._next :], *(each for each in self._runs if each not in self._order)]:
                self._tell(self._runs.pop(place, []))
            self._tell([event])
        else:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Started):
            self._place[event.run_id] = (event.scenario, event.sample)
        place = self._place.get(getattr(event, "run_id", ""))
        if place is None:
            return
        self._runs.setdefault(place, []).append(event)
        if isinstance(event, Finished):
            self._ended.add(place)
        while self._next < len(self._order) and self._order[self._next] in self._ended:
            self._tell(self._runs.pop(self._order[self._next], []))
            self._next += 1

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            tell(self._handlers, event)

    def close(self) -> None:
        """Nothing is kept back after the end."""
