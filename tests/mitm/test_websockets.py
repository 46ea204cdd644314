"""How a WebSocket's upgrade is read and its messages are split."""

from __future__ import annotations

import pytest
from wsproto.events import BytesMessage, TextMessage

from llmproxy.errors import RefusedError
from llmproxy.mitm.http1_parser import Head, parse_head
from llmproxy.mitm.websockets import (
    PIECE,
    find_api_key_in_subprotocols,
    join_websocket_message_parts,
    raise_if_invalid_upgrade_request,
    split_websocket_message,
)

GOOD = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def head(line: str = "GET /v1/realtime HTTP/1.1", **changed: str | None) -> Head:
    """Parse an upgrade's head; `_` stands for `-`, None leaves a field out."""
    fields = GOOD | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [line, *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return parse_head(("\r\n".join(lines) + "\r\n\r\n").encode())


@pytest.mark.parametrize("bad", [
    head("POST /v1/realtime HTTP/1.1"), head("GET /v1/realtime HTTP/1.0"), head(Sec_WebSocket_Version="8"),
    head(Sec_WebSocket_Version=None), head(Sec_WebSocket_Key=None), head(Content_Length="3"),
    head(Transfer_Encoding="chunked"),
])  # fmt: skip
def test_what_only_claims_to_be_one_is_refused(bad: Head) -> None:
    """Each of these would be a raw tunnel, or a request that two readers understand differently."""
    with pytest.raises(RefusedError, match="no upgrade to a WebSocket"):
        raise_if_invalid_upgrade_request(bad)


@pytest.mark.parametrize(("offered", "key"), [
    ("realtime, openai-insecure-api-key.ek_123, openai-beta.realtime-v1", "ek_123"),
    ("openai-insecure-api-key.sk-a.b", "sk-a.b"),
    ("realtime", None),
    (None, None),
])  # fmt: skip
def test_a_browsers_key_is_found(offered: str | None, key: str | None) -> None:
    """It cannot set headers, so the key stands among the subprotocols."""
    assert find_api_key_in_subprotocols(head(Sec_WebSocket_Protocol=offered)) == key


@pytest.mark.parametrize("data", ["", b"", "short", b"short", "ü" * (PIECE + 1), b"x" * (3 * PIECE)])
def test_pieces_make_the_message(data: str | bytes) -> None:
    """All of one kind, none too long, and only the last one ends the message."""
    found = split_websocket_message(data)
    assert all(isinstance(piece, TextMessage if isinstance(data, str) else BytesMessage) for piece in found)
    parts = [piece.data for piece in found if isinstance(piece, (TextMessage, BytesMessage))]
    assert join_websocket_message_parts([part if isinstance(part, str) else bytes(part) for part in parts]) == data
    assert max(map(len, parts)) <= PIECE
    assert [piece.message_finished for piece in found if isinstance(piece, (TextMessage, BytesMessage))] == [False] * (
        len(found) - 1
    ) + [True]
