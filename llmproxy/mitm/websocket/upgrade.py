"""What an upgrade to a WebSocket must be, how one is refused, and messages on their way in and out: what replay and recording share."""

from __future__ import annotations

from itertools import pairwise

from wsproto.events import BytesMessage, Event, TextMessage

from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Request, header
from llmproxy.errors import MissError, RefusedError
from llmproxy.mitm.framing import Head

PIECE = 1 << 20
"""Bytes of one frame that we send; a longer message is fragmented, so that clients with a limit on frames can take it."""
_KEY_MARK = "openai-insecure-api-key."


class UpgradeRefused(RefusedError):
    """426 makes clients that can (Codex) fall back to HTTP at once; other statuses cost them seconds of reconnects."""

    code = "llmproxy_websocket"
    status = 426


class UpgradeMissed(MissError):
    """A WebSocket that was never recorded."""

    status = 426


def check_upgrade(head: Head) -> None:
    """Refuse what looks like a WebSocket's upgrade and is none.

    Raises:
        RefusedError: it cannot be served as one, nor be handed on.

    """
    version, key = header(head.headers, "sec-websocket-version"), header(head.headers, "sec-websocket-key")
    if head.method != "GET" or head.http10 or head.length != 0 or version != "13" or not key:
        msg = f"llmproxy: this is no upgrade to a WebSocket (RFC 6455 section 4.1): {head.method}, version {version}."
        raise RefusedError(msg)


def subprotocol_key(head: Head) -> str | None:
    """Return the key that a browser's client hides among the subprotocols, as it cannot set headers."""
    offered = (header(head.headers, "sec-websocket-protocol") or "").split(",")
    names = (name.strip() for name in offered)
    return next((name.removeprefix(_KEY_MARK) for name in names if name.startswith(_KEY_MARK)), None)


def redact_message(engine: Engine, exchange: Exchange, data: str | bytes) -> str | bytes:
    """Take the secrets out of a message of the client's, as out of a request's body."""
    plain = data.encode() if isinstance(data, str) else data
    body = engine.redactor.request(Request("POST", exchange.route.target, (), plain)).body
    return body.decode() if isinstance(data, str) else body


def pieces(data: str | bytes) -> list[Event]:
    """Cut a message into frames of at most PIECE characters or bytes."""
    marks = [*range(0, len(data), PIECE), len(data)] if data else [0, 0]
    if isinstance(data, str):
        return [TextMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]
    return [BytesMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]


def join_parts(parts: list[str | bytes]) -> str | bytes:
    """Put a message together; all its parts are of one kind."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else b"".join(bytes(part) for part in parts if not isinstance(part, str))
