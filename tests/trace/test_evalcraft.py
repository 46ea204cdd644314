"""Evalcraft and we read each other's files, with the same numbers and the same fingerprint; measured on the real one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmproxy.trace import Cassette, Provenance, ReplayDiff, ReplayEngine, Span, SpanKind, TokenUsage
from tests.trace.environments import python
from tests.trace.runs import Json, recorded, weather

pytestmark = pytest.mark.sdk

WRITE = """
import sys
from evalcraft import CaptureContext
from evalcraft.core.models import *
with CaptureContext(name="made there", agent_name="agent", framework="none", save_path=sys.argv[1]) as ctx:
    ctx.record_input("What's the weather — in Zürich?")
    ctx.record_llm_call(model="gpt-4o", input="Wetter?", output="tool", prompt_tokens=30, completion_tokens=4, cost_usd=0.001)
    ctx.record_tool_call("get_weather", args={"city": "Zürich"}, result={"temp": 18.5, "ok": True, "odd": {1, 2}})
    ctx.record_llm_call(model="gpt-4o", input=[{"role": "user"}], output="18", prompt_tokens=50, completion_tokens=9)
    ctx.record_output("18.5")
cassette = ctx.cassette
cassette.add_span(Span(kind=SpanKind.TOOL_RESULT, tool_name="get_weather", token_usage=TokenUsage(1, 2, 10, 3, 4)))
cassette.add_span(Span(kind=SpanKind.AGENT_STEP, error="no", metadata={"deep": [1, None, {"x": 1e-7}]}, duration_ms=12.25))
cassette.provenance.tools = [{"name": "get_weather"}]
cassette.save(sys.argv[1])
"""
LOOK = """
import json, sys
from evalcraft.core.models import Cassette
from evalcraft.replay.engine import ReplayEngine
cassette = Cassette.load(sys.argv[1])
stored = cassette.fingerprint
cassette.compute_metrics()
print(json.dumps({
    "stored": stored, "computed": cassette.compute_fingerprint(), "run": ReplayEngine(cassette).run().cassette.fingerprint,
    "numbers": [cassette.total_tokens, cassette.total_cost_usd, cassette.total_duration_ms, cassette.llm_call_count,
                cassette.tool_call_count, cassette.get_tool_sequence(), len(cassette.spans)],
    "texts": [cassette.name, cassette.input_text, cassette.output_text, cassette.created_at, cassette.id],
    "dict": cassette.to_dict(),
}, default=str))
"""
REPLAY = """
import json, sys
from evalcraft import replay
from evalcraft.core.models import Cassette, SpanKind
from evalcraft.replay.engine import ReplayDiff, ReplayEngine
old = sys.argv[1]
engine = (ReplayEngine(old).override_tool_result("get_weather", {"temp": 5}).override_llm_response(1, "cold")
          .filter_spans(lambda span: span.kind != SpanKind.USER_INPUT))
run = engine.run()
run.cassette.save(sys.argv[2])
print(json.dumps({
    "run": run.to_dict(), "step": [span.to_dict() for span in iter(engine.step, None) if span.kind == SpanKind.TOOL_CALL],
    "diff": ReplayDiff.compute(Cassette.load(old), run.cassette).to_dict(),
    "summary": ReplayDiff.compute(Cassette.load(old), run.cassette).summary(),
}, default=str))
"""


def evalcraft(script: str, *arguments: object) -> Json:
    """Run a script where Evalcraft is installed, and return the JSON that it prints."""
    done = subprocess.run([python("evalcraft", "evalcraft==0.12.0"), "-c", script, *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if done.stdout.strip() else None


def numbers(cassette: Cassette) -> list[Any]:
    """Return what `LOOK` prints of a cassette's numbers."""
    return [
        cassette.total_tokens, cassette.total_cost_usd, cassette.total_duration_ms, cassette.llm_call_count,
        cassette.tool_call_count, cassette.get_tool_sequence(), len(cassette.spans),
    ]  # fmt: skip


