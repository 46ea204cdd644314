"""A session whose agent lives on a recording that is no longer quite its own.

What is overridden in it, and where it parts from its parent.

    requests like the parent's      answered from the parent's recording
    an overridden answer            sent instead of the recorded one
    the first other request         the run *forks*: refused and explained, or (live) sent upstream and recorded in a
                                    child from here on

Until it forks the session is a replay of its parent; from then on it records its child. A child that is replayed later
has the results of tools swapped by what its row in `forks` says (`inherited`), whoever replays it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmproxy.core.dialects.messages import Message
from llmproxy.core.dialects.writing import can_write, write
from llmproxy.core.forks.overrides import Overrides
from llmproxy.core.forks.swap_results import Known, ResultPlace, swap
from llmproxy.core.forks.table import Copy, Fork
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.providers.routing import Route
from llmproxy.core.traffic.interaction import Headers, Interaction, Key, Response, without
from llmproxy.errors import RefusedError

_FAILED = 400
_NAMED = 20
"""Tools that are named in a report."""


class CannotOverride(RefusedError):
    """An answer was to be made by hand for an operation whose answers nobody can write."""

    code = "llmproxy_override"


class Forkable(Protocol):
    """What is used of an exchange."""

    method: str
    operation: str
    headers: Headers
    body: bytes | None
    key: Key | None
    model: str | None
    stream: bool
    note: str
    number: int
    llm_call: int | None
    swapped: bool

    @property
    def route(self) -> Route: ...


@dataclass(slots=True)
class Forking:
    """The state of one such session."""

    overrides: Overrides = field(default_factory=Overrides)
    """All that count: the given ones over the inherited ones."""
    given: Overrides = field(default_factory=Overrides)
    """Those that must match something."""
    parent: tuple[str, int] = ("", 1)
    asked_for: bool = False
    """Somebody opened the session for this; False: it only plays a child whose overrides it inherited."""
    mocks: bool = False
    """Results are swapped in whatever mode: the recording is one with them, and nothing forks from it."""
    live: bool = False
    at: int | None = None
    """Fork with this request of the agent, from 1, even if it is the parent's."""
    child: str | None = None
    """Name of the cassette that is recorded after the fork, reserved."""
    fork: Fork | None = None
    """Where it forked; without a cassette where it stopped there."""
    requests: int = 0
    llm_calls: int = 0
    shared: list[Copy] = field(default_factory=list)
    """What was played before the fork."""
    made: dict[int, Interaction] = field(default_factory=dict)
    """By number of the call in the session: answers made by hand."""
    _used: Counter[str] = field(default_factory=Counter)
    _answered: set[int] = field(default_factory=set)
    _seen: dict[str, None] = field(default_factory=dict)
    _causes: dict[str, None] = field(default_factory=dict)
    _last: tuple[str | None, bool] = (None, False)
    _calls: dict[str, ResultPlace] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    scanned: int = 0
    """Calls of the session whose answers were looked through for ids of tool calls."""

    @property
    def forked(self) -> bool:
        """Whether the child is being recorded."""
        return self.fork is not None and bool(self.fork.cassette)

    def restart(self) -> None:
        """Count from the start again."""
        self.requests = self.llm_calls = 0
        self._last = (None, False)
        if not self.forked:
            self.fork = None
            self.shared.clear()

    # -- a request

    def swap(self, exchange: Forkable, body: bytes, known: Known) -> bytes:
        """Return the body with the overridden results in it, and note what was seen."""
        if not self.overrides.tools:
            return body
        done = swap(body, self.overrides, lambda call: self._calls.get(call) or known(call))
        self._seen.update(dict.fromkeys(done.seen))
        self._calls.update(done.calls)
        for each in done.swaps:
            self._used[each.override.name] += 1
            self._causes[f"the result of {each.place.tool} (call {each.place.nth}) was overridden"] = None
        if done.swaps:
            exchange.body, exchange.swapped = done.body, True
            exchange.headers = without(exchange.headers, "content-encoding")
            exchange.note = f"overridden: {', '.join(dict.fromkeys(each.override.name for each in done.swaps))}"
        return done.body

    def count(self, exchange: Forkable) -> int | None:
        """Count a request of the agent; returns the number of its call of a model, from 0, None if it calls none.

        A retry after a failed answer has the number of what it retries.
        """
        self.requests += 1
        exchange.number = self.requests
        if not can_write(exchange.operation):
            return None
        if self._last != (exchange.key, True):
            self.llm_calls += 1
        self._last = (exchange.key, False)
        exchange.llm_call = self.llm_calls - 1
        return exchange.llm_call

    def on_call_end(self, exchange: Forkable, status: int) -> None:
        """Hear how a call ended."""
        if exchange.llm_call is not None and self._last[0] == exchange.key:
            self._last = (exchange.key, status >= _FAILED or not status)

    def answer(self, exchange: Forkable, number: int | None) -> Response | None:
        """Return the overridden answer of a call, None if it is not overridden.

        Raises:
            CannotOverride: nobody knows how such an answer is written.

        """
        said = None if number is None else self.overrides.answers.get(number)
        if said is None or number is None:
            return None
        if not can_write(exchange.operation):
            raise CannotOverride(f"llmproxy: an answer of {exchange.operation} cannot be overridden.")
        self._answered.add(number)
        self._causes[f"the answer of LLM call {number} was overridden"] = None
        exchange.note = "; ".join(note for note in (exchange.note, f"answer {number} overridden") if note)
        return write(
            exchange.operation,
            exchange.body or b"",
            exchange.route.target,
            exchange.model,
            said,
            stream=exchange.stream,
            call=number,
        )

    def learn(self, said: Message | None) -> None:
        """Note the tool calls of an answer: a later request may name them by id alone."""
        for call in said.tool_calls if said is not None else ():
            self._counts[call.name] += 1
            if call.id:
                self._calls.setdefault(call.id, ResultPlace(call.name, self._counts[call.name], call.arguments))

    def find_call(self, call_id: str) -> ResultPlace | None:
        return self._calls.get(call_id)

    # -- the fork

    def why(self, exchange: Forkable, *, differs: bool) -> str:
        """Describe why a request is where the run forks."""
        if not differs:
            return f"--from {exchange.number}"
        return " and ".join(self._causes) or "the agent asked something else by itself"

    def record_stop(self, exchange: Forkable, miss: ExplainedMiss) -> str:
        """Note that the run stopped at its fork, if it is the first; returns what the client reads. Where an override
        made the fork, nothing is wrong with the recording, so its miss is not explained.
        """
        fork = self._fork(exchange, miss, "", differs=True)
        if self.fork is None:
            self.fork = fork
        number = "N" if exchange.llm_call is None else exchange.llm_call
        where = f"at request {exchange.number} of the agent: {fork.why}"
        return (
            (
                f"llmproxy: the run forks here, {where}."
                if self._causes
                else f"{miss.text}\nThe run forks here, {where}."
            )
            + f"\nGo on with the provider and record the fork: the same command with --live; or say what is answered:"
            f" --override-llm {number}='...'"
        )

    def parts(self, exchange: Forkable, *, hit: bool) -> bool:
        """Return whether the run forks with this request."""
        return self.live and not self.forked and (not hit or exchange.number == self.at)

    def part(self, exchange: Forkable, miss: ExplainedMiss | None, *, now: float) -> Fork:
        """Return the fork that begins with this request, and note it."""
        self.fork = self._fork(exchange, miss, self.child or "", differs=miss is not None, now=now)
        return self.fork

    def _fork(
        self, exchange: Forkable, miss: ExplainedMiss | None, child: str, *, differs: bool, now: float = 0.0
    ) -> Fork:
        near = miss.nearest if miss is not None else None
        return Fork(
            cassette=child, parent=self.parent[0], parent_sample=self.parent[1], step=exchange.number,
            shared=len(self.shared) + len(self.made), why=self.why(exchange, differs=differs),
            path=near.differences[0].path if near is not None and near.differences else None,
            overrides=self.overrides, created_at=now,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for the report of the session."""
        fork = self.fork
        tools = [{**each.to_json(), "used": self._used[each.name]} for each in self.overrides.tools]
        for each, plain in zip(self.overrides.tools, tools, strict=True):
            plain["inherited"] = each not in self.given.tools
        return {
            "tools": tools,
            "answers": [
                {"call": number, "used": number in self._answered} for number in sorted(self.overrides.answers)
            ],
            "seen": list(self._seen)[:_NAMED],
            "requests": self.requests,
            "llm_calls": self.llm_calls,
            "parent": self.parent[0],
            "parent_sample": self.parent[1],
            "fork": None
            if fork is None
            else {"cassette": fork.cassette or None, "step": fork.step, "why": fork.why, "path": fork.path},
        }
