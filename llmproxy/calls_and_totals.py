"""Records of the calls through a proxy, and the one counter that adds them up.

Money and tokens of a replayed call are saved, those of a call to the provider are spent. An unknown price or usage is
counted as unknown, never as 0. A call to the provider counts as live even if it failed; it counts as recorded only when
it is in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Self, cast

from llmproxy.amount_formatting import format_count, name_some, sum_known
from llmproxy.errors import Exit, UpstreamError
from llmproxy.protocol import AGENT, DEFAULT_SESSION, Channel, Decision

KEPT_MISSES = 20
_TOLD = (
    "seq", "at", "ms", "first_ms", "party", "status", "miss", "key", "occurrence", "provider", "operation", "model",
    "interaction", "attempt", "fault",
)  # fmt: skip
"""Fields of a call that its JSON form contains unchanged."""


class Call(NamedTuple):
    """One ended call. A tuple costs a quarter of a frozen dataclass; `fields_without_timing` drops the last fields."""

    decision: Decision
    method: str = ""
    target: str = ""
    """Path and query as the provider would receive them, redacted."""
    status: int = 0
    """HTTP status sent to the client; 0 if the connection ended before."""
    session: str = DEFAULT_SESSION
    party: str = AGENT
    """``agent``, ``user``, ``judge``, ``judge.2``."""
    provider: str = ""
    operation: str = ""
    model: str | None = None
    channel: Channel = Channel.LLM
    """Kind of the called service: a model, an MCP server or another service."""
    input: int | None = None
    """Prompt tokens; None if unknown."""
    output: int | None = None
    """Generated tokens; None if unknown."""
    cost: Decimal | None = None
    """US dollars by the provider's price list; None if the price or the usage is unknown."""
    key: str | None = None
    """None if no key was derived: the control API, refused framing, a body over the limit."""
    interaction: int | None = None
    """Interaction id that was replayed or recorded."""
    nearest: int | None = None
    note: str = ""
    """A few words that qualify the line: ``incomplete``, ``not recorded: disk full``; the reason of a refusal."""
    attempt: int | None = None
    """Number of the client's earlier attempts by its own header; None without one."""
    bound: tuple[str, ...] = ()
    """Of a bound hit: the names of the variables and volatile fields whose values differ from the recording's."""
    carried: tuple[str, ...] = ()
    """Names of the accepted changes of a carried answer."""
    stale: bool = False
    """Whether it is a hit on a recording older than `--max-age`."""
    stub: str = ""
    """Name of the stub (`core.providers.stubs`) that answered an auxiliary call without a recording."""
    asked: str = ""
    """Beginning of the last prompt, redacted; of a hit, as recorded. Empty if unknown."""
    answered: str = ""
    """Beginning of the answer, likewise; its tool calls if it has no text."""
    miss: bool = False
    """Whether the lookup found no recording. The request is refused, or recorded in `auto` and `once`."""
    lost: bool = False
    failed: bool = False
    """Whether a hit's recorded answer is a failure or cut."""
    dealt: bool = False
    """Whether a concurrent equal request got another answer, so that only the order of arrival decided."""
    fault: str | None = None
    """Kind of the injected fault; None without one."""
    recording: Mapping[str, Any] | None = None
    """Request and answer as a line of the JSON-lines export, if the proxy was asked for it (`trace.reading`)."""
    at: float = 0.0
    """Unix time of arrival, seconds."""
    ms: float = 0.0
    """Milliseconds from the request's arrival to the end of the answer."""
    first_ms: float | None = None
    """Milliseconds to the first byte of the answer's body."""
    occurrence: int | None = None
    """Number of this request among those of its key in the session, from 1."""
    seq: int = 0
    """Number of the call in its session, from 1 in order of arrival; 0 outside of sessions."""

    def __repr__(self) -> str:
        """Show fields that differ from their defaults, without the long recording."""
        named = [(name, value) for name, value in zip(self._fields, self, strict=True) if name != "recording"]
        shown = [f"{name}={value!r}" for name, value in named if value != self._field_defaults.get(name, "")]
        return f"Call({', '.join(shown)})"

    @property
    def fields_without_timing(self) -> tuple[Any, ...]:
        return self[:-5]

    @property
    def unreached(self) -> bool:
        """Whether the provider could not be reached, or closed before answering; `note` has the reason."""
        return self.decision == Decision.REFUSE and self.status == UpstreamError.status and not self.miss

    @property
    def would_be_billed(self) -> bool:
        """Whether the provider bills such a call: failures and lists of models are free."""
        used = self.input is not None or self.output is not None
        return used or (self.model is not None and self.method == "POST" and self.status < 400)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _TOLD},
            "decision": self.decision.value,
            "note": self.note,
            **{name: list(names) for name in ("bound", "carried") if (names := getattr(self, name))},
            **{name: value for name in ("stale", "stub") if (value := getattr(self, name))},
            "channel": self.channel.value,
            "recording": self.recording,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the JSON form; members missing from a proxy of another version are unknown."""
        given: dict[str, Any] = {name: value.get(name) for name in _TOLD}
        given |= {name: float(given[name] or 0) for name in ("at", "ms")}
        given |= {name: int(given[name] or 0) for name in ("seq", "status")}
        given |= {name: str(value.get(name) or "") for name in ("party", "note", "provider", "operation", "stub")}
        said, channel = str(value.get("decision") or ""), str(value.get("channel") or "")
        given["decision"] = Decision(said) if said in Decision else cast("Decision", said)
        given["channel"] = Channel(channel) if channel in Channel else Channel.LLM
        given |= {told: tuple(str(name) for name in value.get(told) or ()) for told in ("bound", "carried")}
        return cls(
            **given
            | {"miss": bool(given["miss"]), "stale": bool(value.get("stale")), "recording": value.get("recording")}
        )


@dataclass(slots=True)
class UsageSums:
    calls: int = 0
    input: int | None = None
    """Prompt tokens; None while no call's are known."""
    output: int | None = None
    cost: Decimal | None = None
    """US dollars; None while no price is known."""
    unpriced: int = 0
    """Calls with unknown price or usage, which `cost` lacks. Free calls are not among them."""

    @property
    def whole_cost(self) -> Decimal | None:
        return None if self.unpriced else self.cost

    def add(self, call: Call) -> None:
        self.calls += 1
        self._add_known(call)
        self.unpriced += call.cost is None and call.would_be_billed

    def merge(self, other: UsageSums) -> None:
        self.calls += other.calls
        self._add_known(other)
        self.unpriced += other.unpriced

    def _add_known(self, other: Call | UsageSums) -> None:
        for name in ("input", "output", "cost"):
            if (more := getattr(other, name)) is not None:
                known = getattr(self, name)
                setattr(self, name, more if known is None else known + more)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; money is a number, so that clients can compare it."""
        return asdict(self) | {"cost": None if self.cost is None else float(self.cost)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        calls, unpriced = (int(value.get(name) or 0) for name in ("calls", "unpriced"))
        return cls(calls, value.get("input"), value.get("output"), _read_money(value.get("cost")), unpriced)


_COUNTS = (
    "hits", "misses", "bound", "recorded", "passed", "refused", "failed", "served_failures", "dealt", "injected",
    "live_calls", "carried", "stale", "stubs",
)  # fmt: skip
_NAMES = ("bound_names", "carried_names", "stub_names")


@dataclass(slots=True, kw_only=True)
class Totals:
    """Totals of calls. Not thread-safe."""

    RARE: ClassVar = (
        "served_failures", "dealt", "injected", "carried", "stale", "stubs", "carried_names", "stub_names",
    )  # fmt: skip
    """Members of the JSON form that are absent if there is nothing to count."""

    hits: int = 0
    """Calls answered from the cassette."""
    misses: int = 0
    """Requests refused because they were never recorded."""
    bound: int = 0
    """Hits with bound values: the recording in this run's values, not byte for byte."""
    bound_names: tuple[str, ...] = ()
    """Names of the bound variables and fields."""
    carried: int = 0
    """Hits on recordings whose requests have changed: neither exact nor bound."""
    carried_names: tuple[str, ...] = ()
    """Names of the accepted changes."""
    stale: int = 0
    """Hits on recordings older than `--max-age`."""
    stubs: int = 0
    """Auxiliary calls, such as sign-ins, answered without a recording: neither hits nor misses."""
    stub_names: tuple[str, ...] = ()
    """Kinds of these stubs."""
    recorded: int = 0
    """Calls forwarded, and now in the store."""
    passed: int = 0
    """Calls forwarded, not recorded."""
    refused: int = 0
    """Requests refused for another reason than a miss: host, size, framing."""
    failed: int = 0
    """Answers that could not be recorded."""
    served_failures: int = 0
    """Hits whose recorded answer is a failure or cut."""
    dealt: int = 0
    """Hits of concurrent equal requests with different answers, assigned in order of arrival."""
    injected: int = 0
    """Calls with an injected fault."""
    live_calls: int = 0
    """Calls sent to their provider."""
    saved: UsageSums = field(default_factory=UsageSums)
    spent: UsageSums = field(default_factory=UsageSums)
    parties: dict[str, UsageSums] = field(default_factory=dict)
    """Saved and spent by party: `agent`, or the value of a request's x-llmproxy-party (`user`, `judge`, `judge.2`)."""
    miss_texts: list[str] = field(default_factory=list)
    """Texts that clients got for the first misses: the nearest recording, and its differences."""

    def add(self, call: Call, miss_text: str = "") -> None:
        """Count a call; `miss_text` is the text that the client of a miss got."""
        self.failed += call.lost
        if call.stub:
            self.stubs += 1
            self.stub_names = _sorted_union(self.stub_names, (call.stub,))
            return
        if call.decision is Decision.REFUSE:
            self.misses += call.miss
            self.refused += not call.miss
            if miss_text and len(self.miss_texts) < KEPT_MISSES:
                self.miss_texts.append(miss_text)
            return
        self.injected += bool(call.fault)
        if call.decision is Decision.FAULT:
            return
        if call.decision is Decision.REPLAY:
            self.hits += 1
            self.served_failures += call.failed
            self.dealt += call.dealt
            if call.bound:
                self.bound += 1
                self.bound_names = _sorted_union(self.bound_names, call.bound)
            if call.carried:
                self.carried += 1
                self.carried_names = _sorted_union(self.carried_names, call.carried)
            self.stale += call.stale
            self.saved.add(call)
        else:
            self.live_calls += 1
            self.passed += call.decision is Decision.PASS and not call.fault
            self.recorded += call.decision is Decision.RECORD and call.interaction is not None and not call.lost
            self.spent.add(call)
        self.parties.setdefault(call.party, UsageSums()).add(call)

    def merge(self, other: Totals) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _NAMES:
            setattr(self, name, _sorted_union(getattr(self, name), getattr(other, name)))
        self.saved.merge(other.saved)
        self.spent.merge(other.spent)
        for party, use in other.parties.items():
            self.parties.setdefault(party, UsageSums()).merge(use)
        self.miss_texts += other.miss_texts

    @property
    def calls(self) -> int:
        return self.hits + self.misses + self.recorded + self.passed + self.refused + self.failed + self.injected

    @property
    def unpriced(self) -> int:
        return sum(use.unpriced for use in self.parties.values())

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in _COUNTS} | {name: list(getattr(self, name)) for name in _NAMES}
        return {
            **{name: count for name, count in counts.items() if count or name not in self.RARE},
            "tokens": {
                name: sum_known(getattr(use, name) for use in self.parties.values()) if self.parties else 0
                for name in ("input", "output")
            },
            "cost_not_spent": self.saved.to_json()["cost"],
            "cost_spent": self.spent.to_json()["cost"],
            "unpriced": self.unpriced,
            "unpriced_live": self.spent.unpriced,
            "parties": {name: self.parties[name].to_json() for name in sorted(self.parties)},
            "miss_texts": list(self.miss_texts),
        }

    @staticmethod
    def parse_fields(value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the JSON form by name; missing members are left out."""
        return {
            **{name: int(value.get(name) or 0) for name in _COUNTS},
            **{names: tuple(map(str, value.get(names) or ())) for names in _NAMES},
            "saved": UsageSums.from_json(value["saved"])
            if "saved" in value
            else UsageSums(cost=_read_money(value.get("cost_not_spent"))),
            "spent": UsageSums(
                cost=_read_money(value.get("cost_spent")), unpriced=int(value.get("unpriced_live") or 0)
            ),
            "parties": {name: UsageSums.from_json(each) for name, each in (value.get("parties") or {}).items()},
            "miss_texts": [str(text) for text in value.get("miss_texts") or ()],
        }


@dataclass(frozen=True, slots=True)
class UnusedRecording:
    id: int
    operation: str
    model: str | None
    text: str | None
    """The last user text in it."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A request refused because it was never recorded."""

    at: float
    """Unix time, seconds."""
    session: str
    text: str
    record: str = ""
    """The command that records it, if nothing is recorded at all."""
    unbound: str = ""
    """Reason why no recording fits with bound values; in a trial, why it taught nothing."""
    key: str = ""
    """Key of the request."""
    starts: Mapping[str, str] = field(default_factory=dict)
    """Commands in `text` that start a proxy by hand, by mode."""
    numbers_only: bool = False
    """Whether only numbers differ from the nearest recording."""
    to_model: bool = False
    """Whether the model got the miss as a tool result, so that the run continued."""


class RequestRefusedWithoutSession(NamedTuple):
    """A request that was refused before a session was found."""

    at: float
    """Unix seconds."""
    method: str
    target: str
    """As requested; redacted and shortened, like all fields."""
    status: int
    text: str
    """Reason, and the option that would allow it."""


def _sorted_union(names: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*names, *more}))


