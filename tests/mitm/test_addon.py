"""The addon inside a real mitmdump: the same product for people who already run mitmproxy."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmproxy.errors import SettingsError
from llmproxy.mitm.addon import NOT_OURS, MitmdumpAddon, parse_mitmproxy_mode_upstreams
from llmproxy.settings import list_options_of_settings
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Wire, chat, request
from tests.provider import Provider, Reply, Script, Step, json_answer
from tests.support.process import ROOT, Process, clean_env, free_port

MITMDUMP = Path(sys.executable).with_name("mitmdump")
SCRIPT = ROOT / "addons" / "record_replay.py"


class Mitmdump(Process):
    port: int


def begin(folder: Path, *options: str, script: Path = SCRIPT) -> Mitmdump:
    """Start it; options are those of --set."""
    port = free_port()
    command = [str(MITMDUMP), "-s", str(script), "--listen-host", "127.0.0.1", "-p", str(port)]
    command += ["--set", f"confdir={folder / 'mitmproxy'}", *(word for option in options for word in ("--set", option))]
    process = Mitmdump(command, folder, f"mitmdump-{port}", clean_env({"PYTHONUNBUFFERED": "1"}))
    process.port = port
    return process


@contextmanager
def mitmdump(folder: Path, *options: str, script: Path = SCRIPT) -> Iterator[Mitmdump]:
    """Run it for the block, from when it serves; ended by SIGINT."""
    process = begin(folder, *options, script=script)

    def healthy() -> bool:
        try:
            with Wire(process.port, 2) as c:
                return c.ask(b"GET /_llmproxy/health HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET").status == 200
        except OSError:
            return False

    try:
        process.wait_until(healthy)
        yield process
    finally:
        process.end(signal.SIGINT)


@pytest.mark.slow
def test_faults_in_traffic_that_is_only_forwarded(tmp_path: Path) -> None:
    """A refusal in the provider's place, a reset, a tool that fails; then it is asked, whatever its path, and nothing is recorded."""
    (tmp_path / "f.yaml").write_text("[http-503@1, reset@2, mcp-tool-error@1]")
    tool = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "book", "arguments": {}}}
    with Provider(Script((Step(json_answer({"ok": 1}), times=None),))) as p:
        more = (f"mode=reverse:{p.url}", f"llmproxy_faults={tmp_path / 'f.yaml'}")
        with mitmdump(tmp_path, *more, script=SCRIPT.with_name("inject_faults.py")) as m:
            found = []
            for text in ("hi", "hi", "more", "more"):
                with Wire(m.port) as c:
                    found.append(c.ask(chat(text)).status)
            with Wire(m.port) as c:
                failed, booked = (c.ask(request(json.dumps(tool).encode(), "/mcp")) for _ in range(2))
        assert found == [503, 200, 0, 200]
        assert (failed.json["id"], failed.json["result"]["isError"], booked.json) == (7, True, {"ok": 1})
        assert [seen.target for seen in p.requests[2:]] == ["/mcp"]
    assert not (tmp_path / "llmproxy.db").exists()


@pytest.mark.slow
def test_reverse_mode_sends_everything_to_its_target(store: Path, tmp_path: Path) -> None:
    """Request and key go where mitmproxy was told, whatever provider the path is of; and replay by base URL."""
    asked = [
        chat("hi", headers={"authorization": "Bearer sk-gateway"}),
        request(b"{}", "/v1/messages", anthropic_version="2023-06-01", x_api_key="sk-gateway"),
        request(b"{}", "/v1/nobody/knows/this"),
    ]
    with Provider(Script((Step(json_answer({"ok": 1}), times=None),))) as p:
        more = (f"mode=reverse:{p.url}", "llmproxy_mode=record", f"llmproxy_store={store}")
        with mitmdump(tmp_path, *more) as m, Wire(m.port) as c:
            assert [c.ask(raw).status for raw in asked] == [200] * 3
        assert [seen.target for seen in p.requests] == ["/v1/chat/completions", "/v1/messages", "/v1/nobody/knows/this"]
        assert [seen.header("host") for seen in p.requests] == [f"127.0.0.1:{p.port}"] * 3
    with Rig("replay", store) as rig, rig.client() as c:
        assert [c.ask(raw).status for raw in asked] == [200] * 3


@pytest.mark.parametrize("mode", ["upstream:http://127.0.0.1:9", "socks5", "reverse:tcp://127.0.0.1:9", "transparent"])
def test_modes_that_we_would_not_heed_are_refused(mode: str) -> None:
    """Where a client's request is meant to go would be ignored: it never starts."""
    with pytest.raises(SettingsError, match="cannot serve mitmproxy's mode"):
        parse_mitmproxy_mode_upstreams([mode])
    with pytest.raises(SettingsError, match="cannot serve mitmproxy's mode"):
        parse_mitmproxy_mode_upstreams(["reverse:http://127.0.0.1:9", "regular"])
    assert parse_mitmproxy_mode_upstreams(["regular", "regular@8081"]) == {}
    assert set(dict(parse_mitmproxy_mode_upstreams(["reverse:https://[::1]:8443"]).values())) == {"https://[::1]:8443"}


