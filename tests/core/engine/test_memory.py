"""An answer of many megabytes takes a small multiple of its size: what Python holds at once, counted by its own allocator."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.protocol import Mode
from tests.core.engine.test_engine import ask, engine

SIZE = 9 << 20
"""Bytes of the answer: more than what is looked at as one text."""
SMALLER = 1 << 18
"""Bytes of an answer that comes before: what is imported and made once shall not count."""
PIECE = 16_384


def body_of(kind: str, size: int) -> tuple[bytes, str]:
    chance = random.Random(1)
    if kind == "image":
        return json.dumps(
            {"data": [{"b64_json": base64.b64encode(chance.randbytes(size * 3 // 4)).decode()}]}
        ).encode(), "application/json"
    text = " ".join(chance.choices(("one", "two", "three", "four"), k=400))
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()
    return event * (size // len(event)) + b"data: [DONE]\n\n", "text/event-stream"


def record(store: Path, question: str, path: Path, content_type: str) -> None:
    with engine(store) as made, path.open("rb") as file:
        exchange = ask(made, question)
        exchange.recording.on_head(1, 200, "OK", (("content-type", content_type),))
        for number, piece in enumerate(iter(lambda: file.read(PIECE), b"")):
            exchange.recording.on_data(number, piece)
        made.writer.store_answer(exchange, proper=True)


def replay(store: Path, question: str) -> int:
    with engine(store, Mode.REPLAY) as made:
        return sum(
            len(piece) for _, piece in made.answering.plan_recorded(ask(made, question), ClientFramingTraits()).pieces
        )


def most_held(job: Callable[[], object]) -> int:
    """Do it; returns the largest number of bytes that were held at once and not before."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    job()
    return tracemalloc.get_traced_memory()[1] - before


@pytest.fixture
def counted() -> Iterator[None]:
    """Count what Python allocates, whatever the system's allocator does with it then."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("kind", ["image", "stream"])
def test_a_large_answer_takes_at_most_three_times_its_size(tmp_path: Path, kind: str) -> None:
    """Recorded and replayed. It was five times and more."""
    store, recorded, replayed = tmp_path / "x.db", 0.0, 0.0
    for question, size in (("smaller", SMALLER), ("large", SIZE)):
        path = tmp_path / question
        body, content_type = body_of(kind, size)
        length = path.write_bytes(body)
        del body
        recorded = most_held(partial(record, store, question, path, content_type)) / length
        replayed = most_held(partial(replay, store, question)) / length
    assert recorded < 3, f"{recorded:.1f} times the size"
    assert replayed < 3, f"{replayed:.1f} times the size"
