"""What suites in pytest share: a proxy as `llmproxy test` starts it, one that is tried once, and turns among workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.errors import MachineError
from llmproxy.pytest.suite_bench import SuiteBench
from tests.support import Proxy, proxy
from tests.support.process import ROOT, clean_env


def test_the_proxy_is_started_as_by_the_command(tmp_path: Path) -> None:
    """Recordings in tests/cassettes, the database where nobody commits it; a folder that is not there yet only where it is needed."""
    words = SuiteBench(tmp_path, "replay")._options({})
    assert f"--store={tmp_path / '.llmproxy' / 'llmproxy.db'}" in words
    assert not [word for word in words if word.startswith("--cassette-dir")]
    assert "--allow-live" not in words
    assert (tmp_path / ".llmproxy" / ".gitignore").read_text() == "*\n"
    recording = SuiteBench(tmp_path, "record")._options({})
    assert {f"--cassette-dir={tmp_path / 'tests' / 'cassettes'}", "--allow-live"} <= set(recording)
    assert f"--cassette-dir={tmp_path / 'mine'}" in SuiteBench(tmp_path, "replay", "mine")._options({})


def test_what_the_project_says_is_left_to_the_proxy(tmp_path: Path) -> None:
    """It reads the same settings itself."""
    (tmp_path / "pyproject.toml").write_text('[tool.llmproxy]\nstore = "x.db"\ncassette-dir = "c"\n')
    words = SuiteBench(tmp_path, "record")._options({})
    assert not [word for word in words if word.startswith(("--store", "--cassette-dir"))]


def test_a_proxy_that_cannot_start_is_tried_once(tmp_path: Path) -> None:
    """No scenario waits for it again."""
    bench = SuiteBench(tmp_path, "replay")
    with pytest.raises(MachineError, match="cannot start the proxy"):
        bench.proxy({"LLMPROXY_COMMAND": "/nosuch/llmproxy"})
    with pytest.raises(MachineError, match="cannot start the proxy"):
        bench.proxy({})
    bench.close()


def test_a_running_proxy_is_used(tmp_path: Path) -> None:
    """The one that LLMPROXY_URL names; it is not ended with us."""
    px: Proxy
    with proxy("replay", tmp_path / "x.db") as px:
        bench = SuiteBench(tmp_path, "replay")
        assert bench.proxy({"LLMPROXY_URL": px.url}) == px.url
        bench.close()
        assert px.is_healthy()


def test_workers_take_turns(tmp_path: Path) -> None:
    """Two processes never hold it at the same time."""
    code = f"""
import pathlib, time
from llmproxy.pytest.suite_bench import SuiteBench
root = pathlib.Path({str(tmp_path)!r})
for _ in range(20):
    with SuiteBench(root, "replay").alone():
        (root / "inside").mkdir()
        time.sleep(0.01)
        (root / "inside").rmdir()
"""
    env = clean_env({"PYTHONPATH": str(ROOT), "PYTEST_XDIST_WORKER": "gw0"})
    both = [subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE) for _ in range(2)]
    assert [each.communicate(timeout=60)[1] for each in both] == [b"", b""]
    assert [each.returncode for each in both] == [0, 0]