def describe_replay_hits(totals: Totals, shown: Callable[[str], str] = str) -> str:
    """Return ``38 hits (2 bound: date; 3 carried under system-3f2a)``; `shown` formats names for the output."""
    bound = f"{totals.bound:,} bound: {shown(', '.join(sorted(totals.bound_names)))}" if totals.bound else ""
    carried = f"{totals.carried:,} carried under {shown(name_some(totals.carried_names))}" if totals.carried else ""
    stale = f"{totals.stale:,} older than its max age" if totals.stale else ""
    how = "; ".join(filter(None, [bound, carried, stale]))
    return format_count(totals.hits, "hit") + (f" ({how})" if how else "")


def describe_stubbed_calls(totals: Totals) -> str:
    """Return ``2 without a recording (google-oauth, models)``; empty if there is none."""
    return f"{totals.stubs:,} without a recording ({', '.join(totals.stub_names)})" if totals.stubs else ""


def describe_replayed_failures(totals: Totals, again: str = "--mode auto") -> str:
    """Describe hits on recorded failures, and the option `again` that requests them anew; empty if there are none."""
    what = format_count(totals.served_failures, "answer")
    return f"{what} had failed or been cut when recorded: {again} asks again" if totals.served_failures else ""


def find_strict_violations(
    totals: Totals, unused: int | None, *, used: bool, fail_on_miss: bool, strict: bool
) -> tuple[str, ...]:
    """Return the reasons why a run does not prove what its options require; empty if there are none.

    `fail_on_miss`: nothing was refused as unrecorded, and the proxy was `used`. `strict`: in addition, every recording
    was used (`unused` counts the others; None if unknown), and every hit was exact.
    """
    if not (fail_on_miss or strict):
        return ()
    none = "no request came but what was refused" if totals.refused else "no request came"
    doubts = ["" if used else none, format_count(totals.misses, "miss", "misses") if totals.misses else ""]
    if strict:
        known = f"{format_count(unused, 'recording')} unused" if unused else ""
        doubts.append("nothing is known of unused recordings" if unused is None else known)
        bound = format_count(totals.bound, "hit was", "hits were")
        doubts.append(f"{bound} bound, not exact" if totals.bound else "")
        carried = format_count(totals.carried, "hit was", "hits were")
        doubts.append(f"{carried} carried under {name_some(totals.carried_names)}" if totals.carried else "")
    return tuple(filter(None, doubts))


