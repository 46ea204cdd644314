"""A proxy of our own, as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmproxy.client.process.command import Command
from llmproxy.client.process.proxy import spawn
from llmproxy.errors import MachineError
from tests.support.process import clean_env

HERE = Command((sys.executable, "-m", "llmproxy"), "this environment")


def test_it_serves_on_a_free_port_and_ends_when_asked(tmp_path: Path) -> None:
    """Two at once have two ports; quiet settings do not hide the address."""
    env = clean_env({"LLMPROXY_QUIET": "1", "LLMPROXY_URL": "http://other", "LLMPROXY_COMMAND": "other"})
    both = [spawn(HERE, ["--store", str(tmp_path / f"{n}.db")], env, log=tmp_path / f"{n}.log") for n in range(2)]
    urls = {proxy.wait_ready() for proxy in both}
    assert len(urls) == 2
    assert {proxy.control.health().mode for proxy in both} == {"replay"}
    assert [proxy.end() for proxy in both] == [0, 0]
    assert not any(proxy.alive for proxy in both)


@pytest.mark.slow
def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The end of its output is in the error, and how it was called."""
    (tmp_path / "x.db").write_text("this is no database, and long enough to be read as one " * 20)
    proxy = spawn(HERE, ["--store", str(tmp_path / "x.db")], clean_env(), log=tmp_path / "log")
    with pytest.raises(MachineError, match=r"the proxy ended with 3:(.|\n)*x\.db(.|\n)*-m llmproxy"):
        proxy.wait_ready()


def test_one_that_never_serves_is_given_up(tmp_path: Path) -> None:
    """With how long it was waited for, and that it said nothing."""
    proxy = spawn(
        Command(("sh", "-c", "exec sleep 600"), "a test", patience=0.2), [], clean_env(), log=tmp_path / "log"
    )
    with pytest.raises(MachineError, match=r"the proxy does not serve after 0\.2 s:\n\(it said nothing\)"):
        proxy.wait_ready()
    assert not proxy.alive


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A stale LLMPROXY_COMMAND."""
    with pytest.raises(MachineError, match=r"cannot start the proxy: /nosuch/llmproxy(.|\n)*LLMPROXY_COMMAND"):
        spawn(Command(("/nosuch/llmproxy",), "LLMPROXY_COMMAND"), [], clean_env(), log=tmp_path / "log")


def test_what_should_be_read_first_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A download is announced before it begins."""
    with pytest.raises(MachineError):
        spawn(Command(("/nosuch/uvx",), "uvx", notice="it downloads"), [], clean_env(), log=tmp_path / "log")
    assert capsys.readouterr().err == "llmproxy: it downloads\n"


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    """A crashed test run leaves no proxy behind."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom llmproxy.client.process.command import Command\nfrom llmproxy.client.process.proxy import spawn\nimport os\n"
        "p = spawn(Command((sys.executable, '-m', 'llmproxy'), ''), ['--store', sys.argv[1]], os.environ, log=Path(sys.argv[2]))\n"
        "p.wait_ready()\nprint(p.popen.pid, flush=True)\ntime.sleep(60)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "x.db"), str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=clean_env()) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 15
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Tell whether a process is there and more than a corpse that nobody buried."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
