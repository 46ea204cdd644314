"""Connections whose encryption fails: only where HTTPS is intercepted, since by base URL there is none."""

from __future__ import annotations

from llmproxy.core.faults.values import Broken, FaultKind, FaultTarget, Values


def _failure(_call: FaultTarget, _values: Values) -> Broken:
    return Broken(None)


ROWS = (
    FaultKind(
        "tls-failure",
        "the TLS handshake of an intercepted connection fails with an alert",
        "tries again, and says after some attempts that the provider cannot be reached; never goes on without TLS",
        _failure,
        transports=("tls",),
        sweep=None,
    ),
)
