"""``llmproxy judge calibrate``, with a scripted provider as the judge's model; ``llmproxy label``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli import main
from tests.provider import Provider, Step, step
from tests.support.process import ROOT, llmproxy
from tests.support.proxy import proxy

CONVERSATIONS = {
    "t1": ("passed", "passed"), "t2": ("passed", "failed"), "t3": ("failed", "passed"), "t4": ("failed", "failed"),
}  # fmt: skip
"""Human labels of two criteria."""


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.jsonl"
    lines = [
        {
            "id": name,
            "messages": [{"role": "user", "content": f"I am {name}"}, {"role": "assistant", "content": "a lamp"}],
            "criteria": [{"text": "It greets", "label": one}, {"text": "It sells", "label": other}],
        }
        for name, (one, other) in CONVERSATIONS.items()
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


class Asked(Step):
    order: str = ""

    def differs(self, seen: Any) -> list[str]:
        more = [] if self.order.encode() in seen.body else [f"no {self.order!r}"]
        return [*super().differs(seen), *more]


def answers(of: dict[str, tuple[str, str]]) -> Iterator[Step]:
    """Answer whatever is asked about a conversation, whichever way round the criteria come."""
    for name, statuses in of.items():
        for first, found in (("c1: It greets", statuses), ("c1: It sells", statuses[::-1])):
            criteria = {
                id_: {"status": status, "evidence": "a lamp", "reason": f"because of {id_}"}
                for id_, status in zip(("c1", "c2"), found, strict=True)
            }
            call: dict[str, Any] = {"name": "finish_test", "arguments": {"criteria": criteria, "reasoning": "r"}}
            made = step(contains=f"I am {name}", call=[call], times=None)
            asked = Asked(**{each: getattr(made, each) for each in made.__dataclass_fields__})
            object.__setattr__(asked, "order", first)
            yield asked


def run(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str]:
    """Run a command and return its exit code and everything it said."""
    code = main(["judge", "calibrate", *typed])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.slow
def test_a_judge_is_compared_with_people_and_with_itself(
    labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live through a proxy; then offline; then with a bar that it does not reach; then what was never recorded."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    judge = {**CONVERSATIONS, "t3": ("failed", "failed")}
    typed = [str(labels), "--model", "openai/gpt-4o-mini", "--repeats", "2"]
    with Provider(list(answers(judge)), ordered=False) as upstream:
        with proxy("record", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
            code, out = run(capsys, *typed, "--proxy", px.url)
        assert code == 0, out
        assert len(upstream.requests) == 4 * 3
    assert "4 conversations, 12 looks of openai/gpt-4o-mini" in out
    assert "agreement: 7 of 8 (87.5%" in out
    assert "Cohen's kappa: 0.750" in out
    assert "flips on repetition: 0 of 8 (0.0%)" in out
    assert "flips on order: 0 of 8 (0.0%)" in out
    assert "t3: It sells: human passed, judge failed. because of c2" in out
    with proxy("replay", tmp_path / "x.db") as px:
        assert run(capsys, *typed, "--proxy", px.url) == (code, out)
        found = json.loads(run(capsys, *typed, "--proxy", px.url, "--json")[1])
        assert (found["kappa"], found["agreement"], found["table"]["passed"]["failed"]) == (0.75, 0.875, 1)
        assert run(capsys, *typed, "--proxy", px.url, "--min-kappa", "0.8")[0] == 1
        code, out = run(capsys, str(labels), "--model", "openai/gpt-4o-mini", "--repeats", "3", "--proxy", px.url)
    assert (code, "left out: t1:" in out, "Traceback" in out) == (4, True, False)
    assert "to record what is missing, type the same with --mode auto" in out


def test_what_is_wrong_is_said_before_anything_is_asked(
    labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file, a wrong line, no model, a vote that there is not, no instructions, a mode without a proxy."""
    assert run(capsys, str(tmp_path / "nowhere"), "--model", "m")[0] == 2
    code, out = run(capsys, str(labels))
    assert (code, "--model" in out) == (2, True)
    for more in (("--vote", "loudest"), ("--system-prompt", str(tmp_path / "nowhere")), ("--min-kappa", "nan")):
        code, out = run(capsys, str(labels), "--model", "openai/m", *more)
        assert (code, more[1] in out, "Traceback" in out) == (2, True, False)
    code, out = run(capsys, str(labels), "--model", "openai/m", "--mode", "replay")  # live, if it were taken
    assert (code, "there is none" in out) == (2, True)
    labels.write_text("{")
    code, out = run(capsys, str(labels), "--model", "openai/m")
    assert (code, f"{labels}:1: this is not JSON" in out) == (2, True)


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
