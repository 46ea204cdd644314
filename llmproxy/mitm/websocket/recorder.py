"""WebSockets on their way through mitmproxy, recorded: the hooks that `Recorder` has beside those of plain HTTP.

mitmproxy relays each message at once and tells us of it; we only write it down, so nothing is delayed. When one side begins to close,
the layer holds the end back until it is stored here, so that no client sees the end of a conversation that was not kept.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from mitmproxy import http

from llmproxy.core.traffic.frames import CUT, SWITCHING
from llmproxy.core.websocket.recording import FrameRecording
from llmproxy.mitm.websocket.upgrade import redact_message

if TYPE_CHECKING:
    from llmproxy.core.sessions.exchange import Exchange
    from llmproxy.mitm.shell import Shell

log = logging.getLogger(__name__)

_EIGHT_BITS = re.compile(r"_max_window_bits\s*=\s*\"?8\b")


def is_upgrade(request: http.Request) -> bool:
    """Tell whether a request asks for a WebSocket."""
    named = {token.strip().lower() for token in request.headers.get("connection", "").split(",")}
    return "upgrade" in named and bool(request.headers.get("upgrade", "").lower() == "websocket")


def prepare_upgrade(request: http.Request) -> None:
    """Offer upstream only what mitmproxy can take apart: permessage-deflate, and not with zlib's impossible window of 8 bits."""
    offers = request.headers.pop("sec-websocket-extensions", "").split(",")
    kept = [
        offer.strip()
        for offer in offers
        if offer.partition(";")[0].strip().lower() == "permessage-deflate" and not _EIGHT_BITS.search(offer)
    ]
    if kept:
        request.headers["sec-websocket-extensions"] = ", ".join(kept)


class SocketHooks:
    """The part of `Recorder` for WebSockets."""

    _shell: Shell

    def _exchange(self, flow: http.HTTPFlow) -> Exchange | None:
        raise NotImplementedError

    def _offset(self, exchange: Exchange) -> int:
        raise NotImplementedError

    async def _commit(self, exchange: Exchange, *, proper: bool) -> None:
        raise NotImplementedError

    def _switch(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """The upstream has switched protocols: write down messages from here on."""
        engine, socket = self._shell.engine, flow.websocket
        if socket is None:
            flow.kill()  # type: ignore[no-untyped-call]
            return
        recording = FrameRecording(lambda data: redact_message(engine, exchange, data), *exchange.recording.seen)
        recording.is_closing = lambda: socket.close_code is not None
        recording.is_breaking = lambda: socket.close_code == CUT
        exchange.recording = recording

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        exchange = self._exchange(flow)
        if exchange is None or flow.websocket is None:
            return
        try:
            message = flow.websocket.messages[-1]
            flow.websocket.messages.clear()  # mitmproxy would keep all of them, hours of audio
            if isinstance(exchange.recording, FrameRecording):
                data = message.text if message.is_text else message.content
                exchange.recording.message(self._offset(exchange), data, client=message.from_client)
        except Exception:  # the message is the client's, come what may
            log.exception("a message of a WebSocket could not be noted")
            exchange.recording.damaged = True

    async def websocket_end(self, flow: http.HTTPFlow) -> None:
        """Store the conversation; its end reaches the client when this returns."""
        exchange, socket = self._exchange(flow), flow.websocket
        if exchange is None or socket is None or not isinstance(recording := exchange.recording, FrameRecording):
            return
        try:
            code, reason = socket.close_code or 0, socket.close_reason or ""
            recording.note_close(self._offset(exchange), int(code), reason, client=bool(socket.closed_by_client))
            await self._commit(exchange, proper=True)
        except Exception as why:
            log.exception("the end of a WebSocket could not be noted")
            self._shell.lose(exchange, f"{type(why).__name__}: {why}")
        finally:
            recording.is_stored = True


def is_unasked_switch(request: http.Request, response: http.Response) -> bool:
    """Tell whether the upstream switches to what nobody asked for, or to what mitmproxy would pass on unseen."""
    upgrade = response.headers.get("upgrade", "").lower()
    return response.status_code == SWITCHING and not (is_upgrade(request) and upgrade == "websocket")
