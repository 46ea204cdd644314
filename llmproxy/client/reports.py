"""What a proxy tells over its control API, as values: of itself, of a session, of each call; and sums of them, in a line.

Read leniently, since proxy and client may be of different versions: a newer proxy may say more, an older one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from llmproxy.amounts import dollars, format_count
from llmproxy.core.providers.table import channel_of
from llmproxy.errors import UpstreamError, unsign_text
from llmproxy.late import late
from llmproxy.protocol import AGENT, OFFLINE, Channel, Decision

if TYPE_CHECKING:
    from llmproxy.core.forks.mocks import Unmocked


_NUMBERS = (
    "sample", "hits", "bound", "misses", "recorded", "passed", "refused", "failed", "arrived", "live_calls", "unpriced",
    "served_failures", "struck",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Health:
    """What a proxy says of itself."""

    version: str
    mode: str
    ca: str | None = None
    """Path of the certificate (PEM) of its authority; None if it does not intercept."""


@dataclass(frozen=True, slots=True)
class Unused:
    """A recording that nobody asked for."""

    id: int
    operation: str
    model: str | None
    text: str | None
    """The last thing that the user says in it."""


@dataclass(frozen=True, slots=True)
class Party:
    """What one party (agent, user, judge) used."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a session comes to."""

    name: str
    cassette: str
    sample: int = 1
    mode: str = ""
    hits: int = 0
    bound: int = 0
    """Hits of which something was bound: the recording in this run's words, not byte for byte."""
    bound_names: tuple[str, ...] = ()
    """What was bound in them."""
    misses: int = 0
    recorded: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    """Answers that should have been recorded and were lost."""
    served_failures: int = 0
    """Hits whose answer had failed, or was cut, when it was recorded."""
    struck: int = 0
    """Calls that a fault on purpose struck."""
    arrived: int = 0
    """Number of the last call that arrived, ended or not: where :meth:`Control.walk` can go on."""
    live_calls: int = 0
    unpriced: int = 0
    """Calls of a model whose price nobody knows."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_not_spent: Decimal | None = None
    """US dollars; None when no price is known."""
    cost_spent: Decimal | None = None
    unused: tuple[Unused, ...] | None = None
    """None when it is not known."""
    parties: Mapping[str, Party] = field(default_factory=dict)
    miss_texts: tuple[str, ...] = ()
    overrides: Mapping[str, Any] | None = None
    """What was overridden and where the run forked, as the proxy says it; None for a session without."""
    live: Mapping[str, Any] | None = None
    """Which channels went live, in which cassette that is kept and what could not be answered, as the proxy says it; None for a session without."""
    faults: Mapping[str, Any] | None = None
    """The faults on purpose and how often each struck, as the proxy says it; None for a session without."""
    further: tuple[Call, ...] | None = None
    """Calls after the one that a session was closed with; None where nobody asked, or a proxy of an earlier version does not say."""

    @property
    def offline(self) -> bool:
        """Whether no model is asked, so that no key is needed."""
        return self.mode in OFFLINE and "llm" not in (self.live or {}).get("channels", ())

    @property
    def unstruck(self) -> tuple[str, ...]:
        """Why rules of its faults struck nothing that were to strike whatever chance says; each in a line."""
        return find_unstruck(self.faults or {})

    @property
    def unmocked(self) -> Unmocked | None:
        """The error of mocks of tools that changed nothing; None where each did."""
        from llmproxy.core.forks.mocks import find_unmocked

        return find_unmocked(self.overrides)

    @property
    def calls(self) -> int:
        """Requests of all kinds that arrived."""
        return self.hits + self.misses + self.recorded + self.passed + self.refused + self.failed + self.struck

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Report:
        """Read the JSON form."""
        tokens, unused = value.get("tokens") or {}, value.get("unused")
        return cls(
            name=str(value.get("name", "")),
            cassette=str(value.get("cassette", "")),
            mode=str(value.get("mode", "")),
            tokens_in=int(tokens.get("input") or 0),
            tokens_out=int(tokens.get("output") or 0),
            cost_not_spent=_money(value.get("cost_not_spent")),
            cost_spent=_money(value.get("cost_spent")),
            unused=None if unused is None else tuple(_read_unused(each) for each in unused),
            overrides=value.get("overrides"),
            faults=value.get("faults"),
            live=value.get("live"),
            parties={name: _party(each) for name, each in (value.get("parties") or {}).items()},
            bound_names=tuple(str(name) for name in value.get("bound_names") or ()),
            miss_texts=tuple(str(text) for text in value.get("miss_texts") or ()),
            further=None if value.get("calls") is None else tuple(Call.of(each) for each in value["calls"]),
            **{name: int(value.get(name) or 0) for name in _NUMBERS},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which :meth:`of` reads."""
        return {
            "name": self.name,
            "cassette": self.cassette,
            "mode": self.mode,
            **{name: getattr(self, name) for name in _NUMBERS},
            "tokens": {"input": self.tokens_in, "output": self.tokens_out},
            "cost_not_spent": _number(self.cost_not_spent),
            "cost_spent": _number(self.cost_spent),
            "unused": None if self.unused is None else [asdict(row) for row in self.unused],
            "parties": {name: asdict(each) | {"cost": _number(each.cost)} for name, each in self.parties.items()},
            "bound_names": list(self.bound_names),
            "miss_texts": list(self.miss_texts),
            "overrides": self.overrides,
            **({} if self.live is None else {"live": self.live}),
            **({} if self.faults is None else {"faults": self.faults}),
        }


