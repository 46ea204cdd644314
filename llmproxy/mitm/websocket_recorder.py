"""WebSockets: checks of upgrades, and recording of messages relayed by mitmproxy.

mitmproxy relays each message at once and notifies us. When one side begins to close, the layer holds the end back until
the conversation is stored, so that no client sees the end of an unstored one.
"""

from __future__ import annotations

import logging
import re
from itertools import pairwise

from mitmproxy import http
from wsproto.events import BytesMessage, Event, TextMessage

from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Request, header
from llmproxy.core.traffic.websocket_frames import CUT, SWITCHING
from llmproxy.core.ws_replay import FrameRecorder
from llmproxy.errors import MissError, RefusedError
from llmproxy.mitm.http1_parser import Head
from llmproxy.mitm.proxy_context import ProxyContext

PIECE = 1 << 20
"""Maximum bytes of a frame that we send; longer messages are fragmented, for clients with a limit on frames."""
_KEY_MARK = "openai-insecure-api-key."


class UpgradeRequired(RefusedError):
    """A refused upgrade: at 426 clients such as Codex use HTTP at once; others cost seconds of reconnects."""

    code = "llmproxy_websocket"
    status = 426


class UpgradeMissed(MissError):
    status = 426


def raise_if_invalid_upgrade(head: Head) -> None:
    """Check a WebSocket upgrade. Raises RefusedError: it is invalid."""
    version, key = header(head.headers, "sec-websocket-version"), header(head.headers, "sec-websocket-key")
    if head.method != "GET" or head.http10 or head.length != 0 or version != "13" or not key:
        msg = f"llmproxy: this is no upgrade to a WebSocket (RFC 6455 section 4.1): {head.method}, version {version}."
        raise RefusedError(msg)


def find_api_key_in_subprotocols(head: Head) -> str | None:
    """Return the API key that a browser client puts into the subprotocols, as it cannot set headers."""
    names = map(str.strip, (header(head.headers, "sec-websocket-protocol") or "").split(","))
    return next((name.removeprefix(_KEY_MARK) for name in names if name.startswith(_KEY_MARK)), None)


def redact_message(engine: Engine, exchange: Exchange, data: str | bytes) -> str | bytes:
    """Redact a client's message like a request's body: its own credential becomes the placeholder for any caller's."""
    plain, route = data.encode() if isinstance(data, str) else data, exchange.route
    request = Request("POST", route.target, exchange.request.headers, plain)
    body = engine.redactor.request(request, route.provider.credentials).body
    return body.decode() if isinstance(data, str) else body


def split_into_frame_events(data: str | bytes) -> list[Event]:
    marks = [*range(0, len(data), PIECE), len(data)] if data else [0, 0]
    if isinstance(data, str):
        return [TextMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]
    return [BytesMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]


def join_message_parts(parts: list[str | bytes]) -> str | bytes:
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else b"".join(bytes(part) for part in parts if not isinstance(part, str))


log = logging.getLogger(__name__)

_EIGHT_BITS = re.compile(r"_max_window_bits\s*=\s*\"?8\b")


def is_upgrade(request: http.Request) -> bool:
    named = {token.strip().lower() for token in request.headers.get("connection", "").split(",")}
    return "upgrade" in named and bool(request.headers.get("upgrade", "").lower() == "websocket")


def limit_offered_extensions(request: http.Request) -> None:
    """Offer upstream only extensions that mitmproxy can decode: permessage-deflate, without an 8-bit window."""
    offers = [each.strip() for each in request.headers.pop("sec-websocket-extensions", "").split(",")]
    deflating = (each for each in offers if each.partition(";")[0].strip().lower() == "permessage-deflate")
    if kept := [each for each in deflating if not _EIGHT_BITS.search(each)]:
        request.headers["sec-websocket-extensions"] = ", ".join(kept)


CARRIED = "llmproxy"
"""Key of the exchange in a flow's metadata."""


class WebSocketRecordingHooks:
    """The part of `Recorder` for WebSockets, and helpers shared with its other part."""

    def __init__(self, proxy: ProxyContext) -> None:
        self._proxy = proxy

    def _find_exchange(self, flow: http.HTTPFlow) -> Exchange | None:
        """Return the exchange of this flow: its release may be withdrawn (the client left) before the last hook."""
        exchange: Exchange | None = flow.metadata.get(CARRIED)
        return exchange

    def _get_offset(self, exchange: Exchange) -> int:
        since = exchange.progress.released or exchange.progress.arrived
        return round((self._proxy.engine.clock() - since) * 1_000_000)

    async def _store_answer(self, exchange: Exchange, *, proper: bool) -> None:
        try:
            await self._proxy.store_answer_and_wait(exchange, proper=proper)
        except Exception as why:  # it would only be logged, and the answer go unrecorded and unmentioned
            log.exception("llmproxy failed in a hook; an answer is lost")
            self._proxy.report_unrecorded(exchange, f"{type(why).__name__}: {why}")

    def _on_switch(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        engine, socket = self._proxy.engine, flow.websocket
        if socket is None:
            flow.kill()  # type: ignore[no-untyped-call]
            return
        recording = FrameRecorder(lambda data: redact_message(engine, exchange, data), *exchange.recording.timed_head)
        recording.is_closing = lambda: socket.close_code is not None
        recording.is_breaking = lambda: socket.close_code == CUT
        exchange.recording = recording

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        exchange = self._find_exchange(flow)
        if exchange is None or flow.websocket is None:
            return
        try:
            message = flow.websocket.messages[-1]
            flow.websocket.messages.clear()  # mitmproxy would keep all of them, hours of audio
            if isinstance(exchange.recording, FrameRecorder):
                data = message.text if message.is_text else message.content
                exchange.recording.record_message(self._get_offset(exchange), data, client=message.from_client)
        except Exception:  # the message is the client's, come what may
            log.exception("a message of a WebSocket could not be noted")
            exchange.recording.damaged = True

    async def websocket_end(self, flow: http.HTTPFlow) -> None:
        """Store the conversation; its end reaches the client when this returns."""
        exchange, socket = self._find_exchange(flow), flow.websocket
        if exchange is None or socket is None or not isinstance(recording := exchange.recording, FrameRecorder):
            return
        try:
            code, reason = socket.close_code or 0, socket.close_reason or ""
            recording.record_close(self._get_offset(exchange), int(code), reason, client=bool(socket.closed_by_client))
            await self._store_answer(exchange, proper=True)
        except Exception as why:
            log.exception("the end of a WebSocket could not be noted")
            self._proxy.report_unrecorded(exchange, f"{type(why).__name__}: {why}")
        finally:
            recording.is_stored = True


def is_unasked_switch(request: http.Request, response: http.Response) -> bool:
    """Return whether the upstream switches to an unrequested protocol, or to one that mitmproxy relays unseen."""
    upgrade = response.headers.get("upgrade", "").lower()
    return response.status_code == SWITCHING and not (is_upgrade(request) and upgrade == "websocket")
