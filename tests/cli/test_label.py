"""``llmproxy label``: typed answers become lines for `judge calibrate`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from llmproxy.cli import main
from tests.support.process import ROOT, llmproxy


@pytest.fixture
def report(tmp_path: Path) -> Path:
    runs = [
        {
            "started": {"run_id": f"run_{name}", "scenario": name, "sample": 1, "criteria": ["polite", "fast"]},
            "parts": [{"event": "message", "message": {"role": "user", "content": f"I am {name}\x1b[2J"}}],
            "finished": None,
        }
        for name in ("ann", "bob")
    ]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"scenarios": [{"runs": runs}]}), encoding="utf-8")
    return path


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *command: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return main(["label", *command])


def test_who_stops_goes_on_later(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was finished is kept; a slip is asked again; the terminal is not driven by what an agent said."""
    out = tmp_path / "labels.jsonl"
    assert typed(monkeypatch, "p\nx\nfail\np\nq\n", str(report), "--out", str(out)) == 0
    (line,) = map(json.loads, out.read_text().splitlines())
    assert [each["label"] for each in line["criteria"]] == ["passed", "failed"]
    shown = capsys.readouterr().out
    assert "1 conversation labelled" in shown
    assert "\x1b" not in shown
    assert typed(monkeypatch, "s\ni\n", str(report), "--out", str(out)) == 0
    assert "1 conversation to label, 1 labelled before" in capsys.readouterr().out
    second = json.loads(out.read_text().splitlines()[1])
    assert [each["label"] for each in second["criteria"]] == [None, "inconclusive"]


def test_a_bare_id_is_a_run_of_the_last_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`llmproxy test` keeps what it told; without that, or for an id that is not in it, it says so."""
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, "", "scenariorun_1") == 2
    assert "in the report of the last `llmproxy test` only" in capsys.readouterr().err
    (tmp_path / "agent.py").write_text("def answer(message):\n    return 'you said ' + message\n")
    suite = (
        'name: t\nagent: {python: "agent.py:answer"}\nscenarios:\n  - {id: a, observe: none, steps: [{chat: hi, '
        "response: {contains: hi}}]}\n"
    )
    (tmp_path / "t.suite.yaml").write_text(suite)
    assert llmproxy("test", env={"PYTHONPATH": str(ROOT)}).returncode == 0
    first = json.loads((tmp_path / ".llmproxy" / "last-report.jsonl").read_text().splitlines()[1])
    assert typed(monkeypatch, "p\n", first["run_id"], "-c", "it repeats") == 0
    (line,) = map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())
    assert [each["content"] for each in line["messages"]] == ["hi", "you said hi"]
    assert typed(monkeypatch, "", "scenariorun_none") == 2
    assert f"Its runs: {first['run_id']}" in capsys.readouterr().err
