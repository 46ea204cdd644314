"""The proxy as a process: signals, exit codes, what stands on the disk afterwards, what is said."""

from __future__ import annotations

import asyncio
import io
import os
import random
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import Totals
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Ending
from llmproxy.errors import MachineError
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.serve import (
    ProxyContextAndJournal,
    advise_gitignore_of_call_journal,
    check_client_cert,
    check_port_free,
    end_proxy_and_print_totals,
    install_signal_handlers,
    write_totals_json_file,
)
from llmproxy.report.proxy_console import ProxyConsole
from llmproxy.settings import convert_listen_to_connect_host
from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import Wire, chat
from tests.provider import Answer, Piece, Provider, Reply, Script, Step, event
from tests.support.forked import program
from tests.support.process import clean_env, free_port, until
from tests.support.proxy import Proxy, alone, proxy, start

EVENT = event({"choices": [{"delta": {"content": "x"}}]})
SSE = (("content-type", "text/event-stream"),)


def at_rest(store: Path) -> bool:
    """Return whether the store is one file, in rollback mode."""
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as conn:
        mode = conn.execute("PRAGMA journal_mode").fetchone()[0]
    beside = {path.name for path in store.parent.glob(f"{store.name}*") if ".state.db" not in path.name}
    return mode == "delete" and beside == {store.name}