@dataclass(frozen=True, slots=True)
class Miss:
    """One request that was refused because it was never recorded."""

    at: float
    session: str
    text: str
    record: str = ""
    """The command that records it, where nothing is recorded at all."""
    unbound: str = ""
    """Why no recording fits with what is bound; on trial, why it taught nothing."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One request that was refused before it belonged to a session."""

    at: float
    method: str
    target: str
    text: str
    """Why, and what would allow it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One exchange that a session made: the agent's or another party's."""

    seq: int
    """From 1, in order of arrival since the session was opened."""
    at: float
    """Unix time of arrival, seconds."""
    ms: float
    """Milliseconds from arrival to the end of the answer."""
    first_ms: float | None
    party: str
    """``agent``, ``user``, ``judge``, ``judge.2``."""
    decision: str
    """``REPLAY``, ``RECORD``, ``PASS``, ``REFUSE``, ``FAULT``."""
    status: int
    """What the client got; 0 if the connection ended before."""
    miss: bool
    """It was refused because it was never recorded; `note` says what is nearest."""
    note: str
    key: str | None
    occurrence: int | None
    provider: str
    operation: str
    model: str | None
    interaction: int | None
    """Its row in the store."""
    attempt: int | None = None
    """How often its client had sent the request before, as it says itself; None if it does not."""
    fault: str | None = None
    """Kind of the fault on purpose that struck it; None for nearly every call."""
    recording: dict[str, Any] | None = field(default=None, repr=False)
    """Request and answer, as a line of the JSON-lines export; None where nothing is recorded. `llmproxy.trace.reading.told` reads it."""

    @property
    def is_of_tool(self) -> bool:
        """Whether it was made to a server of tools, in MCP."""
        return channel_of(self.provider, self.operation) is Channel.MCP

    @property
    def unreached(self) -> bool:
        """Whether its provider could not be reached, or broke off before it answered; `note` says which and why."""
        return self.decision == Decision.REFUSE and self.status == UpstreamError.status and not self.miss

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Call:
        """Read the JSON form; what an older proxy does not say is unknown."""
        given: dict[str, Any] = {name: value.get(name) for name in cls.__dataclass_fields__}
        given |= {name: float(given[name] or 0) for name in ("at", "ms")}
        given |= {name: int(given[name] or 0) for name in ("seq", "status")}
        given |= {name: str(given[name] or "") for name in ("party", "decision", "note", "provider", "operation")}
        return cls(**given | {"miss": bool(given["miss"])})


