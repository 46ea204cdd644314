"""``llmproxy test`` as a user types it: what it selects, what it says, what it ends with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llmproxy.cli import main
from llmproxy.cli.parts.options import CASSETTES, STORE
from tests.provider import Provider, load, step
from tests.support import pytest_run
from tests.support.asking import ASK
from tests.support.forked import program
from tests.support.process import ROOT, clean_env, llmproxy, python, until

ECHO = "def answer(message):\n    return 'you said ' + message\n"
SUITE = """
name: t
agent: {python: "agent.py:answer"}
scenarios:
  - {id: good, tags: [smoke], observe: none, steps: [{chat: hi, response: {contains: hi}}]}
  - id: bad
    tags: [slow]
    observe: none
    steps: [{chat: hi, label: first, response: {contains: hi}}, {chat: hi, response: {contains: nope}}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(ECHO)
    (tmp_path / "t.suite.yaml").write_text(SUITE)
    return tmp_path


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return llmproxy("test", *words, cwd=folder, env={"PYTHONPATH": str(ROOT), **env})


def test_it_runs_what_is_in_the_folder(folder: Path) -> None:
    """Without arguments; reports are written, what failed is told and remembered, the proxy keeps its things in one place."""
    done = run(folder, "--report", "json=out.json", "--report", "junit=out.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PASS  good" in done.stdout
    assert "FAIL  bad" in done.stdout
    assert "response.contains" in done.stdout
    assert "you said hi" in done.stdout
    assert "run it again: llmproxy test --id bad" in done.stdout
    assert json.loads((folder / "out.json").read_text())
    assert (folder / "out.xml").read_text().startswith("<?xml")
    assert (folder / STORE.parent / ".gitignore").read_text() == "*\n"
    for ran, code in ((("--step", "first"), 0), (("--id", "good"), 0), (("b.suite.yaml",), 0)):  # none is about `bad`
        (folder / "b.suite.yaml").write_text(
            SUITE.replace("name: t", "name: b").replace("contains: nope", "contains: hi")
        )
        assert run(folder, *(("t.suite.yaml", *ran) if "b.suite.yaml" not in ran else ran)).returncode == code
    (folder / "b.suite.yaml").unlink()
    again = run(folder, "t.suite.yaml", "--last-failed")
    assert "good" not in again.stdout
    assert again.returncode == 1
    failing = SUITE.replace("name: t", "name: t\nhooks: {beforeAll: [{command: ['false']}]}")
    (folder / "t.suite.yaml").write_text(failing)
    assert run(folder).returncode == 3
    assert json.loads((folder / ".llmproxy" / "last-failed.json").read_text())["failed"] == ["t/bad", "t/good"]


ASKS = f"""{ASK}
def answer(message):
    return ask(message)["content"]
"""


def test_a_recording_is_looked_at(folder: Path) -> None:
    """What would cost too much is not begun, by what the last one cost; what stands in no file proves nothing in CI."""
    (folder / "agent.py").write_text(ASKS)
    (folder / "t.suite.yaml").write_text(SUITE.replace("observe: none, ", ""))
    with Provider(load({"ordered": False, "steps": [{"user": "hi", "say": "hi", "times": None}]})) as upstream:
        typed = ("--id", "good", "--mode", "record", "--upstream", f"openai={upstream.url}")
        first = run(folder, *typed)
        assert first.returncode == 0, first.stdout + first.stderr
        asked = len(upstream.requests)
        again = run(folder, *typed, "--max-cost", "0")
        assert "by the last recording this would cost $" in again.stdout + again.stderr
        assert (again.returncode, len(upstream.requests)) == (2, asked)
    for kept in (folder / CASSETTES).iterdir():
        kept.write_text(kept.read_text().replace("started_at: 1", "started_at: 0.1"))
    stale = run(folder, "--id", "good", "--max-age", "30d", "--fail-on-stale", "--report", "junit=old.xml")
    assert stale.returncode == 10
    assert "exit code 10 because of --fail-on-stale: 1 hit (1 older than its max age)" in stale.stdout
    assert "1 older than its max age" in (folder / "old.xml").read_text()
    for kept in (folder / CASSETTES).iterdir():
        kept.unlink()
    replayed = run(folder, "--id", "good", CI="true")
    assert "1 hit is of what stands in the store alone, in no file of tests/cassettes" in replayed.stdout
    assert (replayed.returncode, "1 passed" in replayed.stdout) == (4, True)


def test_the_trend_tells_how_the_last_tests_went(folder: Path) -> None:
    """Of `llmproxy test` and pytest alike, what got worse first; without any test it says so, and runs nothing."""
    none = run(folder, "--trend")
    assert (none.returncode, "no test is kept yet" in none.stderr) == (5, True)
    run(folder, "--id", "good")
    (folder / "agent.py").write_text("def answer(message):\n    return 'no'\n")
    assert pytest_run.run(folder, "t.suite.yaml").ret == 1
    shown = run(folder, "--trend")
    assert shown.returncode == 0, shown.stderr
    head, *lines = shown.stdout.splitlines()
    assert (head[:16], head[-28:]) == ("the last 2 tests", "1 worse than the time before")
    assert lines[:2] == ["  .F  good  passed 1 of 2  worse", "   F  bad   passed 0 of 1"]
    only = run(folder, "--trend", "--id", "bad")
    assert ("good" not in only.stdout, "bad" in only.stdout) == (True, True)
    gone = run(folder, "--trend", "--id", "gone")
    assert (gone.returncode, "none of the last 2 tests ran the selected scenarios" in gone.stderr) == (5, True)


@pytest.mark.parametrize(("words", "code", "said"), [
    (("--tags", "smoke and slow"), 5, "nothing selected"),
    (("--grep", "nothing like it"), 5, "nothing selected"),
    (("--id", "goood"), 2, "did you mean `good`"),
    (("--tags", "smok"), 2, "did you mean 'smoke'"),
    (("none.yaml",), 2, "no such file"),
    (("--report", "pdf=x"), 2, "there is no 'pdf'"),
    (("--max-cost", "much"), 2, "US dollars"),
    (("--nonsense",), 2, "No such option"),
    (("--runs", "0"), 2, "runs"),
])  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_run_ends_at_once(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an exit code of its own, before a proxy is started."""
    assert main(["test", *words]) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert not STORE.exists()


@pytest.mark.usefixtures("folder")
def test_update_is_refused_in_ci(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot that nobody looked at proves nothing."""
    monkeypatch.setenv("CI", "true")
    assert main(["test", "--update"]) == 2
    assert "refused in CI" in capsys.readouterr().err


@pytest.mark.parametrize(("said", "words", "code"), [
    ("nothing selected", ["--grep", "nowhere"], 5),
    ("no scenario has the tag", ["--tag", "nowhere"], 2),
    ("1:", ["broken.suite.yaml"], 2),
    ("nonsense", ["--upstream", "nonsense"], 2),
])  # fmt: skip
def test_reports_are_whole_however_it_ends(folder: Path, said: str, words: list[str], code: int) -> None:
    """Nothing ran, and each report says why: it is neither empty nor that of the last run, and JUnit shows an error."""
    (folder / "broken.suite.yaml").write_text("name: [")
    kinds = ("junit", "html", "json", "jsonl")
    for kind in kinds:
        (folder / f"out.{kind}").write_text("all passed, last time")
    where = [] if words[0].endswith(".yaml") else ["t.suite.yaml"]
    assert main(["test", *where, *words, *(f"--report={kind}=out.{kind}" for kind in kinds)]) == code
    texts = {kind: (folder / f"out.{kind}").read_text() for kind in kinds}
    assert all(said in text for text in texts.values()), texts
    assert json.loads(texts["json"])["exit_code"] == json.loads(texts["jsonl"])["exit_code"] == code
    assert ET.fromstring(texts["junit"]).get("errors") == "1"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_report_that_is_lost_at_the_end_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk: the other reports are whole, the exit code is the environment's, and nobody is asked to report a bug."""
    words = ["--report=jsonl=/dev/full", "--report=json=out.json"]
    assert main(["test", "t.suite.yaml", "--id", "good", *words]) == 3
    said = capsys.readouterr().err
    assert "--report 'jsonl=/dev/full' could not be written: No space left on device" in said
    assert "internal error" not in said
    assert json.loads((folder / "out.json").read_text())["exit_code"] == 0


def test_nothing_recorded_is_exit_4_and_one_line(tmp_path: Path) -> None:
    """With the command that records it; the agent was not even started."""
    text = 'name: t\nagent: {command: [sh, -c, "touch started; cat"]}\nscenarios: [{id: a, steps: [{chat: hi}]}]\n'
    (tmp_path / "t.suite.yaml").write_text(text)
    done = run(tmp_path, "t.suite.yaml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "nothing is recorded for a; record it: llmproxy test t.suite.yaml --mode record" in done.stdout
    assert not (tmp_path / "started").exists()
    assert not list((tmp_path / CASSETTES).glob("*"))


def interrupted(folder: Path, agent: str, more: str, how: signal.Signals, *options: str, **env: str) -> str:
    """Return what a test says that hears a signal while its agent, which has written where to find it, waits."""
    waits = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    (folder / "agent.py").write_text(f"{agent}\n{waits}")
    suite = (
        f"name: t\nagent: {{command: [{python()}, agent.py]}}\nscenarios: [{{id: a, {more}steps: [{{chat: hi}}]}}]\n"
    )
    (folder / "t.suite.yaml").write_text(suite)
    command = [*program("llmproxy"), "test", "t.suite.yaml", *options, "--mode", "record"]
    running = subprocess.Popen(
        command, cwd=folder, env=clean_env(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    until(lambda: running.poll() is not None or ((folder / "pid").exists() and (folder / "pid").read_text()))
    running.send_signal(how)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    return said


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_test_cleans_up_and_ends_with_130(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, or a CI that gives up: agent and proxy are gone, the end is told, in the report as well; no traceback."""
    said = interrupted(tmp_path, "", "observe: none, ", how, "--report", "json=out.json")
    assert "Traceback" not in said, said
    kept = "0 of 1 runs were over; the others have no result, but what they recorded is kept\nno results in "
    assert (kept in said, "again: llmproxy test t.suite.yaml --id a --mode record\n" in said) == (True, True), said
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_interrupted_agent_is_not_blamed_for_its_calls(tmp_path: Path) -> None:
    """Its scenario had no end after which it could have gone on: Ctrl-C came while it was answering."""
    with Provider([step(user="hi", say="Hello.")]) as provider:
        env = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "k"}
        said = interrupted(tmp_path, f"{ASK}\nask('hi')", "", signal.SIGINT, **env)
        assert len(provider.requests) == 1
    assert ("interrupted" in said, "further calls" in said) == (True, False), said


def test_a_first_suite_can_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without questions if it is said how the agent is reached; nothing is written over."""
    assert main(["test", "--init", "--agent", "agent:answer"]) == 0
    assert 'agent: {python: "agent:answer"}' in (folder / "tests" / "agent.suite.yaml").read_text()
    assert main(["suite", "validate", "tests"]) == 0
    assert main(["test", "--init", "--agent", "agent:answer"]) == 2
    assert main(["test", "--init"]) == 2
    assert "nobody to ask" in capsys.readouterr().err


def test_the_first_suite_finds_its_agent(tmp_path: Path) -> None:
    """It lies in tests/, and the command was typed one folder above; a module of this folder is found, too. An ordinary program, the
    example of the question itself, prints its answer: the suite passes with it.
    """
    (tmp_path / "agent.py").write_text("print('hello')\n\ndef answer(message):\n    return 'hello'\n")
    for name, agent in (("one", f"{python()} agent.py"), ("two", "agent:answer")):
        target = tmp_path / "tests" / f"{name}.suite.yaml"
        assert run(tmp_path, "--init", f"tests/{name}.suite.yaml", "--agent", agent).returncode == 0
        assert ("# lines: false starts it" in target.read_text()) is (name == "one")
        target.write_text(target.read_text().replace("usage: {callCount: {gte: 1}}", "observe: none"))
        done = run(tmp_path, f"tests/{name}.suite.yaml")
        assert done.returncode == 0, done.stdout + done.stderr


def test_help_begins_with_what_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert text.index("--tags") < text.index("--report") < text.index("--mode replay|") < text.index("--port")


def test_a_service_finds_its_proxy_where_it_was_told(folder: Path) -> None:
    """An agent at a `url` has its base URLs already, so the proxy listens at the port of the settings."""
    (folder / "t.suite.yaml").write_text(SUITE.replace('{python: "agent.py:answer"}', "{url: 'http://127.0.0.1:9/v1'}"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(folder, "--id", "good", LLMPROXY_PORT=port)
    assert (done.returncode, f"cannot listen on 127.0.0.1:{port}" in done.stderr) == (3, True)
