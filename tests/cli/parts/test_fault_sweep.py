"""Six agents with one weakness each, and a sound one: a sweep finds exactly that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider import Call, Provider, Reply, Script, Step
from tests.support import near
from tests.support.process import ROOT, clean_env, llmproxy, python, until

AGENT = ROOT / "fixtures" / "agents" / "stumbling.py"
WEAKNESSES = ("http-429", "http-500", "early-end", "length", "truncated-arguments", "duplicate-call")
ASKED = "Do I need an umbrella in Oslo?"
SCRIPT = Script(
    (
        Step(Reply(call=(Call("get_weather", {"city": "Oslo"}),)), user=ASKED, times=None),
        Step(Reply("Yes, take one: it rains in Oslo."), user=ASKED, tool_result="rain", times=None),
        Step(
            Reply("Rain in Oslo today: take the umbrella with you."), user="Sum it up, please.", results=1, times=None
        ),
    ),
    ordered=False,
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Record the sound agent once; returns the URL of a proxy that replays it."""
    store = tmp_path_factory.mktemp("sweep") / "x.db"
    with Provider(SCRIPT) as p, near("record", store, upstreams={"openai": p.url}) as px:
        env = {**os.environ, "OPENAI_BASE_URL": f"{px.url}/v1"}
        subprocess.run([python(), str(AGENT)], env=env, check=True, timeout=60)
    with near("replay", store) as px:
        yield px.url


def sweep(replay: str, kinds: str, *agent: str, code: int, options: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Sweep a command at the running proxy; returns the findings."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        words = ("run", "--faults", kinds, "--json", str(file), *options, "--", *agent)
        done = llmproxy(*words, env={"LLMPROXY_URL": replay, "PYTHONPATH": str(ROOT)})
        assert done.returncode == code, done.stdout + done.stderr
        found: list[dict[str, object]] = [{"said": done.stderr}]
        if file.is_file() and (told := json.loads(file.read_text("utf-8"))):
            found = told
            assert f"{len(found)} fault" in done.stdout
    return found


@pytest.mark.parametrize(
    "weak",
    ["length", *(pytest.param(each, marks=pytest.mark.slow) for each in (None, *WEAKNESSES) if each != "length")],
)
def test_the_planted_weakness_is_found_and_nothing_else(replay: str, weak: str | None) -> None:
    """Of a sound agent every fault is recovered from; of the others only the planted one is not."""
    more = ["--weak", weak] if weak else []
    breaks = weak not in (None, "duplicate-call")  # whose second call leads past the recording: `went on`, at call 2
    found = sweep(replay, f"sweep:{','.join(WEAKNESSES)}", python(), str(AGENT), *more, code=int(breaks))
    assert len(found) == 12
    assert {each["kind"] for each in found if each["outcome"] != "recovered"} == ({weak} if weak else set())
    assert {each["kind"] for each in found if each["weak"]} == ({weak} if breaks else set())


@pytest.mark.slow
def test_a_sound_agent_stands_all_of_it(replay: str) -> None:
    """All kinds that a sweep takes, at every call: recovered, or given up with a message where that is sound."""
    found = sweep(replay, "sweep", python(), str(AGENT), code=0)
    assert len(found) > 40
    assert {each["outcome"] for each in found} == {"recovered", "gave up"}


@pytest.fixture
def hangs(tmp_path: Path) -> str:
    """Return an agent that waits for ever after a fault."""
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": ASKED}], "tools": OFFERED}
    (tmp_path / "hangs.py").write_text(HANGS.replace("BODY", repr(json.dumps(body))))
    return str(tmp_path / "hangs.py")


def test_what_hangs_is_ended(replay: str, hangs: str) -> None:
    """It is killed with what it started, and said to hang."""
    (found,) = sweep(replay, "sweep:reset", sys.executable, hangs, code=1, options=("--patience", "3"))
    assert (found["outcome"], found["weak"]) == ("hung", True)


def test_a_sweep_that_is_interrupted_is_no_whole_one(replay: str, hangs: str, tmp_path: Path) -> None:
    """Ctrl-C while the first faulty run hangs: what is printed says so, and none is said to have been borne."""
    words = [sys.executable, "-m", "llmproxy", "run", "--faults", "sweep:reset", "--", sys.executable, hangs]
    env = clean_env({"LLMPROXY_URL": replay, "HANGING": str(tmp_path / "hanging"), "PYTHONPATH": str(ROOT)})
    running = subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    until((tmp_path / "hanging").exists)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=120)
    none = ["interrupted, so not all faults were tried:", "0 faults, one at a time: none"]
    assert (running.returncode, said.splitlines()[-2:]) == (130, none)


HANGS = """
import os, pathlib, subprocess, sys, urllib.request
sent = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", BODY.encode(), {"content-type": "application/json"})
try:
    urllib.request.urlopen(sent).read()
except OSError:
    if "HANGING" in os.environ:
        pathlib.Path(os.environ["HANGING"]).touch()
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""
OFFERED = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code", "said"), [
    (("-c", "pass"), 3, "undisturbed, the command asked the proxy nothing"),
    (("{AGENT}", "--weak", "nonsense"), 3, "undisturbed, the command asked the proxy nothing"),
    (("-c", "import os, urllib.request as u; u.urlopen(os.environ['OPENAI_BASE_URL'] + '/models/x')"), 4,
     "asks what is not recorded"),
])  # fmt: skip
def test_without_a_sound_run_there_is_no_sweep(replay: str, command: tuple[str, ...], code: int, said: str) -> None:
    (found,) = sweep(replay, "sweep", python(), *(each.format(AGENT=AGENT) for each in command), code=code)
    assert said in str(found["said"])


def test_a_sweep_replays(replay: str) -> None:
    """Another mode is refused: faults at a provider's expense are nobody's wish."""
    (found,) = sweep(replay, "sweep", "true", code=2, options=("--mode", "record"))
    assert "a sweep replays" in str(found["said"])
