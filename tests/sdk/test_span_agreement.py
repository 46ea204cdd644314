"""Spans say what the provider's own SDK says of the same bytes, over all real traffic."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.cassettes.formats import read_file_of_recordings
from llmproxy.core.cassettes.formats.vcr import read
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Ending, Interaction, header
from llmproxy.trace import Span, SpanKind
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.forked import PYTHON, program
from tests.trace.environments import python

from .environments import prepare, starter

PARSE = Path(__file__).parents[1] / "trace" / "sdk" / "parse.py"
PLACES = {"ours": ("chat.completions", "completions", "responses"), "aws": ("converse",),
          "newest": ("messages", "generateContent", "api.chat", "api.generate", "v2.chat", "v1.chat")}  # fmt: skip
"""Where the SDKs of the dialects are: each of these environments parses all its answers in one process, since imports take most of it."""
KNOWN = {("test_chat_streaming_legacy", "tokens"): "Groq says them in x_groq.usage, which openai's SDK does not know"}
"""Where we say more than the SDK: (cassette, what), with the reason."""


Row = tuple[Interaction, Span, list[list[Any]]]
"""An exchange, its answer among the spans, and that one's tool calls."""


@cache
def interactions(folder: Path) -> list[list[Interaction]]:
    """Return the interactions of each file of real traffic; read once."""
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        adopted = convert_exchanges(read(read_file_of_recordings(path)), path.stem, rules=Rules(), redactor=Redactor())
        found.append([each.interaction for each in adopted if each.interaction is not None])
    return found


def told(spans: list[Span]) -> list[tuple[Span, list[list[Any]]]]:
    """Return the answers among the spans, each with its tool calls."""
    calls: dict[str | None, list[list[Any]]] = {}
    for span in spans:
        if span.kind is SpanKind.TOOL_CALL:
            arguments = span.input if span.tool_args is None else span.tool_args
            calls.setdefault(span.parent_id, []).append([span.tool_name, arguments])
    answers = [span for span in spans if span.kind is SpanKind.LLM_RESPONSE or span.name == "llm_attempt"]
    return [(span, calls.get(span.id, [])) for span in answers]


def parser(place: str) -> str:
    """Return the interpreter of one of PLACES."""
    if place != "newest":
        return program(PYTHON)[0] if place == "ours" else python("sdk-aws", "boto3==1.40.0")
    if problem := prepare(("newest",))["newest"]:
        pytest.skip(problem)
    return starter("newest")


def parsed(place: str, each: list[Interaction]) -> list[dict[str, Any]]:
    """Return what the SDKs of a place make of these answers."""
    lines = [json.dumps({
        "dialect": one.operation, "stream": one.stream, "body": base64.b64encode(one.response.body).decode(),
        "type": header(one.response.headers, "content-type") or "application/json",
    }) for one in each]  # fmt: skip
    done = subprocess.run([parser(place), str(PARSE)], input="\n".join(lines), capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_chat_gives_spans(traffic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each exchange of a conversation gives a request and an answer, attempts included; nothing is lost or doubled."""
    exchanges, counted = Counter[str](), Counter[str]()
    for file in interactions(traffic):
        chats = [each for each in file if each.operation in CHAT]
        spans = list(build_spans(file))
        statuses = [span.metadata["http.response.status_code"] for span, _ in told(spans)]
        assert statuses == [each.response.status for each in chats]
        exchanges.update(each.provider for each in chats)
        counted.update(span.kind for span in spans)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {count}" for name, count in sorted(exchanges.items())))
        print("  ".join(f"{kind} {count}" for kind, count in sorted(counted.items())))
    assert sum(exchanges.values()) > 400


@pytest.mark.slow
@pytest.mark.sdk
def test_spans_agree_with_the_sdk(traffic: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    """Text, tool calls and tokens are those that the SDK of each dialect parses out of the same bytes."""
    rows: dict[str, list[Row]] = {dialect: [] for dialects in PLACES.values() for dialect in dialects}
    for file in interactions(traffic):
        chats = [each for each in file if each.operation in CHAT]
        for each, (span, calls) in zip(chats, told(list(build_spans(file))), strict=True):
            whole = each.response.status == 200 and each.response.ending is Ending.COMPLETE
            if whole and each.operation in rows:
                rows[each.operation].append((each, span, calls))
    for place, dialects in PLACES.items():
        with subtests.test(place=place):
            answers = iter(parsed(place, [row[0] for dialect in dialects for row in rows[dialect]]))
            for dialect in dialects:
                with subtests.test(dialect=dialect):
                    agree(dialect, rows[dialect], list(itertools.islice(answers, len(rows[dialect]))), capsys)


def agree(dialect: str, rows: list[Row], said: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """See that what is said of these exchanges is what the dialect's SDK says."""
    assert rows
    agreed, problems = Counter[str](), []
    for (each, span, calls), sdk in zip(rows, said, strict=True):
        if "error" in sdk:
            agreed["sdk refused"] += 1
            problems.append(f"{each.cassette}: {sdk['error']}")
            continue
        usage = each.usage
        ours = {"text": span.output or "", "calls": calls, "tokens": [usage.input, usage.output]}
        theirs = {"text": sdk["text"], "calls": sdk["calls"], "tokens": [sdk["input"], sdk["output"]]}
        for what, value in ours.items():
            agreed[what] += value == theirs[what]
            if value != theirs[what] and (each.cassette, what) not in KNOWN:
                problems.append(f"{each.cassette} {each.provider} {what}: {value!r:.300} / {theirs[what]!r:.300}")
    with capsys.disabled():
        counts = ", ".join(f"{what} {agreed[what]}" for what in ("text", "calls", "tokens", "sdk refused"))
        print(f"\n{dialect}: {len(rows)} exchanges; agree: {counts}")
        print("\n".join(problems))
    assert not problems
