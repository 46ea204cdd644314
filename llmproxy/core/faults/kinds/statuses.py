"""Refusals that a client may try again after: each in its provider's own body and header fields."""

from __future__ import annotations

from llmproxy.core.faults.values import Break, Broken, FaultKind, FaultTarget, Parameter, Values
from llmproxy.core.providers.failures import REASONS, RepeatedRequest, write_failure
from llmproxy.core.traffic.interaction import Chunk, Response
from llmproxy.protocol import Channel


def status(number: int) -> Break:
    def do(call: FaultTarget, values: Values) -> Broken:
        headers, body = write_failure(call.family, number, RepeatedRequest(call.model, values.get("retry_after", 0)))
        return Broken(Response(number, REASONS[number], headers, (Chunk(0, body),)))

    return do


_WAIT = Parameter("retry_after", 1, "seconds that the answer asks to wait")
_AGAIN = "tries again after a pause that grows, and says after some attempts that the provider failed"
_ALL = tuple(Channel)
_BOTH = ("http", "websocket")

ROWS = (
    FaultKind(
        "http-429",
        "429, a rate limit with retry-after",
        "waits as long as retry-after says, then tries again",
        status(429),
        (_WAIT,),
        channels=_ALL,
        transports=_BOTH,
    ),
    FaultKind("http-500", "500, the provider's internal error", _AGAIN, status(500), channels=_ALL, transports=_BOTH),
    FaultKind("http-502", "502, a gateway's HTML page", _AGAIN, status(502), channels=_ALL, transports=_BOTH),
    FaultKind(
        "http-503", "503, the service is unavailable", _AGAIN, status(503), channels=_ALL, transports=_BOTH, sweep=None
    ),
    FaultKind(
        "http-529", "529, the provider is overloaded", _AGAIN, status(529), channels=_ALL, transports=_BOTH, sweep=None
    ),
)
