"""Numbers of recordings, which are those of the store that made them: a node's. Here they become those of this machine's store.

    Step(interactions=(14,), recordings=("v2:..#1@..",)) + {"v2:..#1@..": 3} -> Step(interactions=(3,), ...)

What is not in the store here, or where there is none, has no number: a wrong one would show another recording.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmproxy.errors import LLMProxyError
from llmproxy.report.events import Event, Started, Step
from llmproxy.store_server import server_of

_WHERE = re.compile(r"(?<=interaction )\d+|(?<=interactions )\d+ to \d+")

Known = Callable[[str, int], Mapping[str, int]]
"""Cassette, sample -> what a recording is called in every store, and its number in this one."""


def known_in(store: Path) -> Known:
    def find_numbers(cassette: str, sample: int) -> Mapping[str, int]:
        from llmproxy.trace.observing.wire import reference_of
        from llmproxy.trace.reading.recording import lines_of

        if server_of(store) is None and not store.is_file():
            return {}
        try:
            found = lines_of(store, cassette=cassette, sample=sample)
            return {reference_of(line): int(line["recorded"]["id"]) for line in found}
        except LLMProxyError:
            return {}

    return find_numbers


def renumber_events(events: Sequence[Event], known: Known) -> list[Event]:
    """Return the events of one run with the numbers of this machine's store."""
    begun = next((event for event in events if isinstance(event, Started)), None)
    if begun is None or not any(isinstance(event, Step) and event.interactions for event in events):
        return list(events)
    here = known(begun.cassette, begun.sample)
    return [_step(event, here) if isinstance(event, Step) else event for event in events]


def _step(step: Step, here: Mapping[str, int]) -> Step:
    named = [name for name in step.recordings if name]
    new = {old: here.get(name) for old, name in zip(step.interactions, named, strict=False)}
    numbers = tuple(found for old in step.interactions if (found := new.get(old)) is not None)

    def place(found: re.Match[str]) -> str:
        ids = [new.get(int(text)) for text in found[0].split(" to ")]
        return " to ".join("?" if each is None else str(each) for each in ids)

    said = tuple(replace(each, where=_WHERE.sub(place, each.where)) for each in step.assertions)
    return replace(step, interactions=numbers, assertions=said)
