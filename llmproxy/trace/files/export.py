"""Spans of a recording written as they come: memory does not grow with the recording.

write_trace     the trace file, `Cassette.load` and Evalcraft read it; the head, with its totals, stands at the end
write_otlp      OTLP as JSON lines (OpenTelemetry's file exporter): each line one export request
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from llmproxy.protocol import AGENT
from llmproxy.trace.files.cassette import Cassette, TraceHead, envelope
from llmproxy.trace.files.otel import Converter, request_of
from llmproxy.trace.reading.recording import spans_of
from llmproxy.trace.values.fingerprint import Fingerprint
from llmproxy.trace.values.model import Span

BATCH = 200
"""Spans of one OTLP line: a few hundred kilobytes."""


def write_trace(
    out: IO[str], store: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT
) -> Cassette:
    """Write a recording as a trace file, a line for each span; returns its head: totals and fingerprint, without spans.

    Raises as `Cassette.from_store`, before anything is written if there is no such recording.
    """
    header, fingerprint, first = TraceHead(cassette, sample), Fingerprint(), True
    head = envelope(header.trace)
    versions = {name: value for name, value in head.items() if name != "cassette"}
    for span in spans_of(store, cassette=cassette, sample=sample, party=party):
        header.see(span)
        plain = span.to_dict()
        fingerprint.add(plain)
        out.write(json.dumps(versions)[:-1] + ', "spans": [\n' if first else ",\n")
        out.write(json.dumps(plain, default=str))
        first = False
    if first:
        out.write(json.dumps(versions)[:-1] + ', "spans": [')
    header.trace.fingerprint = fingerprint.text()
    out.write(f'\n], "cassette": {json.dumps(envelope(header.trace)["cassette"], indent=1)}}}\n')
    return header.trace


def write_otlp(
    out: IO[str],
    store: Path | str,
    *,
    cassette: str,
    sample: int = 1,
    party: str | None = AGENT,
    content: bool = True,
) -> int:
    """Write a recording as OTLP, JSON lines; returns how many spans. `content` False leaves out what was said.

    Raises as `Cassette.from_store`.
    """
    spans = spans_of(store, cassette=cassette, sample=sample, party=party)
    written = 0
    for batch in _batches(spans, Converter(f"{cassette}~{sample}", content=content)):
        out.write(_whole(json.dumps(request_of(batch, cassette), ensure_ascii=False, separators=(",", ":"))) + "\n")
        written += len(batch)
    return written


def _batches(spans: Iterator[Span], converter: Converter) -> Iterator[list[dict[str, object]]]:
    batch: list[dict[str, object]] = []
    for span in spans:
        batch += converter.feed(span)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    batch += converter.finish()
    if batch:
        yield batch


_HALF = re.compile("[\ud800-\udfff]")


def _whole(text: str) -> str:
    """Return a text without halves of surrogate pairs: recorded answers may hold one, OTLP's readers take no such string."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", text)
