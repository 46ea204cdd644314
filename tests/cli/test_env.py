"""``llmproxy env``, ``status`` and ``stop``, with a real proxy; and how a proxy that is ended ends."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.cli import main
from llmproxy.cli.env import format_env_assignments
from tests.provider import Provider, step
from tests.support.forked import program
from tests.support.process import clean_env, free_port, llmproxy
from tests.support.proxy import DIRECT, Proxy, alone, ask_chat, proxy
from tests.support.services import QuietHandler

ENV = (*program("llmproxy"), "env")


run = partial(llmproxy, "env")


def test_a_shell_that_evaluates_it_uses_the_proxy(px: Proxy) -> None:
    """Base URLs with the session, a key for SDKs that insist on one, and NO_PROXY."""
    command = f'eval "$({" ".join(ENV)} --url {px.url} --session "my test")"; echo "$OPENAI_BASE_URL $OPENAI_API_KEY $NO_PROXY"'
    done = subprocess.run(
        ["sh", "-c", command], env=clean_env(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{px.url}/s/my%20test/v1 llmproxy-placeholder 127.0.0.1,localhost,::1\n"


def test_it_finds_the_proxy_where_start_would_listen(px: Proxy) -> None:
    """By LLMPROXY_URL, or by the same settings as `llmproxy start`."""
    for env in ({"LLMPROXY_URL": px.url}, {"LLMPROXY_PORT": str(px.port), "LLMPROXY_HOST": "0.0.0.0"}):
        assert json.loads(run("--format", "json", env=env).stdout)["ANTHROPIC_BASE_URL"] == f"{px.url}/anthropic"


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--format", "cmd"], 2, "sh, fish, powershell, dotenv, json"),
    (["--url", "http://127.0.0.1:9"], 3, "no llmproxy answers"),
])  # fmt: skip
def test_what_goes_wrong_is_said_on_stderr_only(words: list[str], code: int, said: str) -> None:
    """Whatever stands on stdout is evaluated by a shell."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_proxy_that_does_not_intercept_gives_no_such_variables(tmp_path: Path) -> None:
    """Half of them would break every HTTPS connection of the shell."""
    with proxy("replay", tmp_path / "x.db") as px:
        if px.control("health").get("ca"):
            done = run("--url", px.url, "--intercept", "--format", "json")
            assert Path(json.loads(done.stdout)["SSL_CERT_FILE"]).is_file()
        else:
            done = run("--url", px.url, "--intercept")
            assert (done.returncode, done.stdout) == (3, "")


def test_a_shell_may_ask_while_its_proxy_starts_and_be_told_when_it_has_ended(tmp_path: Path) -> None:
    """As docs/run.md has it: `start &`, then `env` at once. After `stop` the shell's LLMPROXY_URL is stale: what needs it
    says so without waiting, and `start` forwards to nobody's dead address.
    """
    words = " ".join(program("llmproxy"))
    script = f'{words} start > start.log & eval "$({words} env)"; echo "$OPENAI_BASE_URL"; {words} stop'
    script += f"; {words} env; {words} run -- true; {words} settings"
    port = free_port()
    env, home = clean_env({"LLMPROXY_PORT": str(port)}), f"http://127.0.0.1:{port}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines()[:2] == [f"{home}/v1", f"{home}  stopped"]
    assert done.stderr.count(f"no llmproxy answers at {home}: Connection refused") == 2
    assert done.stderr.count("type: unset LLMPROXY_URL") == 2
    assert home not in done.stdout.partition("stopped")[2]


ODD = {"A": 'it\'s $HOME `x` "y" \\', "B": "http://127.0.0.1:1/s/a%20b/v1"}


def test_a_shell_reads_back_what_was_written() -> None:
    """Nothing in a value is executed or expanded."""
    script = format_env_assignments(ODD, "sh") + '\nprintf \'%s|%s\' "$A" "$B"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{ODD['A']}|{ODD['B']}"


@pytest.mark.parametrize(("form", "value", "text"), [
    ("fish", "it's", "set -gx A 'it\\'s';"),
    ("powershell", "it's", "$env:A = 'it''s'"),
    ("dotenv", "it's", 'A="it\'s"'),
    ("dotenv", ODD["B"], f"A='{ODD['B']}'"),
])  # fmt: skip
def test_each_form_quotes_in_its_own_way(form: str, value: str, text: str) -> None:
    """An apostrophe is the test of every quoting; else dotenv takes single quotes, which are literal to all readers."""
    assert format_env_assignments({"A": value}, form) == text


