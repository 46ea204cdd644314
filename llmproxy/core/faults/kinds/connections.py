"""Connections that do not come to be, or break."""

from __future__ import annotations

from llmproxy.core.faults.values import Broken, FaultKind, FaultTarget, Parameter, Values
from llmproxy.protocol import Channel


def _refuse_connection(_call: FaultTarget, values: Values) -> Broken:
    return Broken(None, reset=True, shut=values["seconds"])


def _reset(_call: FaultTarget, _values: Values) -> Broken:
    return Broken(None, reset=True)


_AGAIN = "tries again on a new connection, and says after some attempts that the provider cannot be reached"
_ALL = tuple(Channel)
_BOTH = ("http", "websocket")

ROWS = (
    FaultKind(
        "refused",
        "connection refused: this connection is reset, and the port takes no new one for `seconds`",
        _AGAIN,
        _refuse_connection,
        (Parameter("seconds", 1, "seconds for which the port is closed, to everybody", 0.01, 60),),
        channels=_ALL,
        transports=_BOTH,
        shared=True,
        sweep=None,
    ),
    FaultKind("reset", "the connection is reset before any answer", _AGAIN, _reset, channels=_ALL, transports=_BOTH),
)