def find_fail_on_exit_code(totals: Totals, *, carried: bool, stale: bool) -> tuple[Exit, str] | None:
    """Return exit code and reason of an option that a run violated; `carried`, `stale`: options set."""
    if carried and totals.carried:
        return Exit.CARRIED, format_exit_code_reason(Exit.CARRIED, "--fail-on-carried", describe_replay_hits(totals))
    if stale and totals.stale:
        return Exit.STALE, format_exit_code_reason(Exit.STALE, "--fail-on-stale", describe_replay_hits(totals))
    return None


def format_exit_code_reason(code: Exit, option: str, *reasons: str) -> str:
    """Return ``exit code 4 because of --fail-on-miss: 1 miss``."""
    return f"exit code {code} because of {option}: {', '.join(reasons)}"


def _read_money(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None


KEPT = 5000
"""Maximum calls kept; about 400 bytes each."""


class RecentProxyCallLog:
    """Log of the last calls by number, for one thread."""

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[Call] = deque(maxlen=KEPT)

    def record(self, call: Call) -> None:
        self.count += 1
        self._last.append(call)

    def since(self, number: int, most: int) -> list[tuple[int, Call]]:
        """Return the calls after number `number` with their numbers; at most the last `most`."""
        count = min(self.count - number, most, len(self._last)) if number < self.count else 0
        return list(enumerate(islice(self._last, len(self._last) - count, None), self.count - count + 1))
