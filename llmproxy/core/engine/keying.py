"""Which request is it: its redacted form, its canonical form, its key, and which answers made the ids that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from llmproxy.core.engine.dispatch import CALLER_HEADER, fingerprint_connectors
from llmproxy.core.engine.state import State
from llmproxy.core.keys.changes import STATE_HEADER, find_change, is_listing, named_things, read_json
from llmproxy.core.keys.normalize import Canonical, KnownRequest, Origin, canonicalize, key_of, named_model
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.encoding import decode
from llmproxy.core.traffic.interaction import Headers, Request, header, without
from llmproxy.protocol import Decision

WORTH_A_THREAD = 1 << 14
"""Bytes of a request that is redacted on a thread: the worst of that size takes 30 ms, and holds up whoever else
asks."""
ROTATING = 8
"""Credentials from which on it is worth knowing what more of them cannot change."""


class Keying:
    """Derives the keys of one engine's requests, and remembers them."""

    def __init__(self, state: State) -> None:
        self._state = state

    def recognise(self, exchange: Exchange, body: bytes) -> tuple[KnownRequest, Canonical | None]:
        """Return what is known of a request, and its canonical form where that had to be made."""
        config = self._state.config
        if config.match_credential and (said := fingerprint_connectors(body, config.store)):
            exchange.request.add(CALLER_HEADER, said)
        digest = self._state.memory.digest(exchange.place.counted, body)
        learned = self._state.redactor.epoch
        if (known := self._state.memory.get(digest, learned)) is not None:
            return known, None
        if learned.count > ROTATING and exchange.request.redacted is None:
            derive = partial(self.canonical, exchange, body)
            canonical, noted = self._state.redactor.run_noting(derive, exchange.place.counted)
        else:
            canonical, noted = self.canonical(exchange, body), False
        model = canonical.model or named_model(canonical)
        known = KnownRequest(key_of(canonical), model, canonical.stream, canonical.refs, canonical.operation, noted)
        self._state.memory.put(digest, known, learned)
        return known, canonical

    def add_state(
        self, exchange: Exchange, body: bytes, known: KnownRequest, seen: Canonical | None
    ) -> tuple[KnownRequest, Canonical | None]:
        """Add what this session changed before of what a request names, and find what the request itself changes."""
        where, changes = exchange.route, exchange.session.position.changes
        tree = read_json(exchange.request.data) if where.changes and known.refs else None
        change = None
        if exchange.place.changes or where.changes:
            change = find_change(where, exchange.method, known.key, known.refs, tree)
        if changes.made:
            names = named_things(where, known.refs, change)
            both, lists = change.both if change else frozenset(), is_listing(where, exchange.method)
            if state := changes.state_of(names, self.made_by(exchange.session), both, lists=lists):
                exchange.request.add(STATE_HEADER, state)
                seen = self.canonical(exchange, body)
                known = replace(known, key=key_of(seen))
        exchange.change = change and change._replace(key=known.key)
        return known, seen

    def is_long(self, exchange: Exchange, body: bytes) -> bool:
        """Return whether a request is better prepared on a thread: its body is large, and was not seen before."""
        let_through = exchange.decision is Decision.PASS and exchange.route.not_llm
        if len(exchange.place.counted) + len(body) < WORTH_A_THREAD or exchange.error is not None or let_through:
            return False
        return (
            self._state.memory.get(self._state.memory.digest(exchange.place.counted, body), self._state.redactor.epoch)
            is None
        )

    def prepare(self, exchange: Exchange, body: bytes) -> None:
        """Take the secrets out of a body before `identify` asks for it; on any thread: a megabyte takes its time."""
        learned, headers = self._state.redactor.epoch.count, own_length(exchange.request.headers, len(body))
        exchange.request.redacted = (learned, self._redact(exchange, body, headers))

    def request(self, exchange: Exchange, body: bytes) -> Request:
        """Return the request as it may be kept: content-encoding undone, secrets gone. Made once, unless more is
        learned.
        """
        learned, received = self._state.redactor.epoch.count, exchange.request
        if received.redacted is not None and received.redacted[0] == learned and body is received.body:
            return received.redacted[1]
        request = self._redact(exchange, body, own_length(received.headers, len(received.data)))
        received.redacted = (learned, request)
        return request

    def _redact(self, exchange: Exchange, body: bytes, headers: Headers) -> Request:
        coding = header(headers, "content-encoding")
        if coding and coding.strip().lower() != "identity":
            try:
                body, headers = (
                    decode(body, coding, self._state.config.max_request),
                    without(headers, "content-encoding"),
                )
            except ValueError as why:
                exchange.note = f"request body is not {coding}: {why}"
        where = exchange.route
        return self._state.redactor.request(
            Request(exchange.method, where.target, headers, body), where.provider.credentials
        )

    def canonical(self, exchange: Exchange, body: bytes) -> Canonical:
        """Return the canonical form of a request: what counts of it."""
        return canonicalize(
            self.request(exchange, body), exchange.route, self._state.config.rules, self.made_by(exchange.session)
        )

    def made_by(self, session: Session) -> Callable[[str], Origin | None]:
        """Return who tells which answer of a session's cassette made an id, stored or still on its way."""
        store, place = self._state.stores.current, session.made_in

        def made_by(name: str) -> Origin | None:
            places = dict.fromkeys((place, session.kept_in)) if store else ()
            found = next((known for each in places if store and (known := store.made_by(*each, name))), None)
            return found or self._state.pending.made_by(place, name)

        return made_by


def own_length(headers: Headers, length: int) -> Headers:
    """Return header fields with a request's own content-length: what is known of a head is shared by all that differ in
    it alone.
    """
    return tuple((name, str(length) if name.lower() == "content-length" else value) for name, value in headers)
