"""The load generator: a process of its own, on a processor of its own, that prints what it measured as JSON.

    python load.py '{"what": "throughput", "port": 8080, "connections": 16, "seconds": 2, "numbers": 1000}'

Plain sockets and epoll, no event loop and no parser beyond what finds the end of a response: a request is one `send` of bytes that
are made before, a response is counted when its length is the one its head announced. It can do more than the bare server (see
`busy` in what it prints: the share of its time that it did not wait), so that what is measured is the server.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lib import traffic

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
STAMP = re.compile(rb"t=(\d{20}) ")
PATIENCE = 60.0
"""Seconds without any byte after which a server is given up."""


BUFFER = memoryview(bytearray(262_144))
"""One for all: a buffer made anew for each `recv` costs more than the call."""


class Broken(Exception):
    """A server did not answer as it should."""


class Connection:
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, port: int, fields: bytes = b"") -> None:
        """Connect; `fields` (whole lines) come with each request."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # No timeout from here on: Python would ask poll() before every call.
        patience = struct.pack("ll", int(PATIENCE), 0)
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        self.expected = -1
        """Bytes of the last whole response: most have the same length."""
        self.got = b""
        self.sent_at = 0
        self.fields = fields

    def send(self, data: bytes) -> None:
        """Send a request, whole."""
        if self.fields:
            data = data.replace(b"\r\n", b"\r\n" + self.fields, 1)
        self.sent_at = time.monotonic_ns()
        self.socket.sendall(data)

    def take(self) -> bytes | None:
        """Read what is there; the whole response when it is over."""
        count = self.socket.recv_into(BUFFER)
        if not count:
            raise Broken(f"closed after {self.got[:200]!r}")
        data = BUFFER[:count].tobytes()
        if self.got:
            data = self.got + data
        elif count == self.expected and data.startswith(b"HTTP/1.1 200"):
            return data
        if not ended(data):
            self.got = data
            return None
        self.got, self.expected = b"", len(data)
        return data

    def ask(self, data: bytes) -> bytes:
        """Send and wait for the whole response."""
        self.send(data)
        while (response := self.take()) is None:
            pass
        return response


