"""What an exchange came to: the record of its call, with tokens and money where they are known."""

from __future__ import annotations

from collections import OrderedDict
from decimal import Decimal
from typing import NamedTuple

from llmproxy.calls import Call
from llmproxy.core.dialects.usage import cost_of
from llmproxy.core.engine.decide import is_perfect
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.queries import summary
from llmproxy.core.store.rows import RowSummary
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Usage, attempt_of
from llmproxy.errors import CassetteError, MissError
from llmproxy.protocol import Decision

REMEMBERED_PRICES = 20_000
"""Interactions; about 1 KB each."""
TEXT = 240
"""Characters of prompt and answer that are told."""


class Priced(NamedTuple):
    """What a recorded call used, and would have cost again."""

    input: int | None
    output: int | None
    cost: Decimal | None
    model: str | None
    asked: str = ""
    answered: str = ""


_UNKNOWN = Priced(None, None, None, None)


class Prices:
    """What recorded calls used; rows never change, so each is read once."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Priced] = OrderedDict()

    def forget(self) -> None:
        """Forget everything; ids are another store's from now on."""
        self._known.clear()

    def of(self, store: Store | None, interaction: int) -> Priced:
        """Return what a recording used and would cost."""
        if (known := self._known.get(interaction)) is not None or store is None:
            return known or _UNKNOWN
        try:
            row = summary(store, interaction)
        except CassetteError:  # damaged or gone since it was served: what it used is unknown
            return _UNKNOWN
        cost = Decimal(str(row.cost_usd)) if row.cost_usd is not None else None
        known = Priced(row.tokens_in, row.tokens_out, cost, row.model, *beginnings(row))
        self._known[interaction] = known
        if len(self._known) > REMEMBERED_PRICES:
            self._known.popitem(last=False)
        return known


def beginnings(row: RowSummary) -> tuple[str, str]:
    """Return the beginning of a recording's last prompt and of its answer."""
    return (row.last_user_text or "")[:TEXT], (row.answer_text or "")[:TEXT]


def call_of(
    exchange: Exchange,
    status: int,
    *,
    target: str,
    seconds: float,
    priced: Priced | None,
    usage: Usage | None,
    lost: bool,
) -> Call:
    """Sum up an exchange that is over.

    `target` is redacted, `seconds` how long it took, `priced` what its recording says (REPLAY), `usage` what the
    provider's answer says.
    """
    decision = exchange.decision or Decision.REFUSE
    bound = exchange.bound.names if exchange.bound is not None and decision is Decision.REPLAY else ()
    cost: Decimal | None = None
    if decision is Decision.FAULT:
        cost = Decimal(0)
    elif exchange.made is not None and exchange.injected is None:
        usage, cost = Usage(input=0, output=0), Decimal(0)
    elif priced is not None:
        usage, cost = Usage(input=priced.input, output=priced.output), priced.cost
    elif usage is not None:
        cost = cost_of(exchange.route.provider.name, exchange.model, usage)
    first, fault = exchange.first_offset, "" if exchange.injected is None else str(exchange.injected.fault)
    return Call(
        decision=decision, method=exchange.method, target=target, status=status, session=exchange.session.name,
        party=exchange.party, provider=exchange.route.provider.name, operation=exchange.operation,
        model=exchange.model or (priced.model if priced else None), channel=exchange.channel, ms=seconds * 1000,
        first_ms=first / 1000 if first is not None else None, input=None if usage is None else usage.input,
        output=None if usage is None else usage.output, cost=cost, key=exchange.key, interaction=exchange.interaction,
        occurrence=exchange.nth or None, nearest=exchange.nearest,
        note=", ".join(filter(None, [f"bound: {', '.join(bound)}" if bound else "", fault, exchange.note])),
        fault=None if exchange.injected is None else exchange.injected.fault.kind.name, bound=bound,
        asked=priced.asked if priced else exchange.asked, answered=priced.answered if priced else exchange.answered,
        attempt=attempt_of(exchange.headers), at=exchange.started_at,
        miss=isinstance(exchange.error, MissError) and not (exchange.repeats or exchange.expected), lost=lost,
        failed=decision is Decision.REPLAY and exchange.slot is not None and not is_perfect(exchange.slot),
        seq=exchange.seq,
    )  # fmt: skip
