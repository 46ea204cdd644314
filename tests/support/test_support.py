"""The helpers: processes are waited for, ended politely and leave their output; a proxy records from a scripted provider."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coding.lab import AWAY, can_cut_off
from tests.support import Process
from tests.support.forked import program, python_itself
from tests.support.process import clean_env, needed


def python(code: str, folder: Path) -> Process:
    """Start a Python that runs `code`."""
    return Process([sys.executable, "-u", "-c", code], folder, "child", clean_env())


def test_a_process_is_waited_for_and_ended(tmp_path: Path) -> None:
    """Its output can be read while it runs, and a signal ends it with its own exit code."""
    code = "import signal,sys; signal.signal(2, lambda *_: sys.exit(7)); print('up'); signal.pause()"
    child = python(code, tmp_path)
    child.wait_until(lambda: "up" in child.stdout)
    assert child.exit_code is None
    assert child.end(signal.SIGINT) == 7


def test_a_process_that_dies_early_says_why(tmp_path: Path) -> None:
    """Waiting for it raises with what it wrote."""
    child = python("raise SystemExit('no such luck')", tmp_path)
    with pytest.raises(RuntimeError, match="no such luck"):
        child.wait_until(lambda: False)


SAYS = """
import os, sys, warnings, here
warnings.warn("odd", UserWarning)
if __name__ == "__main__":
    print(sys.argv[1:], os.getcwd(), os.environ["SAID"], here.VALUE, sys.stdin.read(), file=sys.stderr)
def test_it(): assert 1 == 2
"""


@pytest.mark.parametrize("alone", [True, False])
def test_a_forked_program_is_what_python_would_start(alone: bool, tmp_path: Path) -> None:
    """Words, folder, environment, input, modules beside it, warnings, exit code."""
    (tmp_path / "here.py").write_text("VALUE = 'module'")
    (tmp_path / "says.py").write_text(SAYS)
    for name, words, code, said in (
        ("llmproxy", ["nosuch"], 2, "nosuch"),
        ("python", ["says.py", "a b"], 0, f"['a b'] {tmp_path} env module input\n"),
        ("python", ["-c", SAYS, "a b"], 0, f"['a b'] {tmp_path} env module input\n"),
        ("pytest", ["-q", "says.py", "-p", "no:cacheprovider"], 1, "assert 1 == 2"),
    ):
        known = {"SAID": "env", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
        command = python_itself(name) if alone else program(name)
        done = subprocess.run([*command, *words], cwd=tmp_path, env=clean_env(known), input="input", text=True, capture_output=True, timeout=120, check=False)  # fmt: skip
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
        assert "warning" not in done.stdout + done.stderr


def test_a_forked_program_is_in_the_network_of_who_asks() -> None:
    """It reaches a port of this machine, and none from where nobody can; it may end at once, by a code of its own."""
    if not can_cut_off():
        pytest.skip("no network namespaces here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import os, socket; os._exit(7 if socket.socket().connect_ex({server.getsockname()}) else 3)"
        for away, ended in (((), 3), (AWAY, 7)):
            done = subprocess.run([*away, *program("python"), "-c", code], env=clean_env(), timeout=120, check=False)
            assert done.returncode == ended


@pytest.mark.parametrize(("asked", "fails"), [("all, go", 1), ("go,java", 1), ("", 0), ("all", 0), ("cobol", 0)])
def test_what_is_required_by_name_may_not_be_absent(asked: str, fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMPROXY_TEST_REQUIRE", asked)
    with pytest.raises((pytest.fail if fails else pytest.skip).Exception, match="no go on this machine"):
        needed("no go on this machine", "go", rare=True)
