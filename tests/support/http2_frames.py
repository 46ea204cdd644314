"""What a hostile client of HTTP/2 sends after its preface: frames that are broken, out of order, too many or too large."""

from __future__ import annotations

import random

import h2.config
import h2.connection
import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
TYPES = range(12)
HEADERS, END_STREAM, END_HEADERS = 1, 1, 4
FIELDS = [(":method", "POST"), (":scheme", "http"), (":authority", "127.0.0.1"), (":path", "/v1/chat/completions")]
ODD = [
    (":path", "http://169.254.169.254/latest"), (":path", "/v1/x y"), (":path", ""), (":path", "*"), (":method", "CONNECT"),
    (":method", "G\r\nET"), (":status", "200"), (":protocol", "websocket"), ("host", "evil.example"), ("content-length", "-1"),
    ("content-length", "5"), ("transfer-encoding", "chunked"), ("connection", "close"), ("te", "gzip"), ("Upper", "x"),
    ("x-split", "a\r\nhost: evil"), ("x-null", "\0"), ("", "x"), ("cookie", "a=b"), ("upgrade", "websocket"),
    ("expect", "100-continue"), ("content-type", "application/grpc"), ("x-long", "x" * 20_000),
]  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """Write a frame; `length` is what it says of its payload, where that is not true."""
    said = len(payload) if length is None else length
    return said.to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def hostile(seed: int) -> bytes:
    """Return what one hostile client sends; every second keeps to the rules of frames, and breaks those of requests."""
    chance = random.Random(seed)
    encoder = hpack.Encoder()
    out = [PREFACE, SETTINGS] if chance.random() < 0.9 else [PREFACE[: chance.randrange(len(PREFACE))]]
    for number in range(chance.randrange(1, 30)):
        own = 2 * number + 1
        stream = own if seed % 2 else chance.choice([0, 1, 2, own, own, 2**31 - 1])
        match chance.randrange(3 if seed % 2 else 6):
            case 0 | 1:
                fields = [*FIELDS, *chance.sample(ODD, chance.choice([0, 0, 0, 1, 2]))]
                flags = (
                    END_HEADERS if seed % 2 else chance.choice([END_HEADERS, END_HEADERS | END_STREAM, 0, END_STREAM])
                )
                out.append(frame(HEADERS, flags, stream, encoder.encode(fields)))
            case 2:
                out.append(frame(HEADERS, END_HEADERS, stream, encoder.encode(FIELDS)))
                out.append(frame(0, 0, stream, chance.randbytes(chance.randrange(3000))))
                out.append(chance.choice([frame(0, END_STREAM, stream, b"x"), frame(3, 0, stream, b"\0\0\0\x08"), b""]))
            case 3:
                payload = chance.randbytes(chance.randrange(64))
                out.append(frame(chance.choice(TYPES), chance.randrange(256), stream, payload))
            case 4:
                out.append(frame(chance.choice(TYPES), 0, stream, b"\0" * 8, length=chance.choice([0, 7, 2**24 - 1])))
            case _:
                kind, size = chance.choice([(3, 4), (4, 6), (6, 8), (8, 4), (2, 5)])
                stream = 0 if kind in (4, 6) else stream
                out.append(frame(kind, 0, stream, chance.randbytes(size)) * chance.choice([1, 50]))
    return b"".join(out)


def client() -> h2.connection.H2Connection:
    made = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    made.initiate_connection()
    return made