def find_unstruck(faults: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why rules struck nothing that no probability could spare, of what a proxy says of a session's faults."""
    rows = faults.get("faults") or ()
    return tuple(str(row["idle"]) for row in rows if row.get("idle") and row.get("probability", 1) == 1)


def never_reached(calls: Iterable[Call]) -> str:
    """Return which provider the agent could not reach and why, of calls in order; empty if none, or if a retry was answered.

    A call has no key if nobody was there before its body had arrived: any later answer of that provider counts as its retry's.
    """
    lost: dict[str, str] = {}
    for call in calls:
        if call.party not in (AGENT, ""):
            continue
        place = f"{call.provider} {call.operation}"
        if call.unreached:
            asked = call.key or place
            lost.pop(asked, None)
            lost[asked] = unsign_text(call.note)
        else:
            lost.pop(call.key or place, None)
            lost.pop(place, None)
    return next(reversed(lost.values()), "")


def _money(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None


def _number(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def _party(value: Mapping[str, Any]) -> Party:
    calls, given, said = (int(value.get(name) or 0) for name in ("calls", "input", "output"))
    return Party(calls, given, said, _money(value.get("cost")))


def _read_unused(value: Mapping[str, Any]) -> Unused:
    return Unused(int(value.get("id") or 0), str(value.get("operation") or ""), value.get("model"), value.get("text"))


LONGEST = 300
"""Characters of a miss's first line that are shown."""
SHOWN = 5
"""Misses that are shown by name."""
_UNSEEN = late(r"[^\x20-\x7e\xa0-\U0010ffff]")


def add(reports: Iterable[Report]) -> Report:
    """Add reports up; tokens and money of all, unused recordings one after the other."""
    found = list(reports)
    unused = [row for report in found for row in report.unused or ()]
    return Report(
        name="",
        cassette="",
        hits=sum(each.hits for each in found),
        bound=sum(each.bound for each in found),
        bound_names=tuple(sorted({name for each in found for name in each.bound_names})),
        misses=sum(each.misses for each in found),
        recorded=sum(each.recorded for each in found),
        passed=sum(each.passed for each in found),
        refused=sum(each.refused for each in found),
        failed=sum(each.failed for each in found),
        served_failures=sum(each.served_failures for each in found),
        struck=sum(each.struck for each in found),
        live_calls=sum(each.live_calls for each in found),
        unpriced=sum(each.unpriced for each in found),
        tokens_in=sum(each.tokens_in for each in found),
        tokens_out=sum(each.tokens_out for each in found),
        cost_not_spent=_sum(each.cost_not_spent for each in found),
        cost_spent=_sum(each.cost_spent for each in found),
        unused=tuple(unused),
    )


def _sum(costs: Iterable[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if known else None


def one_line(report: Report) -> str:
    """Return ``3 hits, 1 miss, 0 recorded; $0.0012 not spent``."""
    bound = f" ({report.bound:,} bound: {', '.join(report.bound_names)})" if report.bound else ""
    counts = [
        format_count(report.hits, "hit") + bound,
        format_count(report.misses, "miss", "misses"),
        f"{report.recorded} recorded",
    ]
    more = {
        "passed": report.passed,
        "refused": report.refused,
        "lost": report.failed,
        "served although recorded as failed": report.served_failures,
        "unused": len(report.unused or ()),
    }
    counts += [f"{number} {word}" for word, number in more.items() if number]
    counts += [f"{format_count(report.struck, 'fault')} on purpose"] if report.struck else []
    money = []
    if report.cost_not_spent is not None:
        money.append(f"{dollars(report.cost_not_spent)} not spent")
    if report.cost_spent is not None:
        money.append(f"{dollars(report.cost_spent)} spent")
    if report.unpriced and report.calls:
        money.append(f"({format_count(report.unpriced, 'call')} of unknown price)")
    return "; ".join(filter(None, [", ".join(counts), " ".join(money)]))


def first_lines(texts: Sequence[str], prefix: str = "  ") -> list[str]:
    """Return the first line of each miss, equal ones once with their number; at most a handful."""
    firsts: dict[str, int] = {}
    for text in texts:
        first = brief(text)
        firsts[first] = firsts.get(first, 0) + 1
    lines = [f"{prefix}{text}" + (f" ({number} times)" if number > 1 else "") for text, number in firsts.items()]
    more = [f"{prefix}... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more


def brief(text: str) -> str:
    """Return a miss's first sentence on one line, fit for a terminal."""
    lines = text.strip().splitlines() or [""]
    first = lines[0] if not lines[0].endswith(":") or len(lines) == 1 else f"{lines[0]} {lines[1].strip()}"
    shown = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", unsign_text(first))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
