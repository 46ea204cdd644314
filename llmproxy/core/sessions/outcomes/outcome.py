"""What became of each request, and what it all comes to.

The engine's shell makes one :class:`Outcome` per request when its answer has ended, and hands it to a :class:`Reporter`
and to :class:`Totals`, which adds up the :class:`Summary` of a run. Money and tokens count as *not spent* when an answer
came from a recording; a price that nobody knows is counted as unknown, never as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from llmproxy.core.traffic.interaction import Key, Usage
from llmproxy.protocol import AGENT, DEFAULT_SESSION, Channel, Decision, Mode

_UNKNOWN = Usage()
SERVED_FAILURE = "a recorded failure"
"""How the note of an outcome begins whose answer was served although it had failed, or was cut, when it was recorded."""


class Outcome(NamedTuple):
    """What became of one request. One is made for every request: a tuple costs a quarter of a frozen dataclass."""

    decision: Decision
    method: str
    target: str
    """Path and query as the provider would see them, redacted."""
    status: int
    """HTTP status that the client got; 0 if the connection ended before one was sent."""
    session: str = DEFAULT_SESSION
    party: str = AGENT
    provider: str = ""
    operation: str = ""
    model: str | None = None
    ms: float = 0.0
    """Milliseconds from the request's arrival to the end of the answer."""
    first_ms: float | None = None
    """Milliseconds to the first byte of the answer's body."""
    usage: Usage = _UNKNOWN
    cost: Decimal | None = None
    """US dollars that the provider asks for these tokens; None when its price or the usage is unknown."""
    key: Key | None = None
    """None where no key was derived: the control API, refused framing, a body over the limit."""
    interaction: int | None = None
    """Row that was served or written."""
    occurrence: int | None = None
    nearest: int | None = None
    """After a miss: the row of the recording that is nearest to what was asked."""
    note: str = ""
    """A few words where the line alone would mislead: ``incomplete``, ``not recorded: disk full``, ``miss``."""
    attempt: int | None = None
    """How often its client had sent the request before, as it says itself; None if it does not."""
    bound: tuple[str, ...] = ()
    """Of a bound hit: the names of the circumstances and slots whose values differ from the recording's."""
    asked: str = ""
    """Beginning of the last prompt, redacted; of a hit as it was recorded. Empty where it is not known."""
    answered: str = ""
    """Beginning of the answer, likewise; the tools that it calls where it says nothing."""
    at: float = 0.0
    """Unix time of arrival, seconds."""
    miss: bool = False
    """Whether the request was looked up and not found. It is refused, or in `auto` and `once` recorded."""
    lost: bool = False
    """Whether the answer should have been recorded and could not be."""
    seq: int = 0
    """Number of the call in its session, from 1 in order of arrival; 0 for what belongs to none."""
    fault: str = ""
    """Kind of the fault on purpose that struck it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStarted:
    """What a proxy says when it can serve."""

    url: str
    """Where it listens, ``http://127.0.0.1:8080``."""
    mode: Mode
    store: str
    cassette: str
    upstreams: tuple[tuple[str, str, object], ...] = ()
    """Providers that are not where their table says: name, base URL, who set it."""
    live: tuple[Channel, ...] = ()
    """Channels that go to their real providers or tools although the mode is replay."""
    ca: str = ""
    """Certificate of the authority that signs what intercepted clients see; empty where nothing is intercepted."""
    ca_bundle: str = ""
    """The same together with everything else that is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run comes to."""

    hits: int = 0
    bound: int = 0
    """Hits of which something was bound: not byte for byte what was recorded."""
    bound_names: tuple[str, ...] = ()
    """What was bound in them, sorted."""
    misses: int = 0
    """Requests that were refused because they were never recorded."""
    recorded: int = 0
    passed: int = 0
    refused: int = 0
    """Requests that were refused for another reason than a miss: host, size, framing."""
    unused: int | None = None
    """Recordings of the sessions' cassettes that nobody asked for; None when it is not known."""
    failed: int = 0
    """Answers that should have been recorded and were lost."""
    tokens_in: int = 0
    """Prompt tokens of the calls that were replayed."""
    tokens_out: int = 0
    cost_not_spent: Decimal | None = None
    """US dollars that the replayed calls would have cost; None when no price of them is known."""
    unpriced: int = 0
    """Replayed calls of a model whose price is unknown: `cost_not_spent` lacks them."""
    served_failures: int = 0
    """Hits whose answer had failed, or was cut, when it was recorded."""
    faults: int = 0
    """Calls that a fault on purpose struck."""
    sessions: int = 0
    duration: float = 0.0
    """Seconds."""

    @property
    def requests(self) -> int:
        """Requests that came, whatever became of them."""
        return self.hits + self.misses + self.recorded + self.passed + self.refused + self.failed + self.faults

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values, which :meth:`of` reads; money as text, so that nothing of it is lost."""
        cost = self.cost_not_spent
        return {**asdict(self), "cost_not_spent": None if cost is None else str(cost)}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Summary:
        """Read the JSON form. Raises KeyError, TypeError, ArithmeticError for what is none."""
        cost, names = value["cost_not_spent"], value["bound_names"]
        return cls(**{**value, "bound_names": tuple(names), "cost_not_spent": None if cost is None else Decimal(cost)})


class Reporter(Protocol):
    """Whoever wants to know what a proxy does: the console, a collector in a test. Never raises; must not block."""

    def hear_start(self, info: ProxyStarted) -> None: ...

    def outcome(self, outcome: Outcome) -> None:
        """Hear what became of a request."""

    def note(self, text: str) -> None:
        """Hear of something that belongs to no single request, in one line."""

    def hear_summary(self, summary: Summary) -> None:
        """Hear what the run came to."""


@dataclass(slots=True)
class Totals:
    """Adds up outcomes. Not safe for several threads: it belongs to whoever reports."""

    hits: int = 0
    misses: int = 0
    recorded: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal | None = None
    unpriced: int = 0
    served_failures: int = 0
    faults: int = 0
    bound: int = 0
    bound_names: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        self.sessions.add(outcome.session)
        self.failed += outcome.lost
        if outcome.decision is Decision.REPLAY:
            self.hits += 1
            self.served_failures += outcome.note.startswith(SERVED_FAILURE)
            if outcome.bound:
                self.bound += 1
                self.bound_names.update(outcome.bound)
            usage, cost = outcome.usage, outcome.cost
            self.tokens_in += usage.input or 0
            self.tokens_out += usage.output or 0
            if cost is not None:
                self.cost = cost if self.cost is None else self.cost + cost
            elif was_paid_for(outcome):
                self.unpriced += 1
        elif outcome.decision is Decision.RECORD:
            self.recorded += outcome.interaction is not None
        elif outcome.fault:
            self.faults += 1
        elif outcome.decision is Decision.PASS:
            self.passed += 1
        elif outcome.miss:
            self.misses += 1
        else:
            self.refused += 1

    def summary(self, *, duration: float, unused: int | None = None) -> Summary:
        """Return the sum so far; `duration` in seconds."""
        return Summary(
            hits=self.hits,
            bound=self.bound,
            bound_names=tuple(sorted(self.bound_names)),
            misses=self.misses,
            recorded=self.recorded,
            passed=self.passed,
            refused=self.refused,
            unused=unused,
            failed=self.failed,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cost_not_spent=self.cost,
            unpriced=self.unpriced,
            served_failures=self.served_failures,
            faults=self.faults,
            sessions=len(self.sessions),
            duration=duration,
        )


def was_paid_for(outcome: Outcome) -> bool:
    """Tell whether a recorded answer had cost something: listing models and failures are free."""
    return outcome.usage != _UNKNOWN or (
        outcome.model is not None and outcome.method == "POST" and outcome.status < 400
    )
