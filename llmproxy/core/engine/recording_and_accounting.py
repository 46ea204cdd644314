"""Outcomes of calls: providers' answers, stored before their clients see the end, and the record of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import NamedTuple

from llmproxy.calls_and_totals import Call, RequestRefusedWithoutSession
from llmproxy.core.dialects.conversation import list_server_made_ids
from llmproxy.core.dialects.usage_and_cost import compute_cost, read_model_named_in_answer, read_usage
from llmproxy.core.engine.engine_state import TEXT, EngineState
from llmproxy.core.engine.request_identification import KeyDeriver
from llmproxy.core.engine.request_stages import MissOfRetriedRequestError
from llmproxy.core.keys.normalize import list_ids_new_in_response
from llmproxy.core.keys.server_state_in_keys import is_success
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reader import is_complete_replayable_response
from llmproxy.core.store.row_conversion import Described, decode_sql_text, extract_texts_and_cost
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import (
    Interaction,
    Key,
    Request,
    Response,
    Usage,
    header,
    overwrite_existing_header,
)
from llmproxy.errors import (
    CassetteError,
    CassetteNotFound,
    LLMProxyError,
    MissError,
    RecordingError,
    remove_program_prefix,
)
from llmproxy.protocol import AFTER_HEADER, Channel, Decision, ReplayablePolicy

STALE = (
    "not recorded: the provider refused an id that came from a recording; record the cassette anew with --mode record"
)


class RecordingStoreWriter:
    """Writer of one engine's recorded exchanges. All methods block: they are called from a writer's thread."""

    def __init__(self, state: EngineState, keying: KeyDeriver, builder: InteractionFromExchangeBuilder) -> None:
        self._state, self._keying, self._builder = state, keying, builder

    def store_answer(self, exchange: Exchange, *, proper: bool) -> Usage:
        """Store the provider's answer (writer's thread); returns its usage. Raises RecordingError, CassetteError."""
        return self.store_answers([(exchange, proper)])[0]

    def store_answers(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        """Store several answers in one transaction: all or, if this raises, none. Otherwise like `store_answer`."""
        made = [self._build_interaction(exchange, proper=proper) for exchange, proper in ended]
        kept = [(exchange, one) for (exchange, _), one in zip(ended, made, strict=True) if one is not None]
        said = [extract_texts_and_cost(one) for _, one in kept]
        first = [
            exchange.session.claim_superseding(
                exchange.party_and_key, good=is_complete_replayable_response(one.response)
            )
            for exchange, one in kept
        ]
        additions = [
            InteractionToStore(one, supersede, exchange.session.position.failed, exchange.kept.instead, told)
            for (exchange, one), supersede, told in zip(kept, first, said, strict=True)
        ]
        if (store := self._state.stores.opened) is not None and kept:
            try:
                ids = store.add_interactions(additions)
            except BaseException:
                for (exchange, _), supersede in zip(kept, first, strict=True):
                    if supersede:
                        exchange.session.superseded.discard(exchange.party_and_key)
                raise
            for (exchange, one), stored, told in zip(kept, ids, said, strict=True):
                self._notify_stored(exchange, one, stored, told)
        return [Usage() if one is None else one.usage for one in made]

    def _build_interaction(self, exchange: Exchange, *, proper: bool) -> Interaction | None:
        """Return the interaction to store for an exchange, None if nothing is stored. Raises RecordingError."""
        if self._state.stores.opened is None or exchange.key is None or exchange.request.body is None:
            raise RecordingError("the answer ended before the request's body did")
        if exchange.recording.damaged:
            raise RecordingError("a piece of the answer was lost")
        response = exchange.build_recorded_response(proper=proper)
        if 400 <= response.status < 500 and self._request_names_replayed_id(exchange):
            exchange.decision = Decision.PASS
            exchange.note = STALE
            return None
        for each in reversed(exchange.interceptors):
            response = each.before_store(exchange, response)
        response, redacted = self._state.redactor.redact_response(response, exchange.method)
        usage = read_usage(exchange.family, exchange.operation, response.mime_type, response.body, response.headers)
        return self._builder.build(exchange, response, usage, redacted=redacted or exchange.recording.overwritten)

    def _notify_stored(self, exchange: Exchange, made: Interaction, stored: int, described: Described) -> None:
        exchange.kept.interaction, exchange.identity = stored, replace(exchange.identity, model=made.model)
        for each in reversed(exchange.interceptors):
            each.on_stored(exchange, made)
        exchange.session.served.add(stored)
        if not is_complete_replayable_response(made.response):
            exchange.session.position.failed.add(stored)
        # Not from the store: reading it belongs to the event loop, and this is the writer's thread.
        said, replied, _ = described
        exchange.kept.asked, exchange.kept.answered = (said or "")[:TEXT], (replied or "")[:TEXT]
        self._state.sessions.mark_complete_after_late_recording(exchange.session)
        how = made.response.ending
        exchange.note = exchange.note or ("" if how == "complete" else f"incomplete ({how})")

    def _request_names_replayed_id(self, exchange: Exchange) -> bool:
        """Return whether a request names an id from a replayed answer, which the provider may have forgotten."""
        if exchange.session.policy.plays is ReplayablePolicy.NOTHING or not exchange.identity.refs:
            return False
        origins = map(self._keying.build_id_origin_finder(exchange.session), exchange.identity.refs)
        return any(origin is not None and not exchange.session.is_key_newly_recorded(origin.key) for origin in origins)

    def read_usage(self, exchange: Exchange, *, proper: bool) -> Usage:
        if exchange.route.row.not_llm:
            return Usage()
        response = exchange.build_recorded_response(proper=proper)
        for each in reversed(exchange.interceptors) if exchange.answer.withheld else ():
            each.on_withheld_answer(exchange, response)
        return read_usage(exchange.family, exchange.operation, response.mime_type, response.body, response.headers)


class InteractionFromExchangeBuilder:
    def __init__(self, state: EngineState, keying: KeyDeriver) -> None:
        self._state, self._keying = state, keying

    def build(self, exchange: Exchange, response: Response, usage: Usage, *, redacted: bool) -> Interaction:
        """Return an exchange as an interaction; `response` is redacted already."""
        kind, body = response.mime_type, response.body
        request = self._keying.redact(exchange, exchange.request.data)
        if exchange.kept.has_twin:
            request = replace(request, headers=(*request.headers, (AFTER_HEADER, exchange.kept.after or "nothing")))
        made = Interaction(
            provider=exchange.route.provider.name, operation=exchange.operation, key=exchange.key or Key(""),
            request=_restore_upstream_host(exchange.route.upstream, request),
            response=response, started_at=exchange.progress.sent_at,
            cassette=exchange.save_target[0], sample=exchange.save_target[1], party=exchange.party,
            occurrence=exchange.kept.occurrence or exchange.nth, model=self._find_model(exchange, kind, body),
            stream=exchange.identity.stream, upstream=exchange.route.upstream, usage=usage, redacted=redacted,
            rules=self._state.config.rules.rules_digest,
            made_ids=list_ids_new_in_response(
                list_server_made_ids(exchange.family, exchange.operation, kind, body), exchange.identity.refs
            ),
        )  # fmt: skip
        for each in exchange.interceptors:
            made = each.on_interaction(exchange, made)
        return made

    @staticmethod
    def _find_model(exchange: Exchange, kind: str, body: bytes) -> str | None:
        """Return the model's name. Azure's path names a deployment; the answer names the model (and the price)."""
        named = exchange.identity.model
        if exchange.channel is Channel.MCP or (named is not None and exchange.route.provider.name != "azure"):
            return named
        return read_model_named_in_answer(kind, body) or named

    def load_call_interaction(self, session: Session, call: Call) -> Interaction | None:
        """Return the interaction of an ended call; None if there is none, or it was deleted. Raises CassetteCorrupt."""
        for one in session.interceptors:
            if (told := one.find_unstored_call(call.seq)) is not None:
                return told
        if (store := self._state.stores.current) is not None and call.interaction is not None:
            with suppress(CassetteNotFound):
                return store.load(call.interaction)
        return None


def _restore_upstream_host(upstream: str, request: Request) -> Request:
    """Return a request with its upstream's host: the client's names our port, which differs in each run."""
    host = upstream.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if not host or header(request.headers, "host") in (None, host):
        return request
    return replace(request, headers=overwrite_existing_header(request.headers, "host", host))


REMEMBERED_PRICES = 20_000
"""Maximum cached interactions; about 1 KB each."""


class CallUsageAndCost(NamedTuple):
    input: int | None
    output: int | None
    cost: Decimal | None
    model: str | None
    asked: str = ""
    """Beginning of the recording's last prompt."""
    answered: str = ""


