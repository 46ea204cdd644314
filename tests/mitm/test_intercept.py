"""HTTPS interception over real sockets: what is decrypted, what is tunnelled, what is refused, and that nothing leaks."""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from mitmproxy import http
from mitmproxy.connection import Client, Server

from llmproxy.errors import RefusedError
from llmproxy.mitm.interception import (
    HttpConnectHandler,
    ProxyCredentials,
    authorize_destination,
    is_loopback_ip,
    is_own_listener,
    read_proxy_credentials,
)
from llmproxy.protocol import Mode
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_fail_closed import broken
from tests.mitm.wire import CHAT, Received, Wire, body_of, chat, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step
from tests.support.process import until
from tests.support.services import one_connection

OPENAI = "api.openai.com"
HELLO = Script((Step(Reply("hello"), times=None),))
DEAD = "http://127.0.0.1:9"
"""Where nobody listens: nothing may be asked of it."""


def basic(user: str) -> dict[str, str]:
    """Format the header that HTTPS_PROXY=http://user@... makes of a user."""
    return {"proxy-authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}


def connect_bytes(host: str, port: int, user: str | None = None) -> bytes:
    fields = {"host": f"{host}:{port}", **(basic(user) if user is not None else {})}
    lines = [f"CONNECT {host}:{port} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def trusting(*files: Path | str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for file in files:
        context.load_verify_locations(file)
    return context


def secure(wire: Wire, host: str, *files: Path | str) -> Wire:
    """Speak TLS from here on, and insist on the host's certificate."""
    wire.sock = trusting(*files).wrap_socket(wire.sock, server_hostname=host)
    return wire


@contextmanager
def tunnel(rig: Rig, host: str = OPENAI, port: int = 443, user: str | None = None) -> Iterator[Wire]:
    with rig.client() as c:
        status, _ = c.send(connect_bytes(host, port, user)).head()
        assert status == 200
        yield c


@contextmanager
def intercepted(rig: Rig, host: str = OPENAI, port: int = 443, user: str | None = None) -> Iterator[Wire]:
    with tunnel(rig, host, port, user) as c:
        yield secure(c, host, rig.proxy.ca)


def refused(rig: Rig, host: str, port: int, user: str | None = None) -> Received:
    with rig.client() as c:
        return c.send(connect_bytes(host, port, user)).response()


def say(text: str = "hi") -> bytes:
    return chat(text, headers={"host": OPENAI})


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Return a store that knows OpenAI's answer to "hi", recorded by base URL."""
    store = tmp_path / "tape.db"
    with Provider(HELLO) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        assert c.ask(chat("hi")).status == 200
    return store


# --- in scope ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["record", "auto", "passthrough"])
def test_a_provider_s_host_is_decrypted_and_served(tmp_path: Path, mode: str) -> None:
    """The client sees a certificate for the host by our authority; the request reaches the upstream as the client made it."""
    body = body_of("exact   spacing \u00fc") + b"  \n"
    with Provider(HELLO) as p, Rig(mode, tmp_path / "x.db", {"openai": p.url}, forward=True) as rig:
        with intercepted(rig) as c:
            answer = c.ask(request(body, host=OPENAI))
        assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "hello")
        assert [(seen.target, seen.body) for seen in p.requests] == [(CHAT, body)]
        assert not [name for name in p.header_names() if name.startswith(("proxy-", "x-llmproxy"))]
    if mode != "passthrough":
        assert len(recorded(tmp_path / "x.db")) == 1


def test_a_recording_by_interception_replays_by_base_url(tmp_path: Path) -> None:
    """The key knows the provider, not the way to it; a stream has its chunks through a tunnel as well."""
    store, stream = tmp_path / "x.db", chat("hi", stream=True, headers={"host": OPENAI})
    with Provider(HELLO) as p, Rig("record", store, {"openai": p.url}, forward=True) as rig, intercepted(rig) as c:
        live, chunks = c.ask(say()), c.ask(stream).frames
    with Rig("replay", store, forward=True) as rig:
        with rig.client() as c:
            again = c.ask(chat("hi"))
        with intercepted(rig) as c:
            assert c.ask(stream).frames == chunks
    assert (again.status, again.body, again.headers["x-llmproxy-cache"]) == (200, live.body, "hit")
    assert len(chunks) > 2


def test_a_recording_by_base_url_replays_by_interception(tape: Path) -> None:
    """And the other way round, with no connection upstream, not even for a certificate."""
    with Provider(check=False) as p, Rig("replay", tape, {"openai": p.url}, forward=True) as rig:
        with intercepted(rig) as c:
            answer = c.ask(say())
        assert (answer.status, answer.headers["x-llmproxy-cache"]) == (200, "hit")
        with intercepted(rig) as c:
            missed = c.ask(say("never said"))
        assert missed.status == 404
        assert "never said" in missed.message
        assert p.connections == 0


def test_in_replay_nothing_is_dialled_for_a_host_that_does_not_exist(tape: Path) -> None:
    """The name of the host is never looked up: the certificate is made from it alone."""
    host = "no-such-region.openai.azure.com"
    with Rig("replay", tape, forward=True) as rig, intercepted(rig, host) as c:
        answer = c.ask(chat("hi", "/openai/deployments/d/chat/completions?api-version=1", headers={"host": host}))
    assert answer.status == 404


def test_one_tunnel_serves_request_after_request(tape: Path) -> None:
    """Keep-alive holds inside a tunnel, across hits, misses and two requests sent at once."""
    with Rig("replay", tape, forward=True) as rig, intercepted(rig) as c:
        statuses = [c.ask(say(text)).status for text in ("hi", "no", "hi")]
        c.send(say("hi") + say("hi"))
        statuses += [c.response().status, c.response().status]
    assert statuses == [200, 404, 200, 200, 200]


def test_recording_keeps_a_tunnel_alive_too(tmp_path: Path) -> None:
    """Three requests through one tunnel are three recordings, over one connection upstream."""
    with Provider(HELLO) as p, Rig("record", tmp_path / "x.db", {"openai": p.url}, forward=True) as rig:
        with intercepted(rig) as c:
            assert [c.ask(say(text)).status for text in "abc"] == [200, 200, 200]
        assert p.connections == 1
    assert len(recorded(tmp_path / "x.db")) == 3


def test_an_upstream_with_a_path_is_decrypted(tmp_path: Path) -> None:
    """A company's gateway that --upstream names is in scope as a host; another path of it is let through, unrecorded."""
    with Provider(HELLO) as p:
        ups = {"openai": f"{p.url}/gateway/v1"}
        with Rig("record", tmp_path / "x.db", ups, forward=True) as rig, tunnel(rig, "127.0.0.1", p.port) as c:
            assert c.ask(chat("hi", "/gateway/v1/chat/completions")).status == 200
            assert c.ask(chat("hi", "/elsewhere/v1/chat/completions")).status == 200
    assert [each.request.target for each in recorded(tmp_path / "x.db")] == [CHAT]


# --- plain http, and other ways in ----------------------------------------------------------------------------------------


def test_plain_http_inside_a_connect(store: Path) -> None:
    """Node tunnels http:// too; it is served like https."""
    with (
        Provider(HELLO) as p,
        Rig("record", store, {"openai": p.url}, forward=True) as rig,
        tunnel(rig, "127.0.0.1", p.port) as c,
    ):
        assert c.ask(chat("hi")).status == 200
    with Rig("replay", store, {"openai": p.url}, forward=True) as rig, tunnel(rig, "127.0.0.1", p.port) as c:
        assert c.ask(chat("hi")).headers["x-llmproxy-cache"] == "hit"


def test_plain_http_in_absolute_form(store: Path) -> None:
    """HTTP_PROXY's form, with the session in the proxy's user."""
    with Provider(HELLO) as p:
        ask = chat("hi", f"{p.url}{CHAT}", headers=basic("mine"))
        with Rig("record", store, {"openai": p.url}, forward=True) as rig, rig.client() as c:
            assert c.ask(ask).status == 200
        assert "proxy-authorization" not in p.header_names()
    with Rig("replay", store, {"openai": p.url}, forward=True) as rig, rig.client() as c:
        assert c.ask(ask).headers["x-llmproxy-cache"] == "hit"
    assert [each.cassette for each in recorded(store)] == ["mine"]


def test_a_proxy_that_is_reached_by_tls(tape: Path) -> None:
    """HTTPS_PROXY=https://...: TLS to the proxy, CONNECT inside, and TLS to the host inside that."""
    with Rig("replay", tape, forward=True) as rig, rig.client() as c:
        outer = secure(c, "localhost", rig.proxy.ca)
        assert outer.send(connect_bytes(OPENAI, 443)).head()[0] == 200
        inner, sent, got = tls_inside(rig.proxy.ca, OPENAI)
        shake(outer, inner, sent, got)
        assert ask_inside(outer, inner, sent, got, say()).startswith(b"HTTP/1.1 200 ")


def tls_inside(ca: str, host: str) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Begin TLS that is carried by hand: (the connection, what it sends, what it gets)."""
    sent, got = ssl.MemoryBIO(), ssl.MemoryBIO()
    inner = trusting(ca).wrap_bio(got, sent, server_hostname=host)
    with pytest.raises(ssl.SSLWantReadError):
        inner.do_handshake()
    return inner, sent, got


def shake(wire: Wire, inner: ssl.SSLObject, sent: ssl.MemoryBIO, got: ssl.MemoryBIO) -> None:
    while True:
        try:
            inner.do_handshake()
        except ssl.SSLWantReadError:
            wire.send(sent.read())
            got.write(wire.sock.recv(1 << 16))
        else:
            wire.send(sent.read())
            return


def ask_inside(wire: Wire, inner: ssl.SSLObject, sent: ssl.MemoryBIO, got: ssl.MemoryBIO, raw: bytes) -> bytes:
    """Return how the answer begins."""
    inner.write(raw)
    wire.send(sent.read())
    while True:
        got.write(wire.sock.recv(1 << 16))
        try:
            return inner.read(1 << 16)
        except ssl.SSLWantReadError:
            continue


def test_our_own_address_through_ourselves_is_a_base_url(tape: Path) -> None:
    """A client with both variables set asks for the base URL through the proxy: by CONNECT, or in absolute form."""
    with Rig("replay", tape, forward=True) as rig:
        with tunnel(rig, "127.0.0.1", rig.port) as c:
            assert c.ask(chat("hi", "/s/default/openai/v1/chat/completions")).status == 200
        with tunnel(rig, "localhost", rig.port) as c:
            assert c.ask(chat("hi")).status == 200
        with rig.client() as c:
            assert c.ask(chat("hi", f"http://127.0.0.1:{rig.port}{CHAT}")).status == 200


def test_a_clienthello_split_over_packets(tape: Path) -> None:
    """Byte by byte, it is still recognised, and the host's certificate made from the name in it."""
    with Rig("replay", tape, forward=True) as rig, tunnel(rig) as c:
        inner, sent, got = tls_inside(rig.proxy.ca, OPENAI)
        for byte in (hello := sent.read())[:20]:
            c.send(bytes([byte]))
            time.sleep(0.002)
        c.send(hello[20:100])
        time.sleep(0.05)
        c.send(hello[100:])
        got.write(c.sock.recv(1 << 16))
        shake(c, inner, sent, got)
        assert inner.getpeercert() is not None


def test_connect_and_the_clienthello_in_one_packet(tape: Path) -> None:
    """Some clients do not wait for the 200."""
    with Rig("replay", tape, forward=True) as rig, rig.client() as c:
        inner, sent, got = tls_inside(rig.proxy.ca, OPENAI)
        c.send(connect_bytes(OPENAI, 443) + sent.read())
        assert c.head()[0] == 200
        got.write(c.buffer or c.sock.recv(1 << 16))
        shake(c, inner, sent, got)


# --- other hosts ----------------------------------------------------------------------------------------------------------

FIELDS = (("content-type", "application/x-odd"), ("X-Case", "Kept"), ("set-cookie", "a=b"))
ODD = Answer(200, FIELDS, (Piece(bytes(range(256))), Piece(b"second")), "chunked")


@pytest.mark.parametrize("mode", ["record", "auto", "passthrough", "once"])
def test_other_hosts_are_tunnelled_untouched(tmp_path: Path, mode: str) -> None:
    """The real server's certificate is seen, every byte is as without a proxy, and nothing is recorded."""
    last = chat("hi", headers={"host": OPENAI, "connection": "close"})
    with Provider(Script((Step(ODD, times=None),)), tls=True) as p:
        assert p.ca_pem is not None
        with Wire(p.port) as straight:
            wanted = secure(straight, "127.0.0.1", p.ca_pem).send(last).rest()
        with Rig(mode, tmp_path / "x.db", forward=True) as rig, tunnel(rig, "127.0.0.1", p.port) as c:
            got = secure(c, "127.0.0.1", p.ca_pem).send(last).rest()
        assert got == wanted
        first, second = p.requests
        assert (first.headers, first.body) == (second.headers, second.body)
    assert mode == "passthrough" or recorded(tmp_path / "x.db") == []


def test_a_tunnel_carries_any_protocol(tmp_path: Path) -> None:
    """Bytes that are neither TLS nor HTTP pass both ways, and the end of one side reaches the other."""

    def echo(peer: socket.socket) -> None:
        while data := peer.recv(1 << 16):
            peer.sendall(data)

    with (
        one_connection(echo) as port,
        Rig("record", tmp_path / "x.db", forward=True) as rig,
        tunnel(rig, "127.0.0.1", port) as c,
    ):
        for size in (1, 100, 300_000):
            data = bytes(n % 251 for n in range(size))
            c.send(data)
            assert c.exactly(size) == data
        c.sock.shutdown(socket.SHUT_WR)
        assert c.rest() == b""


def test_in_replay_other_hosts_are_refused_by_name(tape: Path) -> None:
    """403 that says which host and what to type, also in the reason phrase, and no connection to it."""
    with Provider(check=False) as p, Rig("replay", tape, forward=True) as rig:
        answer = refused(rig, "127.0.0.1", p.port)
        assert answer.status == 403
        assert f"127.0.0.1:{p.port}" in answer.body.decode()
        assert "--allow-host 127.0.0.1" in answer.body.decode()
        assert [outcome.target for outcome in rig.outcomes] == [f"127.0.0.1:{p.port}"]
        assert p.connections == 0


def test_allow_host_lets_one_through_in_replay(tape: Path) -> None:
    with Provider(HELLO, tls=True) as p:
        assert p.ca_pem is not None
        with Rig("replay", tape, forward=True, allow_host=("127.0.0.1",)) as rig:
            with tunnel(rig, "127.0.0.1", p.port) as c:
                assert secure(c, "127.0.0.1", p.ca_pem).ask(say()).status == 200
            assert refused(rig, "localhost", p.port).status == 403
        assert p.connections == 1


def test_a_session_s_own_mode_decides_about_its_tunnels(tape: Path) -> None:
    """A session that was opened in replay on a recording proxy has no network."""
    with Provider(HELLO, tls=True) as p, Rig("auto", tape, forward=True) as rig:
        rig.proxy.engine.sessions.open_session("offline", mode=Mode.REPLAY)
        assert refused(rig, "127.0.0.1", p.port, "offline").status == 403
        with tunnel(rig, "127.0.0.1", p.port, "another"):
            pass


# --- refusals -------------------------------------------------------------------------------------------------------------


def test_without_forward_a_connect_gets_a_clear_403(tape: Path) -> None:
    """A proxy that is meant for base URLs says so, and serves them as before."""
    with Rig("replay", tape) as rig:
        answer = refused(rig, OPENAI, 443)
        assert (answer.status, b"--forward" in answer.body) == (403, True)
        with rig.client() as c:
            assert "start it with --forward" in c.send(connect_bytes(OPENAI, 443)).until(b"\r\n").decode()
        with rig.client() as c:
            assert c.ask(chat("hi")).status == 200


def test_after_a_refused_connect_nothing_more_is_served(tape: Path) -> None:
    """The connection ends with the refusal; what a client sends behind it reaches nobody."""
    with Provider(check=False) as p, Rig("replay", tape, {"openai": p.url}, forward=True) as rig:
        for more in (say(), connect_bytes(OPENAI, 443), chat("hi", f"{p.url}{CHAT}"), b"\x16\x03\x01garbage"):
            with rig.client() as c:
                c.send(connect_bytes("example.com", 443) + more)
                assert c.response().status == 403
                assert c.rest() == b""
        assert p.connections == 0
        rig.wait_idle()


@pytest.mark.parametrize("garbage", [
    b"\x00\xff\xfe not tls\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 300,
    b"GET\r\n\r\n",
])  # fmt: skip
def test_garbage_after_connect_ends_the_connection(tape: Path, garbage: bytes) -> None:
    """No hang, no connection upstream, and the proxy serves the next client."""
    with Provider(check=False) as p, Rig("replay", tape, {"openai": p.url}, forward=True) as rig:
        with tunnel(rig) as c:
            c.send(garbage)
            c.sock.shutdown(socket.SHUT_WR)
            left = c.rest()
            assert left == b"" or left[:1] == b"\x15" or left.startswith(b"HTTP/1.1 400 ")
        with intercepted(rig) as c:
            assert c.ask(say()).status == 200
        assert p.connections == 0
        rig.wait_idle()


def test_a_client_that_does_not_trust_us_is_told_nothing_false(tape: Path) -> None:
    """Its handshake fails at its own end; the proxy lives on."""
    with Rig("replay", tape, forward=True) as rig, Provider(tls=True) as p:
        assert p.ca_pem is not None
        with tunnel(rig) as c, pytest.raises(ssl.SSLCertVerificationError):
            secure(c, OPENAI, p.ca_pem)
        with intercepted(rig) as c:
            assert c.ask(say()).status == 200


# --- sessions -------------------------------------------------------------------------------------------------------------

NAMES = ["plain", "a/b", "mit Leerzeichen", "日本語", "a%b", "x~2", "A" * 100]


@pytest.mark.parametrize("name", NAMES)
def test_the_proxy_s_user_is_the_session(store: Path, name: str) -> None:
    """As clients send it (decoded) and as it stands in the URL (percent-encoded): one session."""
    with Provider(HELLO) as p, Rig("record", store, {"openai": p.url}, forward=True) as rig:
        with intercepted(rig, user=quote(name, safe="")) as c:
            assert c.ask(say()).status == 200
        assert [outcome.session for outcome in rig.outcomes] == [name]
    with Rig("replay", store, forward=True) as rig, rig.client() as c:
        assert c.ask(chat("hi", f"/s/{quote(name, safe='')}/v1/chat/completions")).status == 200


@pytest.mark.parametrize("user", ["a" * 300, "a~0~", "%00", "%ff%fe"])
def test_a_user_that_can_be_no_session_is_said_inside(tape: Path, user: str) -> None:
    """The client reads why, in the provider's own envelope, or in the refusal of the tunnel."""
    with Rig("replay", tape, forward=True) as rig, rig.client() as c:
        status, _ = c.send(connect_bytes(OPENAI, 443, user)).head()
        if status == 200:
            answer = secure(c, OPENAI, rig.proxy.ca).ask(say())
            assert answer.status >= 400
            assert "llmproxy" in answer.message
        else:
            assert status == 403
        assert user != "%ff%fe" or b"user name" in refused(rig, OPENAI, 443, user).body


def test_each_tunnel_keeps_its_own_session(store: Path) -> None:
    """Two clients at once, two sessions; the same words, each recorded in its own cassette."""
    with Provider(HELLO) as p, Rig("record", store, {"openai": p.url}, forward=True) as rig:
        with intercepted(rig, user="one") as a, intercepted(rig, user="two") as b, intercepted(rig) as c:
            for wire in (a, b, c, a):
                assert wire.ask(say()).status == 200
        rig.wait_idle()
        until(lambda: not rig.proxy.users)
    assert [(each.cassette, each.occurrence) for each in recorded(store)] == [
        ("one", 1), ("two", 1), ("default", 1), ("one", 2),
    ]  # fmt: skip


def test_credentials_are_read_as_clients_write_them() -> None:
    """Decoded or percent-encoded, with and without a password; other schemes name nobody."""
    assert read_proxy_credentials(()).user is None
    assert read_proxy_credentials((("Proxy-Authorization", "Negotiate abc"),)).user is None
    assert read_proxy_credentials(tuple(basic("").items())).user is None
    value = base64.b64encode(b"a%2Fb:s%C3%BC").decode()
    assert read_proxy_credentials((("proxy-authorization", f"basic {value}"),)) == ProxyCredentials("a/b", "sü")
    for unreadable in ("Basic ###", "Basic /w=="):
        with pytest.raises(RefusedError, match="cannot be read"):
            read_proxy_credentials((("proxy-authorization", unreadable),))


# --- who may ---------------------------------------------------------------------------------------------------------------


def client(peer: str, ours: str = "127.0.0.1", port: int = 8080) -> Client:
    return Client(peername=(peer, 1), sockname=(ours, port), timestamp_start=0.0)


def test_we_know_ourselves() -> None:
    """Any name of the loopback, at the port that the client came in by."""
    assert is_own_listener(client("127.0.0.1"), "localhost", 8080)
    assert is_own_listener(client("127.0.0.1", "::1"), "127.0.0.1", 8080)
    assert is_own_listener(client("10.0.0.2", "10.0.0.1"), "10.0.0.1", 8080)
    assert not is_own_listener(client("127.0.0.1"), "127.0.0.1", 8081)
    assert not is_own_listener(client("10.0.0.2", "10.0.0.1"), "127.0.0.1", 8080)
    assert not is_own_listener(client("127.0.0.1"), OPENAI, 8080)
    assert is_loopback_ip("::1%lo")
    assert not is_loopback_ip("nonsense")


def from_afar(host: str, port: int, password: str = "") -> http.HTTPFlow:
    flow = http.HTTPFlow(client("10.0.0.2", "10.0.0.1"), Server(address=None))
    flow.request = http.Request.make("CONNECT", f"http://{host}:{port}/")
    word = base64.b64encode(f"s:{password}".encode()).decode()
    flow.request.headers["proxy-authorization"] = f"Basic {word}"
    return flow


def test_another_machine_needs_the_token_and_stays_in_scope(tape: Path) -> None:
    """From an address that is not the loopback: no token, no tunnel; with it, LLM hosts and nothing else."""
    with Rig("auto", tape, {"openai": DEAD}, forward=True) as rig:
        for token, password, host, status in (
            ("", "", OPENAI, 403),
            ("secret", "", OPENAI, 403),
            ("secret", "wrong", OPENAI, 403),
            ("secret", "secret", OPENAI, None),
            ("secret", "secret", "example.com", 403),
        ):
            rig.proxy.token = token
            HttpConnectHandler(rig.proxy, forward=True).http_connect(flow := from_afar(host, 443, password))
            assert (flow.response.status_code if flow.response else None) == status, (token, password, host)
            headers = (("proxy-authorization", flow.request.headers["proxy-authorization"]),)
            if status is None:
                assert authorize_destination(rig.proxy, flow.client_conn, ("http", host, 80), headers) == (
                    "http",
                    host,
                    80,
                )
            else:
                with pytest.raises(RefusedError):
                    authorize_destination(rig.proxy, flow.client_conn, ("http", host, 80), headers)
        assert rig.proxy.tunnels == {}


# --- fail closed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "method"), [
    ("intercept", "_decide_tunnel"), ("intercept", "_report_refusal"), ("choice", "_set_chosen_layer"), ("dispatcher", "is_host_in_scope"),
    ("dispatcher", "get_session_mode"), ("stages", "begin_exchange"), ("layer", "_on_head"), ("recorder", "requestheaders"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["replay", "record"])
def test_what_raises_opens_nothing(tape: Path, mode: str, part: str, method: str) -> None:
    """Whatever of ours fails: no connection upstream, no answer from it, and no client that waits for ever."""
    with (
        Provider(HELLO, check=False) as p,
        Rig(mode, tape, {"openai": p.url}, forward=True, **broken(part, method)) as rig,
    ):
        for host, port in ((OPENAI, 443), ("127.0.0.1", p.port)):
            with rig.client(5) as c:
                c.send(connect_bytes(host, port))
                if c.head()[0] == 200:
                    c.send(b"\x00" * 8)
                    c.sock.shutdown(socket.SHUT_WR)
                    c.rest()
        if method not in ("_report_refusal", "get_session_mode"):
            with rig.client(5) as c:
                if c.send(connect_bytes(OPENAI, 443)).head()[0] == 200:
                    try:
                        answer = secure(c, OPENAI, rig.proxy.ca).ask(chat("new", headers={"host": OPENAI}))
                    except (ssl.SSLError, ConnectionError):
                        answer = Received(0, {}, b"")
                    assert answer.status in (0, 404, 500, 502)
        if mode == "replay" or method not in ("_report_refusal", "is_host_in_scope", "get_session_mode"):
            assert p.requests == []


def test_a_tunnel_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    with Rig("record", tmp_path / "x.db", forward=True) as rig:
        with tunnel(rig, "127.0.0.1", 9) as c:
            c.send(b"\x16nothing listens there")
            c.rest()
        until(lambda: not rig.proxy.tunnels)


def test_an_earlier_permission_does_not_count_for_a_later_connect(tmp_path: Path) -> None:
    """Whatever the same connection was allowed before, its next CONNECT to a provider is no raw tunnel."""
    with Rig("record", tmp_path / "x.db", forward=True) as rig:
        decides, same = HttpConnectHandler(rig.proxy, forward=True), client("127.0.0.1")
        flow = http.HTTPFlow(same, Server(address=None))
        flow.request = http.Request.make("CONNECT", "http://example.com:443/")
        decides.http_connect(flow)
        assert rig.proxy.tunnels == {same.id: ("example.com", 443)}
        flow.request = http.Request.make("CONNECT", f"http://{OPENAI}:443/")
        decides.http_connect(flow)
        assert rig.proxy.tunnels == {}


def test_what_passes_inside_a_wrong_origin_is_still_the_origin_s(tape: Path) -> None:
    """A Host header inside the tunnel names nobody: the CONNECT did."""
    with Rig("replay", tape, forward=True) as rig, intercepted(rig) as c:
        assert c.ask(chat("hi", headers={"host": "evil.example"})).status == 200
        assert c.ask(chat("hi", f"https://evil.example{CHAT}")).status == 200
