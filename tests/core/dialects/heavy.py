"""Answers that are made of much for their size; `python -m tests.core.dialects.heavy KIND SIZE` says how many bytes reading one holds at once.

A process of its own, asked by what the system says of it: tracing each allocation takes ten times as long as reading.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

from llmproxy.core.dialects.stream_events import classify_response_ending, parse_events_cached

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"


def _filled(unit: bytes, size: int, head: bytes = b"", tail: bytes = b"") -> bytes:
    return head + unit * (size // len(unit)) + tail


HEAVY = {
    "tiny events": (SSE, partial(_filled, b"data: {}\n\n")),
    "deep events": (SSE, partial(_filled, b"data: " + b"[" * 400 + b"]" * 400 + b"\n\n")),
    "one event of lists": (SSE, partial(_filled, b"[],", head=b"data: [", tail=b"1]\n\n")),
    "one event of objects": (SSE, partial(_filled, b'{"a":1},', head=b"data: [", tail=b"1]\n\n")),
    "one long word": (SSE, partial(_filled, b"x", head=b'data: "', tail=b'"\n\n')),
    "lines of data": (SSE, partial(_filled, b"data: [],\n", tail=b"\n")),
    "one line of lists": ("application/x-ndjson", partial(_filled, b"[],", head=b"[", tail=b"1]\n")),
    "tiny lines": ("application/x-ndjson", partial(_filled, b"[]\n")),
    "a list of lists": (JSON, partial(_filled, b"[],", head=b'{"data":[', tail=b"1]}")),
    "members": (JSON, partial(_filled, b'"a":{},', head=b"{", tail=b'"b":1}')),
    "deeper and deeper": (JSON, partial(_filled, b'{"a":')),
}


def most_held() -> int:
    """Return the most bytes that this process held at once."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found
    return int(found[1]) << 10


if __name__ == "__main__":
    content_type, make = HEAVY[sys.argv[1]]
    body = make(int(sys.argv[2]))
    before = most_held()
    for _ in parse_events_cached(content_type, body):
        pass
    classify_response_ending("chat.completions", True, 200, content_type, body, True)
    print(most_held() - before)