_UNKNOWN = CallUsageAndCost(None, None, None, None)


class RecordingUsageAndCostCache:
    """Cache of the usage of recorded calls; rows never change, so each is read once."""

    def __init__(self) -> None:
        self._read = lru_cache(REMEMBERED_PRICES)(_read_stored_usage_and_cost)
        self.forget = self._read.cache_clear
        """Drops everything; ids belong to another store from now on."""

    def find(self, store: Store | None, interaction: int) -> CallUsageAndCost:
        with suppress(CassetteError):  # damaged or gone since it was served: what it used is unknown
            return _UNKNOWN if store is None else self._read(store, interaction)
        return _UNKNOWN


def _read_stored_usage_and_cost(store: Store, interaction: int) -> CallUsageAndCost:
    if (found := store.read_recording_price(interaction)) is None:
        return _UNKNOWN
    tokens_in, tokens_out, cost, *texts = found
    model, asked, answered = (None if text is None else decode_sql_text(text) for text in texts)
    cost = Decimal(str(cost)) if cost is not None else None
    return CallUsageAndCost(tokens_in, tokens_out, cost, model, (asked or "")[:TEXT], (answered or "")[:TEXT])


def build_call_record_from_exchange(
    exchange: Exchange, status: int, *, target: str, seconds: float, priced: CallUsageAndCost | None,
    usage: Usage | None, lost: bool,
) -> Call:  # fmt: skip
    """Return the record of a finished exchange: `target` redacted, `priced` by its recording, `usage` by the answer."""
    decision, kept = exchange.decision or Decision.REFUSE, exchange.kept
    cost: Decimal | None = None
    if exchange.answer.made is not None and exchange.slot is None and decision is Decision.REPLAY:
        usage, cost = Usage(input=0, output=0), Decimal(0)
    elif priced is not None:
        usage, cost = Usage(input=priced.input, output=priced.output), priced.cost
    elif usage is not None:
        cost = compute_cost(exchange.route.provider.name, exchange.identity.model, usage)
    first, error = exchange.recording.first_byte_offset, exchange.error
    return Call(
        decision=decision, method=exchange.method, target=target, status=status, session=exchange.session.name,
        party=exchange.party, provider=exchange.route.provider.name, operation=exchange.operation,
        model=exchange.identity.model or (priced.model if priced else None), channel=exchange.channel,
        ms=seconds * 1000, first_ms=first / 1000 if first is not None else None, cost=cost,
        input=None if usage is None else usage.input, output=None if usage is None else usage.output,
        key=exchange.key, interaction=kept.interaction,
        occurrence=exchange.nth or None, nearest=error.nearest if isinstance(error, MissError) else None,
        note=exchange.note, asked=(priced or kept).asked, answered=(priced or kept).answered,
        attempt=exchange.place.attempt, at=exchange.progress.started_at,
        miss=isinstance(error, MissError) and not isinstance(error, MissOfRetriedRequestError), lost=lost,
        failed=decision is Decision.REPLAY and exchange.slot is not None and not exchange.slot.is_good_answer,
        seq=exchange.progress.seq,
    )  # fmt: skip


