"""``llmproxy start`` up to the moment when the proxy takes over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.cli.env import wait_until_serving
from llmproxy.client.control import ControlApiClient, ProxyUnreachable
from llmproxy.settings import list_options_of_settings
from tests.support.forked import program
from tests.support.process import clean_env, free_port
from tests.support.proxy import ask_chat


def test_the_help_has_a_flag_and_a_variable_for_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are derived, so none can be forgotten."""
    assert main(["start", "--help-all"]) == 0
    text = "".join(capsys.readouterr().out.split())
    for option in list_options_of_settings():
        assert option.flag in text
        assert not option.has_flag or option.env in text


@pytest.mark.parametrize("there", [True, False])
def test_without_the_extra_it_is_started_where_it_can_be(tmp_path: Path, *, there: bool) -> None:
    """The base package is light: `start` finds the other llmproxy on PATH as `run` does, or says what to type."""
    if there:
        script = """case $1 in --version-json) echo '{"llmproxy": "0.2.0", "mitmproxy": "12.2"}';; *) echo "other: $*";; esac"""
        (tmp_path / "llmproxy").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "llmproxy").chmod(0o755)
    code = "import sys; sys.modules['mitmproxy'] = None\nfrom llmproxy.cli import main\nsys.exit(main())"
    words = [sys.executable, "-c", code, "start", "--mode", "auto"]
    env = clean_env({"PATH": str(tmp_path), "LLMPROXY_COMMAND": ""})
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    if there:
        assert (done.returncode, done.stdout) == (0, "other: start --mode auto\n")
    else:
        assert done.returncode == 3
        assert "needs mitmproxy" in done.stderr
        assert "'llmproxy-replay[proxy]" in done.stderr
    assert "Traceback" not in done.stderr


def test_who_waits_for_a_proxy_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ProxyUnreachable):
        wait_until_serving(ControlApiClient(url), 1.2)
    assert capsys.readouterr().err == f"llmproxy: nothing listens at {url} yet: waiting, 1.2 s at most\n"


def test_the_hint_of_a_miss_works_when_it_is_typed(tmp_path: Path) -> None:
    """The port is taken by the proxy that refused the request, so the hint ends that one first; then the other mode serves there."""
    port, command = free_port(), " ".join(program("llmproxy"))
    url, env = f"http://127.0.0.1:{port}", clean_env()

    def type_line(line: str) -> subprocess.Popen[bytes]:
        typed = line.replace("llmproxy st", f"{command} st")
        return subprocess.Popen(["sh", "-c", typed], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)

    first, control = type_line(f"llmproxy start --port {port}"), ControlApiClient(url)
    assert wait_until_serving(control, 60).mode == "replay"
    assert ask_chat(f"{url}/v1") == 404
    (miss,) = control.misses()
    second = type_line(miss.record)
    assert first.wait(60) == 0
    assert wait_until_serving(control, 60).mode == "auto"
    assert control.stop() == second.wait(60) == 0