def test_what_was_never_answered_is_no_loss_when_the_proxy_ends(tmp_path: Path) -> None:
    """An upstream takes requests and says nothing; a signal ends the proxy with 0, and nothing is said to be lost."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        px = start("record", tmp_path / "x.db", upstreams={"openai": f"http://127.0.0.1:{port}"})
        with Wire(px.port, 20) as one, Wire(px.port, 20) as two, ExitStack() as upstream:
            for each in (one, two):
                each.send(chat("hello"))
                upstream.enter_context(silent.accept()[0])  # it went upstream
            assert px.end(signal.SIGTERM) == 0, px.stdout + px.stderr
    assert "NOT RECORDED" not in px.stdout + px.stderr
    assert "Traceback" not in px.stderr


def wait_refused(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_in_mid_stream_keeps_what_came(store: Path, how: signal.Signals) -> None:
    """Open answers get five seconds, then are marked as cut; exit 0, and the store is one file."""
    endless = Answer(200, SSE, tuple(Piece(EVENT, 0.1) for _ in range(2_000)), "chunked")
    with Provider(Script((Step(Reply("ok"), user="first"), Step(endless))), check=False) as p:
        px = start("record", store, upstreams={"openai": p.url})
        with Wire(px.port, 20) as c:
            assert c.ask(chat("first")).status == 200
            c.send(chat("endless", stream=True)).until(EVENT)
            began = time.monotonic()
            px.popen.send_signal(how)
            wait_refused(px.port)
            assert 0 < c.rest().count(EVENT) < 2_000, "it goes on while the proxy is patient, and no longer"
            assert px.wait(15) == 0, px.stdout + px.stderr
        assert time.monotonic() - began > 4
    whole, cut = recorded(store)
    assert (whole.response.ending, cut.response.ending) == (Ending.COMPLETE, Ending.CUT)
    assert at_rest(store)
    assert "2 recorded" in px.stdout
    assert "Traceback" not in px.stderr


def test_an_answer_that_ends_in_time_is_whole(store: Path) -> None:
    """A signal lets a short answer come to its end, and nothing new begins."""
    gate = threading.Event()
    answer = Answer(200, SSE, (Piece(EVENT), Piece(b"data: [DONE]\n\n", after=gate)), "chunked")
    with Provider(Script((Step(answer),)), check=False) as p:
        px = start("record", store, upstreams={"openai": p.url})
        with Wire(px.port, 20) as idle, Wire(px.port, 20) as c:
            c.send(chat("hi", stream=True)).until(EVENT)
            px.popen.send_signal(signal.SIGTERM)
            wait_refused(px.port)
            assert idle.ask(chat("more")).status == 500
            gate.set()
            assert c.until(b"0\r\n\r\n").endswith(b"0\r\n\r\n")
            assert px.wait(15) == 0
    assert [made.response.ending for made in recorded(store)] == [Ending.COMPLETE]


def test_killed_in_mid_recording_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """What a client has the end of is on the disk; `once` serves it, and records what is missing until a run ends in order."""
    store, number = tmp_path / "x.db", 30
    with Provider(Script((Step(Reply("a"), times=None),))) as p:
        px = start("once", store, upstreams={"openai": p.url}, alone=True)
        with Wire(px.port) as c:
            for n in range(number):
                assert c.ask(chat(f"{n}", stream=bool(n % 2))).whole
            px.popen.kill()
            px.popen.wait()
        assert len(recorded(store)) == number
        with proxy("once", store, upstreams={"openai": p.url}, name="again") as px, Wire(px.port) as c:
            assert c.ask(chat("0")).headers["x-llmproxy-cache"] == "hit"
            assert c.ask(chat("missing")).headers["x-llmproxy-cache"] == "recorded"
        assert len(p.requests) == number + 1
        asked = len(p.requests)
        with proxy("once", store, upstreams={"openai": p.url}, name="complete") as px, Wire(px.port) as c:
            assert c.ask(chat("0")).headers["x-llmproxy-cache"] == "hit"
            assert c.ask(chat("1", stream=True)).headers["x-llmproxy-cache"] == "hit"
            assert c.ask(chat("missing")).headers["x-llmproxy-cache"] == "hit"
            assert c.ask(chat("new")).status == 404
        assert len(p.requests) == asked
    assert at_rest(store)


@pytest.mark.slow
def test_a_second_recorder_is_refused_by_name(store: Path) -> None:
    """Two recorders would mix; another cassette of the same store is free."""
    with Provider(Script((Step(Reply("a"), times=None),))) as p:
        up = {"openai": p.url}
        with (  # noqa: SIM117 - upstream outside, proxy inside
            alone("record", store, upstreams=up) as first,
            alone("record", store, upstreams=up, name="second") as second,
        ):
            with Wire(first.port) as one, Wire(second.port) as two:
                assert one.ask(chat("1")).status == 200
                got = two.ask(chat("2"))
                assert got.status == 409
                assert f"process {first.popen.pid}" in got.message
                assert two.ask(chat("2", "/s/other/v1/chat/completions")).status == 200
                assert one.ask(chat("3")).status == 200
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert [made.cassette for made in recorded(store)] == ["default", "other", "default"]


# --- the machine says no --------------------------------------------------------------------------------------------------

LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_{what}, ({size}, {size}))
from llmproxy.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start_limited(mode: str, store: Path, url: str, what: str, size: int) -> Proxy:
    command = [sys.executable, "-c", LIMITED.format(what=what, size=size), "start", "--mode", mode]
    port = free_port()
    command += ["--port", str(port), "--store", str(store), "--upstream", f"openai={url}"]
    px = Proxy(command, store.parent, "limited", clean_env())
    px.port, px.store = port, store
    px.wait_until(px.is_healthy)
    return px


def test_a_full_disk_costs_the_recording_never_the_answer(store: Path) -> None:
    """The client gets its answer, the loss is said, the exit status is 3, and what was stored before stays readable."""
    big = random.Random(1).randbytes(100_000).hex()
    with Provider(Script((Step(Reply("small"), user="small"), Step(Reply(big), times=None)))) as p:
        px = start_limited("record", store, p.url, "FSIZE", 250_000)
        with Wire(px.port) as c:
            assert c.ask(chat("small")).status == 200
            for n in range(4):
                got = c.ask(chat(f"big {n}", stream=bool(n % 2)))
                assert (got.status, got.whole) == (200, True)
        assert px.end(signal.SIGTERM) == 3, px.stdout + px.stderr
    assert "NOT RECORDED" in px.stdout
    assert "could not be recorded" in px.stdout
    assert "Traceback" not in px.stderr
    assert recorded(store)[0].response.body.startswith(b"{")


def test_a_store_that_takes_no_recording_is_no_success(store: Path) -> None:
    """Every request is refused before it is sent, and the proxy ends with 3."""
    SqliteCassetteStore.open(store, writable=True, now=time.time).close()
    with closing(sqlite3.connect(store)) as conn:
        conn.execute("CREATE TRIGGER full BEFORE UPDATE ON cassettes BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    p = Provider(Script(()))
    with connected(p, "record", store) as (rig, c):
        assert "disk is full" in c.ask(chat("1")).message
        rig.wait_idle()
        assert (rig.proxy.losses, p.connections) == (1, 0)


def test_idle_connections_go_first_where_descriptors_are_few(store: Path) -> None:
    """Of 40 descriptors, sixty clients that stay: each is answered, the longest idle ones are closed, and that is said."""
    with Provider(Script((Step(Reply("yes"), times=None),))) as p:
        px = start_limited("auto", store, p.url, "NOFILE", 40)
        with ExitStack() as stay:
            for n in range(60):
                assert stay.enter_context(Wire(px.port)).ask(chat(f"the same {n % 20}")).status == 200
        assert px.end(signal.SIGTERM) == 0, px.stdout + px.stderr
    assert "idle connections are closed, the longest idle first" in px.stdout + px.stderr
    assert "Traceback" not in px.stdout + px.stderr


def refused(store: Path, *options: str, mode: str = "record") -> subprocess.CompletedProcess[str]:
    command = [*program("llmproxy"), "start", "--mode", mode, "--store", str(store), *(options or ("--port", "0"))]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=clean_env())


def make_foreign(path: Path) -> Path:
    path.write_bytes(b"- request: this is a YAML file\n" * 100)
    return path


def make_newer(path: Path) -> Path:
    SqliteCassetteStore.open(path, writable=True, now=time.time).close()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE _sqlite_migrations SET name = 'm9999_later' WHERE name LIKE 'm001%'")
    return path


@pytest.mark.parametrize(("make", "mode", "said"), [
    *((make_foreign, mode, "is not an llmproxy store") for mode in ("replay", "record", "auto", "once")),
    (make_newer, "record", "newer llmproxy"),
    (lambda path: make_foreign(path) / "x.db", "record", ""),
])  # fmt: skip
def test_a_store_that_cannot_be_used_is_refused_and_left_alone(
    store: Path, make: Callable[[Path], Path], mode: str, said: str
) -> None:
    """Another program's file, a newer store, and a file where a folder is needed; also root may not."""
    asked, before = make(store), store.read_bytes()
    done = refused(asked, mode=mode)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (3, True, False), done.stderr
    assert store.read_bytes() == before


