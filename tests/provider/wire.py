"""HTTP/1 by hand: read a request, write an answer, piece by piece and with its oddities.

No HTTP library would let us send a broken-off body, a 103, a chunk border inside a character or nothing at all, so this is raw.
Each piece is written by itself with Nagle's algorithm off; `SPACING` between two pieces keeps them apart on the way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus

from .answer import Answer, Piece

SPACING = 0.002
"""Seconds between pieces without a wait of their own; enough for the other side to read them one by one on loopback."""
HEAD_LIMIT = 1 << 20


class Gone(Exception):
    """The client closed the connection, or sent what is not HTTP."""


RawRequest = tuple[str, str, str, tuple[tuple[str, str], ...], bytes]
"""Method, target, version, header fields, body."""


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawRequest:
    """Read one request with its whole body; Gone at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        method, target, version = first.split(" ")
        fields = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        lower = {name.lower(): value for name, value in fields}
        if lower.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in lower.get("transfer-encoding", "").lower():
            body = await _read_chunked(reader)
        else:
            body = await reader.readexactly(int(lower.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError) as gone:
        raise Gone from gone
    return method, target, version, fields, body


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            while (await reader.readline()).strip():
                pass
            return bytes(body)
        body += await reader.readexactly(size)
        await reader.readexactly(2)


def head_of(answer: Answer) -> bytes:
    """Format the head, with the framing header that belongs to it (unless the answer brings its own)."""
    names = {name.lower() for name, _ in answer.headers}
    fields = list(answer.headers)
    if answer.framing == "length" and not names & {"content-length", "transfer-encoding"}:
        fields.append(("content-length", str(len(answer.body))))
    if answer.framing == "chunked":
        fields.append(("transfer-encoding", "chunked"))
        if answer.trailers:
            fields.append(("trailer", ", ".join(name for name, _ in answer.trailers)))
    if answer.framing == "close":
        fields.append(("connection", "close"))
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unexpected"
    lines = [f"{answer.version} {answer.status} {phrase}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n"


async def send(writer: asyncio.StreamWriter, answer: Answer, method: str = "POST") -> bool:
    """Send an answer; returns whether the connection can go on. ConnectionError if the client left."""
    await asyncio.sleep(answer.wait)
    for status in answer.interim:
        writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n\r\n".encode())
    writer.write(head_of(answer))
    await writer.drain()
    if method == "HEAD":
        return answer.framing != "close"
    for number, piece in enumerate(answer.pieces):
        await _send_piece(writer, answer, piece, number)
    if answer.ends:
        _break_off(writer, answer.ends == "reset")
        return False
    if answer.framing == "chunked":
        end = "".join(f"{name}: {value}\r\n" for name, value in answer.trailers)
        writer.write(f"0\r\n{end}\r\n".encode())
    await writer.drain()
    return answer.framing != "close" and answer.version == "HTTP/1.1"


async def _send_piece(writer: asyncio.StreamWriter, answer: Answer, piece: Piece, number: int) -> None:
    await asyncio.sleep(piece.wait or (SPACING if number else 0))
    while piece.after is not None and not piece.after.is_set():
        await asyncio.sleep(SPACING)
    if writer.is_closing():
        raise ConnectionResetError("the client left")
    chunked = answer.framing == "chunked"
    writer.write(b"%x\r\n%b\r\n" % (len(piece.data), piece.data) if chunked else piece.data)
    await writer.drain()


def _break_off(writer: asyncio.StreamWriter, reset: bool) -> None:
    if reset:
        # Zero linger makes close() send RST instead of FIN, and throw away what was not sent yet.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    else:
        writer.close()
