"""An account of what the rules of the key take for one: the recordings of a store, and what was served for what.

Within a cassette, sample and party recordings of one key answer each other's requests; `merged` compares them. `served` compares each question
that the journal kept with the recording that answered it. Both give the differences with the reasons of the rules (`keys.audit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from llmproxy.core.keys.audit import KeyDifference, explain
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.store.rederive import derive, route_of
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Request
from llmproxy.errors import CassetteError, RefusedError


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """A recording, and another request that has its key."""

    recording: int
    other: int | None
    """The other recording; None for a question that was served."""
    operation: str
    differences: tuple[KeyDifference, ...]

    @property
    def unexplained(self) -> tuple[KeyDifference, ...]:
        """Those for which no rule gives a reason."""
        return tuple(each for each in self.differences if not each.why)


def find_merged(store: Store, rules: Rules, upstreams: Mapping[str, str]) -> Iterator[AuditedPair]:
    """Yield each recording that has the key of an earlier one of its cassette, sample and party, and differs from it."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row in store.summaries():
        derive(store, row.cassette, row.sample, rules, upstreams)
        key, _ = store.name_of(row.cassette, row.sample, row.id, row.key, row.occurrence)
        groups[row.cassette, row.sample, row.party, key].append(row.id)
    for first, *others in groups.values():
        for other in others:
            if (pair := _compare_pair(store, first, other, rules, upstreams)) is not None and pair.differences:
                yield pair


def _compare_pair(
    store: Store, first: int, other: int, rules: Rules, upstreams: Mapping[str, str]
) -> AuditedPair | None:
    try:
        old, new = store.load(first), store.load(other)
        routes = route_of(old, upstreams), route_of(new, upstreams)
    except (CassetteError, RefusedError):
        return None  # `verify` says what is damaged
    return AuditedPair(first, other, old.operation, tuple(explain(old.request, new.request, routes, rules)))


def compare_served(
    store: Store, asked: Iterable[tuple[int, Request, bool]], rules: Rules, upstreams: Mapping[str, str]
) -> Iterator[AuditedPair]:
    """Yield what each question differed in from its recording; of the journal: interaction, request, whether its body is the same."""
    for id_, said, same_body in asked:
        try:
            old = store.load(id_)
            request = replace(said, body=old.request.body) if same_body else said
            routes = route_of(old, upstreams), route_of(replace(old, request=request), upstreams)
        except (CassetteError, RefusedError):
            continue  # pruned since, or damaged
        yield AuditedPair(id_, None, old.operation, tuple(explain(old.request, request, routes, rules)))
