"""What the parts of one engine share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmproxy.core.engine.accounts import Prices
from llmproxy.core.engine.deciding.binding import Binder
from llmproxy.core.engine.storing.stores import Stores
from llmproxy.core.engine.storing.under_way import UnderWay
from llmproxy.core.keys.memory import Memory
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.journal import Journal
from llmproxy.core.sessions.sessions import Sessions
from llmproxy.core.traffic.response_bytes import Plans


@dataclass(slots=True)
class State:
    """Settings, clocks, and what is remembered between requests; each part of an engine takes what it needs."""

    config: Config
    redactor: Redactor
    journal: Journal
    now: Callable[[], float]
    """Unix seconds."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    stores: Stores
    sessions: Sessions
    binder: Binder
    memory: Memory = field(default_factory=Memory)
    plans: Plans = field(default_factory=Plans)
    prices: Prices = field(default_factory=Prices)
    under_way: UnderWay = field(default_factory=UnderWay)

    def forget(self) -> None:
        """Forget what was remembered by id: under the store's name there may be another file meanwhile, whose ids mean other recordings."""
        for each in (self.plans, self.prices, self.binder):
            each.forget()