def test_json_is_an_object() -> None:
    assert json.loads(format_env_assignments(ODD, "json")) == ODD


def test_status_says_what_runs_and_stop_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mode, sessions and sums; afterwards nobody answers, everything is stored, and the exit code is 0."""
    store = tmp_path / "x.db"
    with Provider([step(user="hi", say="hello")]) as up, proxy("record", store, upstreams={"openai": up.url}) as px:
        assert ask_chat(f"{px.url}/v1") == 200
        assert main(["status", "--url", px.url]) == 0
        said = capsys.readouterr().out
        assert f"{px.url}  mode record" in said
        assert "session default: 0 hits, 0 misses, 1 recorded" in said
        assert main(["stop", "--url", px.url]) == 0
        assert capsys.readouterr().out == f"{px.url}  stopped\n"
        assert px.wait() == 0
    assert "0 hits, 0 misses, 1 recorded" in px.stdout
    with proxy("replay", store) as px:
        assert ask_chat(f"{px.url}/v1") == 200


@pytest.mark.parametrize("command", ["status", "stop", "env", "doctor"])
def test_a_port_that_is_any_is_not_asked(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2: the settings name none, and it says who does."""
    monkeypatch.setenv("LLMPROXY_PORT", "0")
    assert main([command]) == 2
    said = capsys.readouterr().err
    assert "port = 0 (environment LLMPROXY_PORT)" in said
    assert "export LLMPROXY_URL=http://127.0.0.1:PORT" in said


ENDINGS: dict[str, Callable[[Proxy], object]] = {
    "SIGINT": lambda px: px.popen.send_signal(signal.SIGINT),
    "SIGTERM": lambda px: px.popen.send_signal(signal.SIGTERM),
    "SIGHUP": lambda px: px.popen.send_signal(signal.SIGHUP),
    "stop": lambda px: main(["stop", "--url", px.url]),
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize(("options", "code"), [((), 0), (("--fail-on-miss",), 4), (("--strict",), 4)])
def test_however_a_proxy_is_ended_its_exit_code_says_what_came(
    how: str, options: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A miss was refused: 4 where that was asked for, else 0; never a signal's number. `stop` ends with it too, and says so."""
    started = alone if how == "SIGHUP" or not options else proxy
    with started("replay", tmp_path / "x.db", options=options) as px:
        assert ask_chat(f"{px.url}/v1") in (400, 404)
        ended = ENDINGS[how](px)
        assert px.wait() == code
    assert "0 hits, 1 miss" in px.stdout
    if how == "stop":
        assert (ended, "stopped with exit code 4" in capsys.readouterr().out) == (code, code == 4)


class Ending(QuietHandler):
    """A proxy that says, once it was asked to stop, that it is ending, and is gone then."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802 - as the library names it
        type(self).asked_to_stop = True
        self.answer(b'{"exit_code": 4}', connection="close")

    asked_to_stop = False

    def do_GET(self) -> None:  # noqa: N802 - as the library names it
        if not self.asked_to_stop:
            self.answer(b'{"status": "ok", "version": "1"}', connection="close")
            return
        self.server.server_close()
        self.answer(b'{"error": {"message": "llmproxy: the proxy is ending"}}', status=500, connection="close")


def test_a_proxy_that_still_says_that_it_is_ending_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine it answers a question between the order and its end: that is no error."""
    server = HTTPServer(("127.0.0.1", 0), Ending)

    def serve() -> None:
        for _ in ("health", "stop", "health"):
            server.handle_request()

    serving = threading.Thread(target=serve)
    serving.start()
    assert main(["stop", "--url", f"http://127.0.0.1:{server.server_port}"]) == 4
    serving.join()
    assert "stopped with exit code 4" in capsys.readouterr().out


def test_what_is_no_proxy_is_not_said_to_have_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers everything with JSON, as the scripted provider and many a development server do."""
    with Provider([step(json={"ok": True}, times=None)], check=False) as up:
        assert main(["stop", "--url", up.url]) == 3
    told = capsys.readouterr()
    assert ("is not llmproxy" in told.err, told.out) == (True, "")


def test_a_web_page_cannot_stop_a_proxy(tmp_path: Path) -> None:
    """What a browser sends names its page: refused, and the proxy serves on."""
    with proxy("replay", tmp_path / "x.db") as px:
        asked = Request(f"{px.url}/_llmproxy/stop", b"{}", {"origin": "http://evil.example"})
        with pytest.raises(HTTPError, match="403"):
            DIRECT.open(asked, timeout=60)
        assert px.is_healthy()
