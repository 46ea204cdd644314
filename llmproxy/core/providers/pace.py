"""How many calls a provider may get in a while (`--rate openai=60/min`), kept by waiting: no window of that length ever sees more calls go.

    pace = Pace({"openai": "60/min", "*": "5/s"}, clock)
    pace.take("openai")     -> 0.0: go now; 12.5: go in 12.5 s. It is counted at once, so whoever asks next waits for a later moment.

A window that slides, not one that begins anew with each minute: a provider counts from whenever it likes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

from llmproxy.core.providers.table import HTTP_PREFIX
from llmproxy.values import ANY_PROVIDER, calls_and_seconds


class Pace:
    """Counts the calls of each provider that has a rate. One thread at a time."""

    def __init__(self, rates: Mapping[str, str], clock: Callable[[], float], *, since: float = -math.inf) -> None:
        """Count from now on.

        `rates` by provider, as `values.read_rates` makes them. `since`: a moment at which as many calls as may go are taken to have gone,
        since whoever counted before is gone.
        """
        self._rates, self._clock = dict(rates), clock
        self._since = since
        self._went: dict[str, deque[float]] = {}

    def rate(self, provider: str, *, model: bool) -> str:
        """Return the rate that holds for a provider, empty if none does; what is said of all holds for models."""
        named = self._rates.get(provider) or self._rates.get(provider.removeprefix(HTTP_PREFIX))
        return named or (self._rates.get(ANY_PROVIDER, "") if model else "")

    def take(self, provider: str, *, model: bool = True) -> float:
        """Count one call, and return the seconds until it may go."""
        rate = self.rate(provider, model=model)
        if not rate:
            return 0.0
        calls, seconds = calls_and_seconds(rate)
        if provider not in self._went:
            self._went[provider] = deque([self._since] * calls, maxlen=calls)
        went, now = self._went[provider], self._clock()
        at = max(now, went[0] + seconds)
        went.append(at)
        return at - now