def test_mitmdump_records_and_replays(store: Path, tmp_path: Path) -> None:
    """Streams and all, over http and https at the port, with every byte packet by packet; then with the provider gone."""
    asked = [chat("hi"), chat("tell me", stream=True)]
    with Provider(Script((Step(Reply("hello")), Step(Reply("once upon a time"))))) as p:
        with (
            mitmdump(
                tmp_path, "llmproxy_mode=record", f"llmproxy_store={store}", f"llmproxy_upstream=openai={p.url}"
            ) as m,
            Wire(m.port) as c,
        ):
            before = [c.ask(raw) for raw in asked]
        p.finish()
        assert "2 recorded" in m.stdout + m.stderr
    assert [answer.status for answer in before] == [200, 200]
    assert len(recorded(store)) == 2
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with mitmdump(tmp_path, f"llmproxy_store={store}") as m:
        for tls in (None, context):
            with Wire(m.port, tls=tls) as c:
                after = [c.ask(raw) for raw in asked]
                assert [(a.body, a.frames) for a in after] == [(b.body, b.frames) for b in before]
                assert c.ask(chat("never said")).status == 404
        with Wire(m.port) as c:
            for byte in chat("hi"):
                c.send(bytes([byte]))
                time.sleep(0.001)
            assert c.response().status == 200
    assert m.exit_code == 0
    assert not list(tmp_path.glob("x.db-*"))


@pytest.mark.slow
def test_with_wrong_options_nothing_is_served_and_nothing_passes(tmp_path: Path) -> None:
    """An addon that merely failed to load would let every request go on to the provider."""
    (tmp_path / "bad.db").write_text("no store")
    for wrong in ("llmproxy_mode=reply", "llmproxy_speed=-1", f"llmproxy_store={tmp_path / 'bad.db'}"):
        with Provider(check=False) as p:
            process = begin(tmp_path, wrong)
            until = time.monotonic() + 120
            while process.exit_code is None and time.monotonic() < until:
                try:
                    with Wire(process.port, 2) as c:
                        c.ask(request(b"", f"{p.url}/v1/models", "GET"))
                except OSError:
                    time.sleep(0.02)
            assert process.end() != 0, wrong
            assert "llmproxy" in process.stdout + process.stderr
            assert p.connections == 0
    assert (tmp_path / "bad.db").read_text() == "no store"


def test_every_option_of_ours_is_one_of_mitmproxys() -> None:
    """Declared once, with the same help; what mitmproxy has already is left to it."""

    class Loader:
        added: dict[str, str] = {}  # noqa: RUF012 - one test's own

        def add_option(self, name: str, _kind: type, _default: str, text: str) -> None:
            self.added[name] = text

    MitmdumpAddon().load(Loader())  # type: ignore[arg-type]
    expected = {option.name for option in list_options_of_settings() if option.has_flag} - NOT_OURS
    assert set(Loader.added) == {f"llmproxy_{name}" for name in expected}
    assert all(Loader.added.values())


def test_before_it_is_configured_it_denies() -> None:
    """The first addon in the list is a wall."""
    (wall,) = MitmdumpAddon().addons

    class Data:
        class server:  # noqa: N801 - as mitmproxy spells it
            error: str | None = None

    wall.server_connect(Data)  # type: ignore[attr-defined]
    assert Data.server.error


@pytest.mark.parametrize(
    ("version", "why"),
    [("11.1.3", "made for mitmproxy 12 from 12.2, and this is 11.1.3"), ("12.3.0", "it cannot be loaded into")],
)
def test_a_mitmproxy_that_cannot_take_it_ends(version: str, why: str, tmp_path: Path) -> None:
    """Too old, or an environment in which nothing of ours can be imported: the reason and what to do, and nothing serves."""
    (tmp_path / "theirs" / "mitmproxy").mkdir(parents=True)
    (tmp_path / "theirs" / "mitmproxy" / "__init__.py").touch()
    (tmp_path / "theirs" / "mitmproxy" / "version.py").write_text(f"VERSION = {version!r}\n")
    script = tmp_path / "tool" / "llmproxy" / "data" / SCRIPT.name
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    code = f"import runpy; runpy.run_path({str(script)!r}); print('serves')"
    env = clean_env({"PYTHONPATH": str(tmp_path / "theirs")})
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert why in done.stderr
    assert "uv tool install mitmproxy --with 'llmproxy-replay" in done.stderr
