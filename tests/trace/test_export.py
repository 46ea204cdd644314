"""Exports are written as spans come, and say what a whole trace says."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from llmproxy.errors import CassetteNotFound
from llmproxy.trace import Cassette, otlp, write_otlp, write_trace
from llmproxy.trace.export import BATCH
from tests.support.messages import said, user
from tests.trace.runs import chat, loop, store


def test_a_written_trace_is_the_trace(tmp_path: Path) -> None:
    """Same spans, totals and fingerprint as `Cassette.from_store`, and what is returned is its head."""
    db = store(tmp_path / "x.db", *loop())
    with (tmp_path / "x.json").open("w") as out:
        head = write_trace(out, db, cassette="default")
    whole = Cassette.from_store(db, cassette="default")
    assert Cassette.load(tmp_path / "x.json") == whole
    assert (head.fingerprint, head.total_tokens, head.spans) == (whole.fingerprint, 240, [])


def test_a_recording_without_spans_is_an_empty_trace(tmp_path: Path) -> None:
    db = store(tmp_path / "x.db", chat(1, [], said(""), operation="files", usage=chat(1, [], None).usage))
    out = io.StringIO()
    write_trace(out, db, cassette="default")
    assert Cassette.from_dict(json.loads(out.getvalue())).spans == []


def test_nothing_is_written_if_there_is_nothing(tmp_path: Path) -> None:
    db = store(tmp_path / "x.db", *loop())
    out = io.StringIO()
    for write in (write_trace, write_otlp):
        with pytest.raises(CassetteNotFound, match="default"):
            write(out, db, cassette="nope")
    assert out.getvalue() == ""


def test_half_a_surrogate_pair_is_exported(tmp_path: Path) -> None:
    """An answer may be cut inside an emoji; OTLP is UTF-8, whose strings cannot hold half of one, and all else must be there."""
    db = store(tmp_path / "x.db", chat(1, [user("cut \ud83d here")], said("and \udc00 there")))
    with (tmp_path / "x.jsonl").open("w", encoding="utf-8") as out:
        assert write_otlp(out, db, cassette="default") == 2
    text = (tmp_path / "x.jsonl").read_text("utf-8")
    assert "cut \ufffd here" in text
    assert "and \ufffd there" in text


def test_otlp_lines(tmp_path: Path) -> None:
    """Each line is a request of its own; together they are the spans of the whole."""
    number = BATCH + 10
    db = store(tmp_path / "x.db", *(chat(n, [user(f"{n}")], said("y")) for n in range(number)))
    out = io.StringIO()
    assert write_otlp(out, db, cassette="default") == 2 * number
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) > 1
    spans = [span for line in lines for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    whole = otlp(Cassette.from_store(db, cassette="default"))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert spans == json.loads(json.dumps(whole))
