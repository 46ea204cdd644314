"""Limit on the cost of the requests to models that one proxy's sessions send: `--max-cost`.

From before it is sent until its price is known, a call counts with its maximum cost, so the limit is never exceeded,
even by concurrent calls. A call whose maximum cost is unknown is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, override

from llmproxy.core.dialects.usage_and_cost import MARGIN, compute_maximum_cost
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.engine.stale_recordings import StaleHit
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Decided, Interceptor, Lookup
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import read_interaction_summary
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.errors import RefusedError
from llmproxy.protocol import OFFLINE, Channel, Decision, Mode, Update
from llmproxy.proxy_calls import Call

_FAILED = 400
"""Lowest status of an answer that costs nothing."""


@dataclass(slots=True)
class CostMeter:
    most: Decimal | None
    spent: Decimal = Decimal(0)
    reserved: dict[int, Decimal] = field(default_factory=dict)
    """Maximum cost of open calls, by `id` of the call."""

    def reserve_cost_or_explain(self, call: Exchange, body: bytes, prompt: int) -> str:
        """Reserve the maximum cost of a call with `prompt` tokens. Return an empty text, or why it may not be sent."""
        if self.most is None:
            return ""
        model, tree = call.identity.model, parse_json(body)
        cost = compute_maximum_cost(call.route.provider.name, model, prompt, tree if isinstance(tree, dict) else {})
        if cost is None:
            what = f"what {model or call.operation} costs at the most"
            return f"{what} is not known (max_tokens in the request may tell), and --max-cost ${self.most} was given"
        left = self.most - self.spent - sum(self.reserved.values())
        if cost > left:
            rest = f"{max(left, Decimal(0)):.4f}"
            return f"the next call may cost ${cost:.4f}, and ${rest} are left of --max-cost ${self.most}"
        self.reserved[id(call)] = cost
        return ""

    def on_call_end(self, call: Exchange, record: Call) -> None:
        """Count a call; one with an unknown price counts with its maximum cost."""
        most = self.reserved.pop(id(call), None)
        if most is not None and record.status < _FAILED:
            self.spent += most if record.cost is None else record.cost


class BudgetInterceptor(Interceptor[Exchange]):
    """Refuses calls of models that might exceed the limit; a stale recording is served instead."""

    sees_whole = True

    def __init__(self, parts: EngineParts, spending: CostMeter) -> None:
        self._state, self._keying, self._spending = parts.state, parts.keying, spending

    @override
    def on_decision(self, call: Exchange, found: Lookup, decided: Decided) -> Decided:
        if decided.decision not in {Decision.RECORD, Decision.PASS} or call.channel is not Channel.LLM:
            return decided
        stale, store = call.state.get(StaleHit), self._state.stores.current
        body = self._keying.redact(call, call.request.body or b"").body
        prompt = len(body)  # no token is shorter than a byte
        if stale is not None and store is not None and found.key == call.key:
            tokens = read_interaction_summary(store, stale.recording.id).tokens_in
            prompt = prompt if tokens is None else int(tokens * MARGIN) + 1
        if not (why := self._spending.reserve_cost_or_explain(call, body, prompt)):
            return decided
        if stale is not None:
            return Decided(Decision.REPLAY, stale.recording)
        call.mark_refused(
            RefusedError(f"llmproxy: not asked: {why}.", hint="What is recorded is replayed all the same.")
        )
        return Decided(Decision.REFUSE)

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        self._spending.on_call_end(call, record)
        return record


class BudgetFeature(Feature):
    kind = BudgetInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._spending = CostMeter(parts.state.config.max_cost)

    @property
    def _has_limit(self) -> bool:
        config = self.parts.state.config  # --update changed counts for itself
        return config.max_cost is not None and config.update is not Update.CHANGED

    @override
    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        forking = asked.get("forking")
        asks = asked.get("live") or self.parts.state.config.live or (forking is not None and forking.live)
        if self._has_limit and mode in OFFLINE and asks:
            msg = "llmproxy: --max-cost does not count what live channels and forks ask."
            raise RefusedError(msg, hint="Leave either out.")

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> BudgetInterceptor | None:
        asks = self._has_limit and session.policy.reaches_network
        return BudgetInterceptor(self.parts, self._spending) if asks else None
