"""``llmproxy doctor``."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmproxy.client.bypass_monitor import ProcessMonitor
from tests.cli.test_run import asking
from tests.support.process import clean_env, free_port, llmproxy, needed
from tests.support.proxy import proxy

linux = pytest.mark.skipif(not ProcessMonitor().is_supported, reason="NOT RUN: needs Linux's /proc")


def doctor(*words: str, env: Mapping[str, str] | None = None, code: int) -> str:
    """Run it to its end, which has this code; returns what it said."""
    done = llmproxy("doctor", *words, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def bad(said: str) -> list[str]:
    return [line[6:] for line in said.splitlines() if line.startswith("BAD")]


def test_a_command_that_uses_the_proxy_is_fine(tmp_path: Path) -> None:
    """Exit code 0, and what arrived."""
    said = doctor("--store", str(tmp_path / "x.db"), *asking("hi"), code=0)
    assert bad(said) == [], said
    assert "traffic arrived: 0 hits, 1 miss" in said


@linux
def test_a_client_that_goes_past_the_proxy_is_named_with_advice(tmp_path: Path) -> None:
    """Its base URL stands in its code."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(3)"
        env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        said = doctor("--store", str(tmp_path / "x.db"), "--", sys.executable, "-c", code, env=env, code=1)
    assert any(f"went to 127.0.0.1:{port} itself, past the proxy" in line for line in bad(said))
    assert "no request arrived at the proxy" in bad(said)
    assert "Python, by base URL" in said


@pytest.mark.slow
@pytest.mark.parametrize("program", ["python", "node"])
def test_a_client_is_named_that_never_gets_as_far_as_a_connection(program: str, tmp_path: Path) -> None:
    """No name can be resolved, as in many a build container: what it asked for is told from inside."""
    if program == "python":
        code = "import socket\ntry: socket.create_connection(('no.api.openai.invalid', 443))\nexcept OSError: pass"
        words = [sys.executable, "-c", code]
    else:
        code = "fetch('https://no.api.openai.invalid/v1').catch(() => 0)"
        words = [shutil.which("node") or needed("node"), "-e", code]
    said = doctor("--store", str(tmp_path / "x.db"), "--", *words, code=1)
    assert any("went to no.api.openai.invalid:443 itself, past the proxy" in line for line in bad(said)), said
    assert f"{program.title()}, by base URL" in said


@linux
def test_a_child_that_lost_its_environment_is_named(tmp_path: Path) -> None:
    said = doctor("--store", str(tmp_path / "x.db"), "--", "env", "-i", "/bin/sleep", "3", code=1)
    assert any("/bin/sleep" in line and "without our variables" in line for line in bad(said))


@pytest.mark.slow
def test_a_shell_without_variables_is_told_what_to_type(tmp_path: Path) -> None:
    """The proxy answers, but nobody is sent to it."""
    with proxy("replay", tmp_path / "x.db") as px:
        said = doctor(env={"LLMPROXY_URL": px.url}, code=1)
        assert bad(said) == ["no variable of this shell points to the proxy: what it starts goes past it"]
        assert 'eval "$(llmproxy env)"' in said
        doctor(env={"LLMPROXY_URL": px.url, "OPENAI_BASE_URL": f"{px.url}/v1"}, code=0)


def test_nobody_at_the_port_is_found() -> None:
    """The variable is set, the proxy is not there."""
    port = free_port()
    said = doctor(env={"LLMPROXY_PORT": str(port), "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}, code=1)
    assert bad(said)[0].startswith(f"no llmproxy answers at http://127.0.0.1:{port}")


@pytest.mark.slow
@linux
def test_an_agent_that_runs_already_is_watched(tmp_path: Path) -> None:
    """Its own environment counts, not the shell's."""
    with proxy("replay", tmp_path / "x.db") as px:
        env = clean_env({"OPENAI_BASE_URL": "https://gw.example/v1"})
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], env=env) as agent:
            said = doctor("--pid", str(agent.pid), env={"LLMPROXY_URL": px.url}, code=1)
            agent.terminate()
    assert any("OPENAI_BASE_URL=https://gw.example/v1 points elsewhere" in line for line in bad(said)), said


def test_a_process_that_is_not_there_is_an_error() -> None:
    """Neither is one that is both watched and run."""
    doctor("--pid", "4194303", code=3)
    doctor("--pid", str(os.getpid()), "--", *shlex.split("true"), code=2)
