"""Record without a network, in a process of its own: `fill.py STORE COUNT [long]`. The engine's own path from a request to a row."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from lib import traffic
from llmproxy.core.engine.engine import Engine
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.bodies import DeltaBaseBody, compress_body_for_storage
from llmproxy.protocol import Mode

MANY = 1_000
"""Recordings that are made on the whole path."""
BIG_ANSWER = 5_000
"""Bytes; with its request that is 10 KB a recording."""
HEADERS = tuple(
    (name, value) for name, _, value in (line.partition(": ") for line in traffic.HEADERS.split("\r\n")) if name
)


def engine(store: Path) -> Engine:
    """Return an engine that records into `store`."""
    journal = CallDecisionJournalWriter.open(Path(f"{store}.fill.state.db"), time.time)
    return Engine(
        EngineConfig(mode=Mode.RECORD, store=store),
        redactor=Redactor(),
        journal=journal,
        now=time.time,
        clock=time.monotonic,
    )


def record(
    recorder: Engine, body: bytes, answer: bytes, content_type: str = "application/json", pieces: int = 1
) -> None:
    """Record one exchange."""
    exchange = recorder.begin_exchange("POST", traffic.PATH, None, HEADERS)
    recorder.stages.identify_and_decide(exchange, body)
    headers = [("content-type", content_type), ("x-request-id", "req_bench")]
    if pieces == 1:
        headers.append(("content-length", str(len(answer))))
    exchange.recording.on_head(100_000, 200, "OK", tuple(headers))
    size = -(-len(answer) // pieces)
    for index in range(pieces):
        exchange.recording.on_data(120_000 + index * 20_000, answer[index * size : (index + 1) * size])
    recorder.writer.store_answer(exchange, proper=True)


def main(store: Path, count: int, *, long: bool) -> None:
    """Fill a store: the first recordings on the engine's whole path, very many more in its format."""
    recorder = engine(store)
    first = min(count, MANY)
    for number in range(first):
        body = traffic.long_body(number) if long else traffic.body(number)
        record(recorder, body, traffic.answer(number))
    if count > first:
        keys = list(derived(recorder, range(first, count)))
        recorder.close()
        copied(store, first, keys)
    else:
        recorder.close()


def derived(recorder: Engine, numbers: range) -> Iterator[str]:
    """Derive the keys of these requests as the proxy does."""
    place = recorder.dispatcher.place_request("POST", traffic.PATH, None, HEADERS)
    for number in numbers:
        exchange = recorder.stages.begin_exchange(place)
        recorder.stages.identify_and_decide(exchange, traffic.body(number))
        yield exchange.key or ""


def copied(path: Path, first: int, keys: list[str]) -> None:
    """Write rows like the last one, in one transaction: its columns, with the key, the bodies and the numbers of each."""
    with closing(sqlite3.connect(path)) as conn:
        conn.row_factory = sqlite3.Row
        row = dict(conn.execute("SELECT * FROM interactions WHERE id = (SELECT max(id) FROM interactions)").fetchone())
        base = conn.execute(
            "SELECT id FROM bodies WHERE id = (SELECT request_body FROM interactions ORDER BY id LIMIT 1)"
        ).fetchone()[0]
        base_content = traffic.body(0)
        columns = [name for name in row if name != "id"]
        insert = f"INSERT INTO interactions ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        for number, key in enumerate(keys, first):
            request = body_row(conn, traffic.body(number), (DeltaBaseBody(base, 0, base_content),))
            answer = body_row(conn, traffic.answer(number, size=BIG_ANSWER), ())
            size = json.dumps([[120_000, BIG_ANSWER]], separators=(",", ":"))
            row |= {
                "key": key,
                "position": number + 1,
                "request_body": request,
                "response_body": answer,
                "chunks": size,
            }
            conn.execute(insert, [row[name] for name in columns])
        conn.execute("UPDATE cassettes SET recorded = ?", (first + len(keys),))
        conn.commit()


def body_row(conn: sqlite3.Connection, content: bytes, bases: tuple[DeltaBaseBody, ...]) -> int:
    """Write a body as the store does."""
    made = compress_body_for_storage(content, bases)
    values = (
        hashlib.sha256(content).digest(),
        len(content),
        made.encoding,
        made.base_id,
        made.prefix,
        made.suffix,
        made.depth,
        made.data,
    )
    sql = "INSERT INTO bodies (sha256, size, encoding, base_id, prefix, suffix, depth, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    return int(conn.execute(sql, values).lastrowid or 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), long="long" in sys.argv[3:])
