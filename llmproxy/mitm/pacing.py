"""When a call may go to its provider: counted here, or by whoever counts for a whole cluster (`--rate`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from llmproxy.core.providers.failures import Pace
from llmproxy.core.providers.table import channel_of
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.errors import MachineError
from llmproxy.protocol import Channel

log = logging.getLogger(__name__)

ASKING = 60.0
"""Seconds that whoever counts may take to answer: it may be starting anew on another node."""


def pacing(
    rates: Mapping[str, str], asked: str, clock: Callable[[], float]
) -> Callable[[Exchange], Awaitable[float]] | None:
    """Return who says when a call may go; None where no rate was said. `asked`: as `protocol.PACER_VARIABLE` has it."""
    if not rates:
        return None
    pace = Pace(rates, clock)
    said: set[str] = set()

    async def wait_of(exchange: Exchange) -> float:
        """Count a call, and return the seconds to wait. Raises MachineError where nobody counts."""
        where = exchange.route
        provider, model = where.provider.name, channel_of(where.provider.name, exchange.operation) is Channel.LLM
        if where.not_llm or not (rate := pace.rate(provider, model=model)):
            return 0.0
        seconds = await _ask_pacer(asked, provider, model=model) if asked else pace.take(provider, model=model)
        if seconds > 0 and provider not in said:
            said.add(provider)
            log.warning("%s has %s by now: further calls wait, this one %.1f s (--rate)", provider, rate, seconds)
        return seconds

    return wait_of


async def _ask_pacer(whom: str, provider: str, *, model: bool) -> float:
    port, _, secret = whom.partition("/")
    try:
        async with asyncio.timeout(ASKING):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            try:
                writer.write(f"{secret} {int(model)} {provider}\n".encode())
                return float(await reader.readline())
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError) as error:
        raise MachineError(
            f"llmproxy: whoever counts the calls of the cluster does not answer ({type(error).__name__}); the request was not sent.",
            hint="Leave --rate out, or run the test again.",
        ) from error
