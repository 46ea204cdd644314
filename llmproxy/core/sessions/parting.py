"""The steps of `forking` that need more than one session's state: the bytes of a request, the answers so far, the store.

swapped(...)     results of tools are overridden in a request, whatever its coding
part(...)        the run forks: its child is begun in the store, and its session records that from here on
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmproxy.calls import Call
from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.forks.swap_results import ResultPlace
from llmproxy.core.forks.table import make
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.encoding import decode
from llmproxy.core.traffic.interaction import Interaction, header
from llmproxy.errors import RefusedError
from llmproxy.protocol import AGENT, Mode

Told = Callable[[Session, Call], Interaction | None]
"""Gives what was said in a call that has ended."""


def override_results(forking: Forking, exchange: Exchange, body: bytes, *, limit: int, told: Told) -> bytes:
    """Return the body of a request with the results that are overridden; the very bytes that came where none is.

    Raises:
        RefusedError: results are mocked, and the agent is about to say them over a WebSocket, where nobody would swap them.

    """
    if forking.mocks and (header(exchange.headers, "upgrade") or "").lower() == "websocket":
        raise RefusedError(
            "llmproxy: this run mocks results of tools, which is done in requests; over a WebSocket they are not swapped.",
            hint="Let the agent ask its model over HTTP, or take `mock` out of the scenario.",
        )
    coding, plain = header(exchange.headers, "content-encoding"), body
    if coding and coding.strip().lower() != "identity":
        try:
            plain = decode(body, coding, limit)
        except ValueError:
            return body

    def find_place(call_id: str) -> ResultPlace | None:
        """Look for an id in the agent's answers since the last time that one was looked for."""
        calls = exchange.session.calls.after(forking.scanned)
        forking.scanned = exchange.session.calls.arrived
        for call in calls:
            if call.party == AGENT and (found := told(exchange.session, call)) is not None:
                kind = header(found.response.headers, "content-type") or ""
                forking.learn(read_answer(exchange.family, found.operation, kind, found.response.body))
        return forking.find_call(call_id)

    changed = forking.swap(exchange, plain, find_place)
    return changed if exchange.swapped else body


def part(
    forking: Forking,
    exchange: Exchange,
    miss: ExplainedMiss | None,
    *,
    store: Store,
    hide: Callable[[str], str],
    now: float,
) -> None:
    """Begin the child with what its parent and it share, and let the session record it; `hide` redacts, `now` is Unix time.

    It blocks for the length of two short transactions, once in a run.
    """
    session = exchange.session
    fork = forking.part(exchange, miss, now=now)
    session.superseded.update(session.counts)  # what is shared is not replaced when its key comes again
    session.served.update(make(store, replace(fork, overrides=forking.overrides.redact(hide)), forking.shared, now))
    for made in forking.made.values():
        session.served.add(store.add(replace(made, cassette=fork.cassette, sample=1), supersede=False))
    session.cassette, session.sample, session.mode = fork.cassette, 1, Mode.RECORD
    exchange.note = "; ".join(note for note in (exchange.note, f"fork: {fork.cassette}") if note)
