"""Which faults can be done to which calls of an undisturbed run: the plan of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.faults import KINDS, SWEEP, BadFaults, FaultKind, FaultRule, FaultTarget as Asked
from llmproxy.core.faults.choosing import covers, is_chosen
from llmproxy.core.faults.recorded import call_of
from llmproxy.did_you_mean import did_you_mean
from llmproxy.protocol import AGENT, Decision
from llmproxy.trace.reading.told import interactions

if TYPE_CHECKING:
    from llmproxy.client.control.values import Call


class Trial(NamedTuple):
    """One fault at one call."""

    kind: FaultKind
    number: int
    """Of the agent's call among those that a kind of this sort meets, from 1 in the order of the undisturbed run; calls of tools apart."""
    key: str
    occurrence: int
    rule: Mapping[str, Any]
    """As a session takes it."""

    @property
    def again(self) -> str:
        """What to type to meet it again."""
        return f"{self.kind.name}@{self.number}"


def is_sweep(asked: str) -> bool:
    """Tell whether ``--faults`` asks for a sweep: ``sweep``, ``sweep:KIND,KIND``."""
    return asked == SWEEP or asked.startswith(f"{SWEEP}:")


def asked_kinds(asked: str) -> list[FaultKind]:
    """Return the kinds of a sweep. Raises BadFaults for one that there is not, or that cannot be done to one call."""
    names = [name.strip() for name in asked.partition(":")[2].split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise BadFaults(
                f"--faults {asked[:80]}: there is no kind {name[:60]!r}{did_you_mean(name, KINDS)}",
                hint="`llmproxy faults` lists the kinds.",
            )
        if KINDS[name].shared or "http" not in KINDS[name].transports:
            raise BadFaults(f"--faults {asked[:80]}: {name} meets a connection, not one call: give it alone.")
    return [KINDS[name] for name in names] or [kind for kind in KINDS.values() if kind.sweep is not None]


def trials_of(calls: Sequence[Call], kinds: Sequence[FaultKind]) -> list[Trial]:
    """Return one trial for each kind and each call that was answered from its recording, and to which the kind can be done."""
    found = list(_find_answered(calls))
    return [
        Trial(kind, number, each.key or "", each.occurrence or 1, _rule(kind, each))
        for kind in kinds
        for number, each, call in _met(kind, found)
        if kind.do(call, kind.defaults | dict(kind.sweep or {})) is not None
    ]


def _find_answered(calls: Sequence[Call]) -> Iterator[tuple[Call, Asked]]:
    """Yield the agent's calls that recordings answered, each also as rules see it."""
    for each in calls:
        made = next(iter(interactions([each])), None)
        if each.party == AGENT and each.decision == Decision.REPLAY and made is not None and each.key:
            yield each, call_of(made)


def _met(kind: FaultKind, calls: Sequence[tuple[Call, Asked]]) -> Iterator[tuple[int, Call, Asked]]:
    """Yield the calls that the kind alone chooses, each once, with the number that ``KIND@N`` means."""
    rule, seen, number = FaultRule(kind), set[tuple[str | None, int | None]](), 0
    for each, call in calls:
        if covers(rule, call) and is_chosen(rule, call):
            number += 1
            if (each.key, each.occurrence) not in seen:
                seen.add((each.key, each.occurrence))
                yield number, each, call


def _rule(kind: FaultKind, call: Call) -> dict[str, Any]:
    return {"kind": kind.name, **(kind.sweep or {}), "recording": call.interaction, "call": 1}
