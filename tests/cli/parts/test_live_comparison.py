"""What `llmproxy test --live` says at the end: scenario by scenario, against the recorded run and its verdict."""

from __future__ import annotations

import json
from pathlib import Path

from llmproxy.cli.parts.live_comparison import LiveTestComparer
from llmproxy.report.events import Completed, Finished, Status
from llmproxy.settings import load
from tests.support.live import Bench, Turn, Wish, World, scripted

GET, COUNT = Wish("get", {"name": "a"}), Wish("count", {})


def test_scenarios_are_compared_with_their_recordings(tmp_path: Path) -> None:
    """Two runs of another model: what it called besides, what could not be answered, how they were judged now and then."""
    store, baseline = tmp_path / "x.db", tmp_path / "base.json"
    with Bench(store, "record", model=scripted([Turn((GET,)), Turn(text="0")]), tools=World()) as bench:
        bench.run("look", "suite/one")
    told: list[tuple[list[str], dict[str, object]]] = []
    baseline.write_text(json.dumps({"summary": [{"scenario": "one", "status": "passed", "runs": 1}]}))
    loaded = load({"store": str(store)}, {}, tmp_path)
    handler = LiveTestComparer(loaded, store, baseline, lambda lines, plain: told.append((lines, dict(plain))))
    with Bench(store, live=["llm"]) as bench:
        for status in (Status.FAILED, Status.PASSED):
            bench.model = scripted([Turn((GET, COUNT)), Turn(text="0")])
            live = bench.run("look", "suite/one").report["live"]
            handler.handle(Finished(run_id="r", scenario="one", status=status, live=live))
    handler.handle(Finished(run_id="r", scenario="two", status=Status.PASSED))
    handler.handle(Completed(exit_code=1, seconds=1.0))
    handler.close()
    ((lines, plain),) = told
    assert lines[0] == "one: gpt-4o in 2 runs against gpt-4o in cassette suite/one:"
    found = [line.strip().replace("  ", " ") for line in lines[1:3]]
    assert found == ["2 of 2 (34% to 100%) called besides: count({})", "1 of 2 (9% to 91%) verdict: passed -> failed"]
    assert lines[-1].strip() == "calls that no recording answers there: count 2x"
    assert list(plain) == ["one"]


def test_without_live_runs_nothing_is_said(tmp_path: Path) -> None:
    """Nothing was run, or every scenario was skipped."""
    told: list[object] = []
    handler = LiveTestComparer(load({}, {}, tmp_path), tmp_path / "x.db", None, lambda *what: told.append(what))
    handler.handle(Completed(exit_code=5, seconds=0.0))
    assert told == []
