"""Auxiliary calls, such as sign-ins: answered by a stub in offline sessions, otherwise forwarded.

They get no key, count neither as hit nor as miss, and are not stored. Lists of models are recorded like any call; if
the cassette has none, a recording of the same request in another cassette answers it (the first test requested it, and
its program cached it), otherwise a stub.
"""

from __future__ import annotations

from typing import override

from llmproxy.calls_and_totals import Call
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.request_identification import build_host_refused_error, refuse_if_unsendable
from llmproxy.core.providers.stubs import METADATA, NOWHERE, RequestAnsweredByStub, Stub, parse_query_and_body
from llmproxy.core.sessions.call_interceptor import MissReason, SessionCallInterceptor
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import find_cassettes_with_key
from llmproxy.core.traffic.interaction import header
from llmproxy.errors import RefusedError
from llmproxy.protocol import Decision

_OTHERS = 20
"""Maximum places of a key that are searched."""


class StubInterceptor(SessionCallInterceptor[Exchange]):
    auxiliary = True

    def __init__(self, parts: EngineParts, session: Session) -> None:
        self._state, self._session = parts.state, session

    def _is_stubbing_allowed(self, stub: Stub | None) -> bool:
        """Return whether a call is not sent. In a session with live channels or a fork, sign-ins are sent."""
        offline = self._session.policy.on_miss is Decision.REFUSE
        return offline and (self._session.leased_cassette is None or (stub is not None and not stub.is_sign_in))

    @override
    def before_key(self, call: Exchange, body: bytes) -> bytes:
        rows = [row for row in call.place.stubs if row.always]
        asked = self._describe_request_for_stubs(call, body) if rows else None
        stub = next((row for row in rows if asked is not None and row.matches_members(asked)), None)
        if stub is None and call.place.in_scope:
            return body
        where = call.route.upstream
        preconnects = where.endswith(NOWHERE) and call.method == "HEAD"
        if stub is not None and asked is not None and (preconnects or self._is_stubbing_allowed(stub)):
            self._answer_with_stub(call, stub, asked)
        elif where.endswith(NOWHERE) or self._is_stubbing_allowed(stub):
            call.mark_refused(build_host_refused_error(where))
        elif where.endswith(METADATA) and header(call.request.headers, "host") not in METADATA:
            msg = "llmproxy: this machine's metadata is not for who asks by base URL; nothing was sent."
            call.mark_refused(RefusedError(msg, hint="In replay it is answered by a dummy; to record: --intercept."))
        else:
            call.decision = Decision.PASS
            call.note = "" if stub is None else f"{stub.name}: not recorded"
            refuse_if_unsendable(call)
        return body

    @override
    def on_miss(self, call: Exchange, why: MissReason, recordings: int) -> bool:
        rows = [row for row in call.place.stubs if not row.always]
        asked = self._describe_request_for_stubs(call, call.request.data) if rows and why is MissReason.NEVER else None
        stub = next((row for row in rows if asked is not None and row.matches_members(asked)), None)
        if stub is None or asked is None or not self._is_stubbing_allowed(stub):
            return False
        return self._answer_from_other_cassette(call, stub) or self._answer_with_stub(call, stub, asked)

    def _answer_from_other_cassette(self, call: Exchange, stub: Stub) -> bool:
        store, key = self._state.stores.current, call.key
        if store is None or key is None or call.method != "GET":
            return False
        for cassette, sample, party in find_cassettes_with_key(store, key, _OTHERS):
            slots = store.find_keyed(cassette, sample, party, key)
            if (slot := next((each for each in slots if each.is_good_answer), None)) is not None:
                call.decision, call.slot = Decision.REPLAY, slot
                call.note = f"this cassette lacks it; recorded in {cassette}, which asked first"
                call.state.put(stub)
                return True
        return False

    def _answer_with_stub(self, call: Exchange, stub: Stub, asked: RequestAnsweredByStub) -> bool:
        if (made := stub.answer(asked)) is None:
            return False
        call.decision, call.answer.made, call.note = Decision.REPLAY, made, f"{stub.name}: {stub.why}"
        call.answer.told = tuple(each for each in made.headers if each[0] == "location")  # redirect to the client
        call.state.put(stub)
        return True

    def _describe_request_for_stubs(self, call: Exchange, body: bytes) -> RequestAnsweredByStub:
        where, place, headers = call.route, call.place, call.request.headers
        host = header(headers, "host") or ""
        by_base_url = bool(place.prefix) or not where.upstream.endswith(f"//{host}")
        origin = f"http://{host}{place.prefix}" if by_base_url else where.upstream
        store, session, models = self._state.stores.current, self._session, tuple[str, ...]()
        if store is not None and where.operation == "models" and where.known:
            rows = store.list_summaries(session.cassette, session.sample)
            names = (row.model for row in rows if row.provider == where.provider.name and row.operation != "models")
            models = tuple(dict.fromkeys(name for name in names if name))
        path, said = where.target.partition("?")[0], parse_query_and_body(where.target, headers, body)
        return RequestAnsweredByStub(path, said, origin, self._state.now(), where.model, models)

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        stub = call.state.get(Stub)
        return record if stub is None else record._replace(stub=stub.name)


class StubFeature(Feature):
    kind = StubInterceptor

    @override
    def create_interceptor(self, session: Session, asked: object) -> StubInterceptor:
        return StubInterceptor(self.parts, session)