SHOWN_TARGETS = 1000
"""Maximum targets whose redacted form is cached."""
STRAYS, LONGEST_STRAY = 200, 200
"""Maximum refused requests that are kept, and characters of each target."""


class CallJournalAndUsageRecorder:
    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.prices = RecordingUsageAndCostCache()
        self._targets: dict[str, tuple[str, int, bool]] = {}
        self.strays: deque[RequestRefusedWithoutSession] = deque(maxlen=STRAYS)
        """The last requests that were refused before a session was found."""

    def record_end(self, exchange: Exchange, status: int, *, usage: Usage | None = None, lost: bool = False) -> Call:
        replayed = exchange.decision is Decision.REPLAY and exchange.kept.interaction is not None
        call = build_call_record_from_exchange(
            exchange, status, target=self.redact_target(exchange.route.target),
            seconds=self._state.clock() - exchange.progress.arrived,
            priced=self.prices.find(self._state.stores.opened, exchange.kept.interaction or 0) if replayed else None,
            usage=usage, lost=lost,
        )  # fmt: skip
        error = exchange.error
        text = "" if error is None else error.message
        if isinstance(error, MissOfRetriedRequestError):
            text = error.note
        if exchange.kept.occurrence:
            self._state.pending.on_call_end(exchange)
        if exchange.change is not None and not is_success(status):
            exchange.session.position.changes.undo_change(exchange.change)
        for each in reversed(exchange.interceptors):
            call = each.on_end(exchange, call)
        self.record_call(exchange.session, call, text)
        return call

    def record_call(self, session: Session, call: Call, text: str = "") -> None:
        session.calls.add_ended_call(call, text)
        self._state.journal.record_call(call)

    def redact_target(self, target: str) -> str:
        learned, known = self._state.redactor.epoch, self._targets
        if (seen := known.get(target)) is not None and learned.is_still_valid(seen[1], noted=seen[2]):
            return seen[0]
        if len(known) > SHOWN_TARGETS:
            known.clear()
        redact = partial(self._state.redactor.redact_target, target)
        text, noted = self._state.redactor.run_and_record_searches(redact, target.encode("utf-8", "replace"))
        known[target] = text, learned.count, noted
        return text

    def record_sessionless_refusal(self, method: str, target: str, status: int, error: LLMProxyError) -> Call:
        call = Call(
            decision=Decision.REFUSE, method=method, target=self._state.redactor.redact_target(target), status=status,
            note=self._state.redactor.text(error.message), at=self._state.now(),
        )  # fmt: skip
        self._state.journal.record_call(call)
        text = remove_program_prefix(self._state.redactor.text(str(error))).replace("\n", " ")
        asked = method[:LONGEST_STRAY], call.target[:LONGEST_STRAY]
        self.strays.append(RequestRefusedWithoutSession(call.at, *asked, status, text[: 2 * LONGEST_STRAY]))
        return call