@pytest.mark.parametrize("more", [False, True])
def test_a_store_that_is_emptied_under_a_recorder_is_no_success(store: Path, more: bool) -> None:
    """`: > x.db` beside it: the client gets its answers, and the exit code is 3 whether or not another one comes."""
    with Provider(Script((Step(Reply("yes"), times=None),))) as p:
        px = start("record", store, upstreams={"openai": p.url})
        with Wire(px.port) as c:
            for n in range(5):
                assert c.ask(chat(f"question {n}")).status == 200
            os.truncate(store, 0)
            if more:
                assert c.ask(chat("one more")).status == 200
        assert px.end() == 3, px.stdout + px.stderr
    said = px.stdout + px.stderr
    assert "was cut, emptied or replaced" in said or "is damaged" in said
    assert "Traceback" not in px.stdout + px.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_read_only_store_replays_and_does_not_record(store: Path) -> None:
    SqliteCassetteStore.open(store, writable=True, now=time.time).close()
    store.chmod(0o444)
    done = refused(store)
    assert done.returncode == 3
    assert "read-only" in done.stderr


def test_a_locked_store_costs_the_recording_never_the_answer(store: Path) -> None:
    """Another program holds the file: the client is served, the loss is said, exit 3."""
    with Provider(Script((Step(Reply("a"), times=None),))) as p:
        px = start("auto", store, upstreams={"openai": p.url})
        with Wire(px.port, 30) as c, closing(sqlite3.connect(store, isolation_level=None)) as other:
            assert c.ask(chat("1")).status == 200
            other.execute("BEGIN IMMEDIATE")
            got = c.ask(chat("2", stream=True))
            assert (got.status, got.whole) == (200, True)
            px.wait_until(lambda: "NOT RECORDED" in px.stdout)
            other.execute("ROLLBACK")
            assert c.ask(chat("3")).status == 200
        assert px.end(signal.SIGTERM) == 3
    assert len(recorded(store)) == 2