def ended(data: bytes) -> bool:
    """Return whether a response that starts with `data` is over with it."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[:end]
    if not head.startswith(b"HTTP/1.1 2"):
        raise Broken(f"{data[:600]!r}")
    if found := LENGTH.search(head):
        return len(data) >= end + 4 + int(found[1])
    if CHUNKED.search(head):
        return data.endswith(b"0\r\n\r\n")
    raise Broken(f"no length: {head!r}")


def numbers(count: int, order: str = "cycle", start: int = 0) -> Iterator[int]:
    """Return numbers of requests for ever: in a row, or spread over all of `count` (each once before one comes again)."""
    step = 1 if order == "cycle" else 61_803 if count > 61_803 else 617
    while count % step == 0 and step > 1:
        step += 2
    at = start
    while True:
        yield at % count
        at += step


def requests(given: dict[str, Any]) -> Callable[[], bytes]:
    """Return what gives the next request's bytes."""
    path = given.get("path", traffic.PATH)
    long = given.get("long", False)
    content = traffic.long_body(0) if long else traffic.body(0, stream=given.get("stream", False))
    data = traffic.request(content, path=path)
    at = data.rindex(traffic.MARK) + len(traffic.MARK)
    before, after = data[:at], data[at + 6 :]
    base = given.get("base", 0)
    if given.get("rotating"):
        key = before.index(b"Bearer ") + len(b"Bearer ")
        start, middle = before[:key], before[before.index(b"\r\n", key) :] + b"%06d" % base + after
        tokens = (hashlib.sha1(b"%d" % n, usedforsecurity=False).hexdigest().encode() for n in itertools.count())
        return lambda: b"%b%b%b" % (start, next(tokens), middle)
    if given.get("numbers", 1) == 1:
        only = before + b"%06d" % base + after
        return lambda: only
    # A bench that asks `working` of them asks the same ones again and again, spread over all that are recorded.
    total, working = given["numbers"], given.get("working", 0)
    order = iter(numbers(total, given.get("order", "cycle"), given.get("start", 0)))
    if working and working < total:
        chosen = [n * (total // working) for n in range(working)]
        made = [before + b"%06d" % (base + n) + after for n in chosen]
        place = iter(numbers(working))
        return lambda: made[next(place)]
    return lambda: before + b"%06d" % (base + next(order)) + after


def throughput(given: dict[str, Any]) -> dict[str, Any]:
    """Keep every connection busy for some seconds, or for so many requests; count whole answers and how long each took.

    With `sessions` each connection names a session of its own.
    """
    following, most = requests(given), given.get("requests", 1 << 60)
    named = (
        b"x-llmproxy-session: s%d\r\n" % n if given.get("sessions") else b""
        for n in range(given.get("connections", 16))
    )
    open_ = {c.socket.fileno(): c for c in (Connection(given["port"], fields) for fields in named)}
    poll = select.epoll()
    for number in open_:
        poll.register(number, select.EPOLLIN)
    took: list[int] = []
    waited = 0
    sent = 0
    began = time.monotonic_ns()
    until = began + int(given.get("seconds", 1 << 20) * 1e9)
    for connection in open_.values():
        connection.send(following())
        sent += 1
    clock = time.monotonic_ns
    now = began
    while now < until and len(took) < most:
        before = clock()
        ready = poll.poll(PATIENCE)
        waited += clock() - before
        if not ready:
            raise Broken(f"no answer for {PATIENCE} s")
        for number, _ in ready:
            connection = open_[number]
            if connection.take() is not None:
                now = clock()
                took.append(now - connection.sent_at)
                if sent < most:
                    connection.send(following())
                    sent += 1
    passed = (now - began) / 1e9
    return {
        "rate": len(took) / passed,
        "count": len(took),
        "seconds": passed,
        "busy": 1 - waited / 1e9 / passed,
        **spread(took),
    }


def latency(given: dict[str, Any]) -> dict[str, Any]:
    """Ask one request after another on one connection."""
    connection, following = Connection(given["port"]), requests(given)
    for _ in range(given.get("warmup", 20)):
        connection.ask(following())
    took = []
    for _ in range(given["requests"]):
        data = following()
        began = time.perf_counter_ns()
        connection.ask(data)
        took.append(time.perf_counter_ns() - began)
    return spread(took)


def first_byte(given: dict[str, Any]) -> dict[str, Any]:
    """Ask one after another; how long until the first byte of the answer, and until its end."""
    connection, following = Connection(given["port"]), requests(given)
    first, last = [], []
    for count in range(given["requests"] + given.get("warmup", 20)):
        data = following()
        began = time.perf_counter_ns()
        connection.socket.sendall(data)
        select.select([connection.socket], [], [], PATIENCE)
        came = time.perf_counter_ns()
        while connection.take() is None:
            pass
        if count >= given.get("warmup", 20):
            first.append(came - began)
            last.append(time.perf_counter_ns() - began)
    return {"first_us": spread(first)["p50_us"], "last_us": spread(last)["p50_us"]}


def parallel(given: dict[str, Any]) -> dict[str, Any]:
    """Open many streams at once; how long each chunk was on its way, by the moment that it carries."""
    following = requests(given)
    open_ = {c.socket.fileno(): c for c in (Connection(given["port"]) for _ in range(given["connections"]))}
    poll = select.epoll()
    for number in open_:
        poll.register(number, select.EPOLLIN)
    delays: list[int] = []
    firsts: list[int] = []
    per_stream: dict[int, list[int]] = {number: [] for number in open_}
    rest = dict.fromkeys(open_, b"")
    for connection in open_.values():
        connection.send(following())
    left, failed = set(open_), 0
    while left:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise Broken(f"{len(left)} streams are silent")
        for number, _ in ready:
            connection = open_[number]
            data = connection.socket.recv(262_144)
            now = time.monotonic_ns()
            if not per_stream[number] and data and not rest[number]:
                firsts.append(now - connection.sent_at)
            rest[number] += data
            done = rest[number].endswith(b"0\r\n\r\n")
            at = 0
            for found in STAMP.finditer(rest[number]):
                delays.append(now - int(found[1]))
                per_stream[number].append(now)
                at = found.end()
            rest[number] = rest[number][max(at, len(rest[number]) - 30) :]
            if done or not data:
                failed += not done
                poll.unregister(number)
                left.discard(number)
    counts = [len(times) for times in per_stream.values()]
    # Live: a stream's chunks came over (nearly) the whole time in which they were sent, not all at its end.
    spans = [times[-1] - times[0] for times in per_stream.values() if len(times) > 1]
    return {
        "chunks": sum(counts),
        "fewest": min(counts),
        "failed": failed,
        "shortest_span_s": min(spans, default=0) / 1e9,
        "first": spread(firsts),
        "delay": spread(delays),
    }


def paced(given: dict[str, Any]) -> dict[str, Any]:
    """Ask for streams one after another on one connection; first bytes, and how long each chunk was on its way."""
    connection, following = Connection(given["port"]), requests(given)
    firsts, delays = [], []
    for count in range(given["requests"] + 1):
        rest, first = b"", 0
        connection.send(following())
        while not rest.endswith(b"0\r\n\r\n"):
            size = connection.socket.recv_into(BUFFER)
            now = time.monotonic_ns()
            if not size:
                raise Broken("a stream broke off")
            rest = rest[-30:] + BUFFER[:size].tobytes()
            if not first:
                first = now
                if count:  # the first one opens the connections
                    firsts.append(now - connection.sent_at)
            elif count:
                delays += [now - int(stamp) for stamp in STAMP.findall(rest)]
            rest = rest[rest.rfind(b"t=") + 1 :] if b"t=" in rest else rest
    return {"first": spread(firsts), "delay": spread(delays)}


def check(given: dict[str, Any]) -> dict[str, Any]:
    """Ask each number of a list and count the answers that belong to it."""
    connection = Connection(given["port"])
    right, wrong = 0, []
    for number in given["ask"]:
        data = traffic.request(
            traffic.body(number, stream=given.get("stream", False)), path=given.get("path", traffic.PATH)
        )
        response = connection.ask(data)
        if traffic.answered(number) in response:
            right += 1
        else:
            wrong.append(number)
    return {"right": right, "wrong": wrong}


def spread(took: list[int]) -> dict[str, Any]:
    """Return percentiles of nanoseconds, in microseconds."""
    ordered = sorted(took)
    if not ordered:
        return {}
    at = {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e3
        for name, share in (("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99))
    }
    return {**at, "max_us": ordered[-1] / 1e3}


WHAT = {
    "throughput": throughput,
    "latency": latency,
    "first_byte": first_byte,
    "parallel": parallel,
    "paced": paced,
    "check": check,
}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    try:
        print(json.dumps(WHAT[asked["what"]](asked)))
    except (Broken, OSError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
