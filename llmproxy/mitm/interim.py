"""Interim answers (RFC 9110 15.2: 100 Continue, 102 Processing, 103 Early Hints) are read past: the answer is what comes after them.

mitmproxy takes the first head that an upstream sends for the answer. Recorded, an interim one would leave every client waiting for the
real one, which the provider made and wants paid. Ours reads on to the final head; 101, which ends HTTP on the connection, is final.
"""

from __future__ import annotations

import re

from mitmproxy.proxy import events, layer
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http._http1 import Http1Client

MOST = 64 << 10
"""Bytes of interim heads before an answer; whoever sends more does not mean to answer."""
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r]")
_SHORTEST = len(b"HTTP/1.1 100 ")


class PatientClient(Http1Client):
    """mitmproxy's reader of an upstream's answers, without the interim ones."""

    _passed = 0

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        """Take interim heads off what has arrived, then read the answer's."""
        while isinstance(event, events.DataReceived) and self.request:
            held = bytes(self.buf)
            if len(held) < _SHORTEST and b"\n" not in held:
                return  # not enough to tell
            if self._passed > MOST or not _INTERIM.match(held):
                break
            end = held.find(b"\r\n\r\n") + 4
            if end < 4:
                self._passed += len(event.data)
                return
            self._passed += end
            self.buf = type(self.buf)()
            self.buf += held[end:]
            if end == len(held):
                return
        self._passed = 0
        yield from super().read_headers(event)


def read_past_interim() -> None:
    """Let mitmproxy's HTTP layers read answers so, from the next upstream connection on."""
    http.Http1Client = PatientClient  # type: ignore[attr-defined]  # its name there is private only to type checkers