def test_a_taken_port_is_said_and_nothing_is_made(store: Path) -> None:
    """Exit 3 with the port, and no store."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = refused(store, "--port", str(port))
        assert done.returncode == 3
        assert f"127.0.0.1:{port}" in done.stderr
        assert "--port 0" in done.stderr
        assert not store.exists()
        with pytest.raises(MachineError):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", 0)
    with pytest.raises(MachineError, match=r"203\.0\.113\.1"):
        check_port_free("203.0.113.1", 8080)


def test_misses_decide_the_exit_code_if_asked(store: Path) -> None:
    """--fail-on-miss: 4."""
    SqliteCassetteStore.open(store, writable=True, now=time.time).close()
    with proxy("replay", store, options=("--fail-on-miss",)) as px, Wire(px.port) as c:
        assert c.ask(chat("hi")).status == 404
    assert (px.exit_code, "exit code 4 because of --fail-on-miss: 1 miss" in px.stdout) == (4, True)


def test_a_store_that_appears_later_is_replayed(store: Path) -> None:
    """Replay may be started before anything was recorded; it says so, and serves what comes."""
    with Provider(Script((Step(Reply("a")),))) as p, proxy("replay", store) as px, Wire(px.port) as c:
        assert "there is no store" in px.stdout
        assert c.ask(chat("hi")).status == 404
        with proxy("record", store, upstreams={"openai": p.url}) as other, Wire(other.port) as d:
            assert d.ask(chat("hi")).status == 200
        assert c.ask(chat("hi")).status == 200


@pytest.mark.parametrize(("host", "said"), [
    ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"),
    ("fe80::1", "[fe80::1]"),
])  # fmt: skip
def test_the_base_url_that_is_printed_can_be_used(host: str, said: str) -> None:
    """Bound to every address, one of them is said: no client can ask for all."""
    assert convert_listen_to_connect_host(host) == said


def test_an_upstream_that_asks_for_a_certificate_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MTLS to a company's gateway: with --client-cert the call goes through; without it it is refused, in words."""
    with Provider(Script((Step(Reply("hello"), times=None),)), tls=True, check=False) as p:
        assert p._context is not None
        assert p.ca_pem is not None
        p._context.load_verify_locations(p.ca_pem)
        p._context.verify_mode = ssl.CERT_REQUIRED
        monkeypatch.setenv("SSL_CERT_FILE", str(p.ca_pem))
        with Rig("record", tmp_path / "a.db", {"openai": p.url}) as rig, rig.client() as c:
            assert c.ask(chat("hi")).status == 502
        cert = p.ca_pem.with_name("leaf.pem")
        with Rig("record", tmp_path / "b.db", {"openai": p.url}, client_cert=cert) as rig, rig.client() as c:
            assert c.ask(chat("hi")).status == 200
        assert len(p.requests) == 1


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"])
def test_a_client_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    """Not at the first call, when it is too late."""
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_bytes(content)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MachineError, match=r"cert\.pem cannot be used"):
        check_client_cert(path)
    with pytest.raises(MachineError, match=r"no \*.pem is in it"):
        check_client_cert(empty)


