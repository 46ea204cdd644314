"""Recording of the outcomes of exchanges: the record of each call, with tokens and cost if known."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from typing import NamedTuple

from llmproxy.core.dialects.usage_and_cost import compute_cost
from llmproxy.core.engine.engine_state import TEXT, EngineState
from llmproxy.core.engine.request_stages import RepeatedMiss
from llmproxy.core.keys.server_object_changes import is_success
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.rows import decode_sql_text
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import CassetteError, LLMProxyError, MissError, remove_prefix
from llmproxy.protocol import Decision
from llmproxy.proxy_calls import Call, SessionlessRefusal

REMEMBERED_PRICES = 20_000
"""Maximum cached interactions; about 1 KB each."""


class CallUsageAndCost(NamedTuple):
    """Usage of a recorded call, and its cost if it were sent again."""

    input: int | None
    output: int | None
    cost: Decimal | None
    model: str | None
    asked: str = ""
    """Beginning of the recording's last prompt."""
    answered: str = ""


_UNKNOWN = CallUsageAndCost(None, None, None, None)


class RecordedCostCache:
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


def build_call(
    exchange: Exchange,
    status: int,
    *,
    target: str,
    seconds: float,
    priced: CallUsageAndCost | None,
    usage: Usage | None,
    lost: bool,
) -> Call:
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
        miss=isinstance(error, MissError) and not isinstance(error, RepeatedMiss), lost=lost,
        failed=decision is Decision.REPLAY and exchange.slot is not None and not exchange.slot.is_good_answer,
        seq=exchange.progress.seq,
    )  # fmt: skip


SHOWN_TARGETS = 1000
"""Maximum targets whose redacted form is cached."""
STRAYS, LONGEST_STRAY = 200, 200
"""Maximum refused requests that are kept, and characters of each target."""


class CallAccounting:
    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.prices = RecordedCostCache()
        self._targets: dict[str, tuple[str, int, bool]] = {}
        self.strays: deque[SessionlessRefusal] = deque(maxlen=STRAYS)
        """The last requests that were refused before a session was found."""

    def record_end(self, exchange: Exchange, status: int, *, usage: Usage | None = None, lost: bool = False) -> Call:
        replayed = exchange.decision is Decision.REPLAY and exchange.kept.interaction is not None
        call = build_call(
            exchange, status, target=self.redact_target(exchange.route.target),
            seconds=self._state.clock() - exchange.progress.arrived,
            priced=self.prices.find(self._state.stores.opened, exchange.kept.interaction or 0) if replayed else None,
            usage=usage, lost=lost,
        )  # fmt: skip
        error = exchange.error
        text = RepeatedMiss.note if isinstance(error, RepeatedMiss) else error.message if error is not None else ""
        if exchange.kept.occurrence:
            self._state.pending.on_call_end(exchange)
        if exchange.change is not None and not is_success(status):
            exchange.session.position.changes.undo_change(exchange.change)
        for each in reversed(exchange.interceptors):
            call = each.on_end(exchange, call)
        self.record_call(exchange.session, call, text)
        return call

    def record_call(self, session: Session, call: Call, text: str = "") -> None:
        """Count the outcome of a call, and keep it; `text` is the text that a refused client got."""
        session.calls.add_ended_call(call, text)
        self._state.journal.record_call(call)

    def redact_target(self, target: str) -> str:
        """Return a request's target, redacted; cached, as few targets repeat often."""
        learned, known = self._state.redactor.epoch, self._targets
        if (seen := known.get(target)) is not None and learned.is_still_valid(seen[1], noted=seen[2]):
            return seen[0]
        if len(known) > SHOWN_TARGETS:
            known.clear()
        text, noted = self._state.redactor.run_and_record_searches(
            partial(self._state.redactor.redact_target, target), target.encode("utf-8", "replace")
        )
        known[target] = text, learned.count, noted
        return text

    def record_sessionless_refusal(self, method: str, target: str, status: int, error: LLMProxyError) -> Call:
        call = Call(
            decision=Decision.REFUSE, method=method, target=self._state.redactor.redact_target(target), status=status,
            note=self._state.redactor.text(error.message), at=self._state.now(),
        )  # fmt: skip
        self._state.journal.record_call(call)
        text = remove_prefix(self._state.redactor.text(str(error))).replace("\n", " ")
        self.strays.append(
            SessionlessRefusal(
                call.at, method[:LONGEST_STRAY], call.target[:LONGEST_STRAY], status, text[: 2 * LONGEST_STRAY]
            )
        )
        return call
