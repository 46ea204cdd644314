"""``llmproxy status`` and ``llmproxy stop``, with a real proxy; and how a proxy that is ended ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from llmproxy.cli import main
from tests.provider import Provider, step
from tests.support.proxy import DIRECT, Proxy, alone, ask_chat, proxy


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


class Ending(BaseHTTPRequestHandler):
    """A proxy that says, once it was asked to stop, that it is ending, and is gone then."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._say(200, b'{"exit_code": 4}')

    def do_GET(self) -> None:
        self.server.server_close()
        self._say(500, b'{"error": {"message": "llmproxy: the proxy is ending"}}')

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)


def test_a_proxy_that_still_says_that_it_is_ending_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine it answers a question between the order and its end: that is no error."""
    server = HTTPServer(("127.0.0.1", 0), Ending)

    def serve() -> None:
        for _ in ("stop", "health"):
            server.handle_request()

    serving = threading.Thread(target=serve)
    serving.start()
    assert main(["stop", "--url", f"http://127.0.0.1:{server.server_port}"]) == 4
    serving.join()
    assert "stopped with exit code 4" in capsys.readouterr().out


def test_a_web_page_cannot_stop_a_proxy(tmp_path: Path) -> None:
    """What a browser sends names its page: refused, and the proxy serves on."""
    with proxy("replay", tmp_path / "x.db") as px:
        asked = Request(f"{px.url}/_llmproxy/stop", b"{}", {"origin": "http://evil.example"})
        with pytest.raises(HTTPError, match="403"):
            DIRECT.open(asked, timeout=60)
        assert px.is_healthy()
