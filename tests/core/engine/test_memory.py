"""An answer of many megabytes takes a small multiple of its size: in a process of its own, by what the system counts."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import ROOT, clean_env

SIZE = 9 << 20
"""Bytes of the answer."""
SMALLER = 5 << 20
"""Bytes of an answer that comes before: what a search takes of any window shall not count."""

CHILD = """
import sys
from pathlib import Path
from llmproxy.core.traffic.response_bytes import ClientHttp
from llmproxy.protocol import Mode
from tests.core.engine.test_engine import ask, engine

def now(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024

def grown(job, *given):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (proc(5))
    before = now("VmRSS")
    job(*given)
    return now("VmHWM") - before

store, path, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4]

def record(question, pieces):
    with engine(store) as made:
        exchange = ask(made, question)
        exchange.recording.head(1, 200, "OK", (("content-type", kind),))
        for number, piece in enumerate(pieces):
            exchange.recording.data(number, piece)
        made.stored(exchange, proper=True)

def replay(question):
    with engine(store, Mode.REPLAY) as made:
        return len(made.plan(ask(made, question), ClientHttp()).pieces[0][1])

def pieces(size):
    with path.open("rb") as file:
        for _ in range(0, size, 16_384):
            yield file.read(16_384)

size, smaller = path.stat().st_size, int(sys.argv[3])
record("smaller", pieces(smaller))
replay("smaller")
print(grown(record, "large", pieces(size)) / size, grown(replay, "large") / size)
"""


def text_of(size: int) -> str:
    """Return words."""
    words = Path(__file__).read_text("utf-8").replace('"', "").replace("\n", " ").split(" ")
    return (" ".join(random.Random(1).choices(words, k=10_000)) * (size // 10_000))[:size]


def body_of(kind: str) -> tuple[bytes, str]:
    """Return (body, content type)."""
    chance = random.Random(1)
    if kind == "image":
        return json.dumps(
            {"data": [{"b64_json": base64.b64encode(chance.randbytes(SIZE * 3 // 4)).decode()}]}
        ).encode(), "application/json"
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text_of(2_000).encode()
    return event * (SIZE // len(event)) + b"data: [DONE]\n\n", "text/event-stream"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the peak of a part of a run")
@pytest.mark.parametrize("kind", ["image", "stream"])
def test_a_large_answer_takes_at_most_three_times_its_size(tmp_path: Path, kind: str) -> None:
    """Recorded and replayed. It was five times and more."""
    path = tmp_path / "body"
    body, content_type = body_of(kind)
    path.write_bytes(body)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "x.db"), str(path), str(SMALLER), content_type]
    # What is freed goes back to the system at once: else room left over from the smaller answer would take the larger one unseen.
    env = clean_env() | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    recorded, replayed = map(float, done.stdout.split())
    assert 0 < recorded < 3, f"{recorded:.1f} times the size"
    assert 0 < replayed < 3, f"{replayed:.1f} times the size"
