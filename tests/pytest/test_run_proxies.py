"""One proxy for all workers of xdist, kept by their controller."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmproxy.errors import MachineError
from llmproxy.pytest.run_proxies import XdistControllerProxyLauncher, XdistWorkerProxyUrlRequester
from tests.provider import Provider, step
from tests.support import pytest_run
from tests.support.process import ROOT, clean_env, llmproxy, until

SUITE = """
import os, pathlib, pytest, signal, time
from app import ask

@pytest.fixture(autouse=True)
def told():
    pathlib.Path(f"told-{os.getpid()}").write_text(os.environ["LLMPROXY_URL"])
"""
ASK = """
@pytest.mark.parametrize("n", range(12))
def test_ask(llmproxy, n):
    assert ask(f"question {n}") == "hello"
    assert [call.seq for call in llmproxy.calls()] == [1]
"""
KILL = """
@pytest.mark.llmproxy(cassette="same")
def test_a():
    ask("one")
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.llmproxy(cassette="same")
def test_b():
    ask("two")
"""
CRASH = """
def test_c(llmproxy):
    ask("one")
    if os.environ.get("CRASH"):
        os._exit(1)
    ask("two")
"""
SLOW = """
@pytest.mark.parametrize("n", range(2))
def test_slow(llmproxy, n):
    ask("one")
    pathlib.Path(f"waits-{n}").touch()
    time.sleep(60)
"""


def addresses(folder: Path) -> set[str]:
    """Return where the proxies served that workers were told of."""
    return {each.read_text("utf-8") for each in folder.glob("told-*")}


def serves(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def gone(folder: Path) -> bool:
    """Return whether workers and proxies of a run have ended."""
    workers = [Path("/proc", each.name.partition("-")[2]) for each in folder.glob("told-*")]
    return not any(serves(url) for url in addresses(folder)) and not any(each.exists() for each in workers)


def record_or_replay(folder: Path, provider: Provider, workers: str, mode: str = "record") -> pytest.RunResult:
    """Run the tests of a folder in so many workers."""
    words = ("-n", workers, "--llmproxy-mode", mode)
    return pytest_run.run(folder, *words, OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="sk-mine")


def test_workers_share_a_proxy_and_their_sessions_stay_apart(tmp_path: Path) -> None:
    """Recorded and replayed by three at once: one address, each call in its own test's cassette, nothing left."""
    pytest_run.write(tmp_path, app=pytest_run.APP, test_it=SUITE + ASK)
    with Provider([step(say="hello", times=None)]) as provider:
        for mode, counts in (("record", "0 hits, 0 misses, 12 recorded"), ("replay", "12 hits, 0 misses, 0 recorded")):
            ran = record_or_replay(tmp_path, provider, "3", mode)
            ran.assert_outcomes(passed=12)
            assert f"12 tests: {counts}" in ran.stdout.str()
            assert len(addresses(tmp_path)) == 1
            assert gone(tmp_path)
            for each in tmp_path.glob("told-*"):
                each.unlink()
        assert len(provider.requests) == 12


@pytest.mark.slow
def test_what_a_killed_worker_leaves_open_is_closed(tmp_path: Path) -> None:
    """The worker that takes its place records in the cassette that the dead one had open, at the same proxy."""
    pytest_run.write(tmp_path, app=pytest_run.APP, test_it=SUITE + KILL)
    with Provider([step(say="hello", times=None)]) as provider:
        ran = record_or_replay(tmp_path, provider, "1")
    ran.assert_outcomes(passed=1, failed=1)
    assert "crashed" in ran.stdout.str()
    assert len(addresses(tmp_path)) == 1
    assert gone(tmp_path)


@pytest.mark.slow
def test_a_worker_that_dies_replaces_nothing(tmp_path: Path) -> None:
    """Under `--llmproxy-update=all` the old recording stays, as when the whole run is killed."""
    pytest_run.write(tmp_path, app=pytest_run.APP, test_it=SUITE + CRASH)
    with Provider([step(say="hello", times=None)]) as provider:
        record_or_replay(tmp_path, provider, "1").assert_outcomes(passed=1)
        words = ("-n", "1", "--llmproxy-update=all")
        ran = pytest_run.run(tmp_path, *words, OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="sk-mine", CRASH="1")
        ran.assert_outcomes(failed=1)
        record_or_replay(tmp_path, provider, "1", "replay").assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_leaves_nothing_running_and_no_cassette_complete(tmp_path: Path, workers: int) -> None:
    """The proxy ends itself, and nobody told it that the tests were over: mode `once` records what is missing."""
    pytest_run.write(tmp_path, app=pytest_run.APP, test_it=SUITE + SLOW)
    with Provider([step(say="hello", times=None)]) as provider:
        env = clean_env({"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": provider.url + "/v1", "OPENAI_API_KEY": "sk-mine"})
        words = [*pytest_run.QUICK, *pytest_run.PLUGIN, "-n", str(workers), "--llmproxy-mode", "once"]
        with (tmp_path / "out.txt").open("w") as out:
            command = [sys.executable, "-m", "pytest", *words]
            ran = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out)
            while ran.poll() is None and len(list(tmp_path.glob("waits-*"))) < (workers or 1):
                time.sleep(0.05)
            assert ran.poll() is None, (tmp_path / "out.txt").read_text("utf-8")
            ran.send_signal(signal.SIGKILL)
            ran.wait()
        assert len(addresses(tmp_path)) == 1
        until(lambda: gone(tmp_path))
        until(lambda: llmproxy("ls", cwd=tmp_path).stdout.count("incomplete") == (workers or 1))


def test_who_does_not_have_the_key_starts_nothing(tmp_path: Path) -> None:
    """Nor does a worker in another folder ask its controller."""
    run = XdistControllerProxyLauncher(clean_env({"LLMPROXY_COMMAND": "/nosuch"}), tmp_path)
    try:
        for address, said in (
            (re.sub(r'"key": "\w+"', '"key": "x"', run.address), "the controller of this worker has ended"),
            (run.address, "cannot start the proxy: /nosuch"),
        ):
            asked = XdistWorkerProxyUrlRequester.from_variable(address, tmp_path)
            assert asked is not None
            asked.start(["--mode", "replay"])
            with pytest.raises(MachineError, match=said):
                asked.wait_ready()
            asked.end()
        assert XdistWorkerProxyUrlRequester.from_variable(run.address, tmp_path / "other") is None
        assert XdistWorkerProxyUrlRequester.from_variable(None, tmp_path) is None
    finally:
        run.end()
    assert os.environ.get("PYTEST_LLMPROXY_RUN") is None