def test_the_first_recording_says_how_to_keep_the_journal_out_of_git(tmp_path: Path) -> None:
    """Once, in a repository that does not ignore it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with (
        Provider(Script((Step(Reply("a")), Step(Reply("b"))))) as p,
        proxy("record", tmp_path / "x.db", upstreams={"openai": p.url}) as px,
        Wire(px.port) as c,
    ):
        assert c.ask(chat("hi")).status == 200
        assert c.ask(chat("ho")).status == 200
    assert px.stdout.count("echo '*.state.db' >>") == 1


@pytest.mark.skipif(os.name == "nt", reason="no modes of files")
def test_totals_are_for_their_owner_alone(tmp_path: Path) -> None:
    """They hold texts of misses, and lie in the common folder for temporary files."""
    write_totals_json_file(Totals(), None, str(path := tmp_path / "x.log.summary"))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_loop_without_handlers_of_signals_hears_them_all_the_same() -> None:
    """As on Windows; and what was there before is given back."""

    class Windows(asyncio.SelectorEventLoop):
        def add_signal_handler(self, sig: int, callback: object, *args: object) -> None:
            raise NotImplementedError

    loop, before = Windows(), signal.getsignal(signal.SIGUSR1)
    heard = asyncio.Event()
    unhear = install_signal_handlers(loop, [signal.SIGUSR1], heard.set)
    try:
        loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        loop.run_until_complete(asyncio.wait_for(heard.wait(), 10))
    finally:
        unhear()
        loop.close()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_many_may_connect_while_it_is_busy(tmp_path: Path) -> None:
    """A thousand agents that start at once are not reset because the proxy has not looked yet."""
    busy, free = threading.Event(), threading.Event()

    def blocks() -> None:
        busy.set()
        free.wait(120)

    with Rig("replay", tmp_path / "x.db") as rig, ExitStack() as stack:
        rig._loop.call_soon_threadsafe(blocks)
        assert busy.wait(120)
        try:
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", rig.port), timeout=5))
        finally:
            free.set()


def test_the_last_line_counts_what_was_still_being_stored(tmp_path: Path) -> None:
    """An answer that the writer has not come to when the proxy's patience is over: it is stored, and counted."""
    written, said, totals = threading.Event(), io.StringIO(), Totals()

    class ClosesOnce(ProxyContext):
        closed = False

        async def close(self) -> None:
            if not self.closed:  # the rig closes it too
                self.closed = True
                await super().close()
                for call in rig.outcomes:
                    totals.add(call)

    async def out_of_patience() -> None:
        written.set()

    def closed() -> Future[int | None]:
        built = ProxyContextAndJournal(
            rig.proxy, CallDecisionJournalWriter.open(tmp_path / "other.state.db", time.time), ()
        )
        return asyncio.run_coroutine_threadsafe(
            end_proxy_and_print_totals(out_of_patience, built, ProxyConsole(said), totals), rig._loop
        )

    answer = Answer(200, SSE, (Piece(EVENT), Piece(b"data: [DONE]\n\n")), "chunked")
    with connected(Provider(Script((Step(answer),))), "record", tmp_path / "x.db", shell=ClosesOnce) as (rig, c):
        rig.proxy._writer.submit(written.wait, 120)
        c.send(chat("hi", stream=True)).until(EVENT)
        until(lambda: rig.proxy._commits)  # the answer has come to its end
        closed().result(120)
    assert totals.recorded == 1
    assert "1 recorded" in said.getvalue()


def test_typed_as_printed_git_ignores_the_journal(tmp_path: Path) -> None:
    """And then nothing is said any more, as nothing is outside of a repository."""
    assert advise_gitignore_of_call_journal(tmp_path / "llmproxy.db") == ""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    store = tmp_path / "tests" / "llmproxy.db"
    store.parent.mkdir()
    hint = advise_gitignore_of_call_journal(store)
    assert "llmproxy.db.state.db" in hint
    subprocess.run(["sh", "-c", hint.partition("git: ")[2]], check=True)
    assert advise_gitignore_of_call_journal(store) == ""
    (tmp_path / ".gitignore").write_text("*.db\n!tests/*.state.db\n")
    assert advise_gitignore_of_call_journal(store) == hint