def check(path: Path) -> None:
    theirs, ours = evalcraft(LOOK, path), Cassette.load(path)
    assert ours.fingerprint == theirs["stored"]
    assert ours.compute_fingerprint() == theirs["computed"] == theirs["run"]
    ours.compute_metrics()
    assert numbers(ours) == theirs["numbers"]
    assert [ours.name, ours.input_text, ours.output_text, ours.created_at, ours.id] == theirs["texts"]
    plain = json.loads(json.dumps(ours.to_dict(), default=str))
    assert plain["spans"] == theirs["dict"]["spans"]
    assert plain["cassette"] == theirs["dict"]["cassette"]


def test_their_file_opens_here(tmp_path: Path) -> None:
    """A cassette that Evalcraft captured has the same spans, totals and fingerprint here."""
    path = tmp_path / "theirs.json"
    evalcraft(WRITE, path)
    check(path)
    assert Cassette.load(path).compute_fingerprint() == Cassette.load(path).fingerprint


@pytest.mark.parametrize("flat", [False, True])
def test_our_file_opens_there(tmp_path: Path, flat: bool) -> None:
    """A cassette of ours, with unknown times and tokens, has the same spans, totals and fingerprint there."""
    cassette = weather()
    usage = TokenUsage(None, 6, None, None, None)
    cassette.add_span(Span(kind=SpanKind.LLM_RESPONSE, duration_ms=None, token_usage=usage, output="ü \ud800"))
    cassette.add_span(Span(kind=SpanKind.TOOL_CALL, tool_name="", metadata={"a": 1}))
    cassette.provenance = Provenance(models=["m"], model_aliases={"m": ["m-1"]})
    path = cassette.save(tmp_path / "deep" / "ours.json")
    if flat:
        data = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(data["cassette"] | {"spans": data["spans"], "evalcraft_cassette": True}), "utf-8")
    check(path)


def test_a_recording_of_ours_opens_there(tmp_path: Path) -> None:
    """Spans from the wire, written as a trace file, are a cassette there."""
    check(recorded(tmp_path / "store.db").save(tmp_path / "wire.json"))


def test_provenance_has_their_prompt_hash(tmp_path: Path) -> None:
    """The hash of the prompts is the same, so a staleness check goes on working."""
    path = weather().save(tmp_path / "one.json")
    script = "import sys, json; from evalcraft.core.models import Cassette\np = Cassette.load(sys.argv[1]).capture_provenance()"
    theirs = evalcraft(f"{script}\nprint(json.dumps([p.prompt_hash, p.models, p.requested_models]))", path)
    ours = Cassette.load(path).capture_provenance()
    assert [ours.prompt_hash, ours.models, ours.requested_models] == theirs


def test_replays_are_the_same(tmp_path: Path) -> None:
    """Overrides, filter, steps and the diff give what Evalcraft gives, to the fingerprint of the result."""
    path = weather().save(tmp_path / "one.json")
    theirs = evalcraft(REPLAY, path, tmp_path / "run.json")
    engine = (ReplayEngine(path).override_tool_result("get_weather", {"temp": 5}).override_llm_response(1, "cold")
              .filter_spans(lambda span: span.kind != SpanKind.USER_INPUT))  # fmt: skip
    run = engine.run()
    ours = json.loads(json.dumps(run.to_dict(), default=str))
    for each in (ours["cassette"], theirs["run"]["cassette"]):
        each.pop("llmproxy_trace", None)
    assert ours == theirs["run"]
    steps = [span.to_dict() for span in iter(engine.step, None) if span.kind == SpanKind.TOOL_CALL]
    assert steps == theirs["step"]
    diff = ReplayDiff.compute(Cassette.load(path), run.cassette)
    assert diff.to_dict() == theirs["diff"]
    more = "Intermediate texts changed"  # what the original does not look at
    assert [line for line in diff.summary().splitlines() if more not in line] == theirs["summary"].splitlines()
    assert Cassette.load(tmp_path / "run.json").fingerprint == run.cassette.fingerprint
