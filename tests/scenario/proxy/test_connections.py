"""HTTP/1.1 on connections of our own: every framing, every way to break off, and a connection that is used again only if that is safe."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from llmproxy.scenario.proxy.connections import Connections
from tests.provider import Answer, Piece, Provider, step
from tests.support.process import free_port

Asked = tuple[int, bytes]
HELLO = Answer(pieces=(Piece(b'{"a": 1}'),))
BODY = b"0123456789" * 20_000
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client(*, keep: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client that speaks by them."""
    async with httpx.AsyncClient(transport=Connections(keep=keep), timeout=20, trust_env=False) as made:
        yield made


def ask(*answers: Answer, keep: bool = True) -> tuple[list[Asked], list[int]]:
    """Ask a server once for each answer; return what came, and on which connection it arrived."""

    async def run(url: str) -> list[Asked]:
        async with client(keep=keep) as by:
            found = [await by.post(f"{url}/v1/chat/completions", json={"model": "m"}) for _ in answers]
            return [(each.status_code, each.content) for each in found]

    with Provider([step(answer=each) for each in answers]) as provider:
        return asyncio.run(run(provider.url)), [seen.connection for seen in provider.requests]


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamWriter, int], Awaitable[None]]) -> AsyncIterator[str]:
    """Run a server that reads a request and leaves the rest to `answer`, which is told the number of the request."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                count += 1
                await answer(writer, count)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


def says(*texts: bytes, close: bool = False) -> tuple[list[bytes], Exception | None]:
    """Return the bodies that a client reads from a server that says exactly this, a text for each request."""

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(texts[number - 1])
        if close:
            writer.close()

    async def run() -> tuple[list[bytes], Exception | None]:
        bodies: list[bytes] = []
        async with server(answer) as url, client() as by:
            try:
                for _ in texts:
                    bodies.append((await by.get(url)).content)
                    await asyncio.sleep(0.05)
            except httpx.HTTPError as error:
                return bodies, error
        return bodies, None

    return asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        HELLO,
        HELLO.framed("chunked"),
        HELLO.framed("close"),
        Answer(pieces=(Piece(BODY),)),
        Answer(pieces=(Piece(BODY),)).recut(7001).framed("chunked"),
        Answer(pieces=(Piece(BODY),)).framed("close"),
        Answer(pieces=(Piece(BODY[:5]), Piece(BODY[5:9], 0.05)), framing="chunked", trailers=(("x-a", "b"),)),
        Answer(pieces=(Piece(b"x"),), interim=(102, 103)),
        Answer(pieces=(), framing="length"),
        Answer(status=404, pieces=(Piece(b"no"),)),
    ],
    ids=str,
)
def test_every_framing_is_read_whole(answer: Answer) -> None:
    """The body is what was sent, however it was cut, and the next request is answered by its own answer."""
    found, _ = ask(answer, HELLO)
    assert found == [(answer.status, answer.body), (200, HELLO.body)]


def test_compressed_bodies_are_unpacked() -> None:
    """What was recorded for a client that takes gzip comes back as gzip."""
    text = Answer(pieces=(Piece(BODY),))
    assert ask(text.compressed("gzip"))[0] == [(200, BODY)]


@pytest.mark.parametrize(
    ("answer", "keep", "connections"),
    [
        (HELLO, True, [1, 1]),
        (HELLO.framed("chunked"), True, [1, 1]),
        (HELLO, False, [1, 2]),
        (HELLO.framed("close"), True, [1, 2]),
        (HELLO.with_headers(("connection", "close")), True, [1, 2]),
        (Answer(version="HTTP/1.0", pieces=(Piece(b"x"),)), True, [1, 2]),
    ],
    ids=str,
)
def test_a_connection_is_used_again_if_it_may_be(answer: Answer, keep: bool, connections: list[int]) -> None:
    """And not where the server, or whoever made the pool, says otherwise."""
    assert ask(answer, HELLO, keep=keep)[1] == connections


@pytest.mark.parametrize("answer", [Answer(pieces=(Piece(BODY),)).cut(1, way) for way in ("close", "reset")], ids=str)
def test_a_body_that_breaks_off_is_an_error(answer: Answer) -> None:
    """Half an answer is none."""
    with pytest.raises(httpx.TransportError):
        ask(Answer(pieces=answer.pieces, ends=answer.ends, framing="chunked"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"hello\r\n\r\n", "illegal status line"),
        (b"HTTP/2 200\r\n\r\n", "illegal status line"),
        (b"\x16\x03\x01", "illegal request line"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "illegal header line"),
        (b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", "continuation line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length : 1\r\n\r\nx", "illegal header line"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 60_000, "too long"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 400_000, "too long"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy", "conflicting Content-Length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nx", "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\nx", "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "Only Transfer-Encoding: chunked"),
        (CHUNKED + b"x\r\n", "illegal chunk header"),
        (CHUNKED + b"-1\r\n", "illegal chunk header"),
        (CHUNKED + b"1" * 400_000, "too long"),
        (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", "malformed chunk footer"),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * 60_000, "too long"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "without a pending proposal"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_http_is_an_error(text: bytes, said: str) -> None:
    """Nothing is guessed, and the error is short, whatever the server wrote."""
    bodies, error = says(text)
    assert bodies == []
    assert isinstance(error, httpx.RemoteProtocolError)
    assert said in str(error)
    assert len(str(error)) <= 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "without sending a response"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "without sending a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "middle of the head"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", "received 3 bytes, expected 5"),
        (CHUNKED + b"5\r\nhel", "incomplete chunked read"),
        (CHUNKED + b"3\r\nhel\r\n", "incomplete chunked read"),
        (CHUNKED + b"3\r\nhel\r\n0\r\na: b", "peer unexpectedly closed"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_server_that_hangs_up_is_an_error(text: bytes, said: str) -> None:
    """At whatever place."""
    bodies, error = says(text, close=True)
    assert bodies == []
    assert isinstance(error, httpx.RemoteProtocolError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (CHUNKED + b"2\r\nok\r\n0\r\na: b\r\nc: d\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_servers_also_write_is_read(text: bytes, body: bytes) -> None:
    """Without a reason, with bare line ends, lengths twice, coding over length."""
    assert says(text) == ([body], None)


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 200 OK\r\n\r\nok", b"HTTP/1.0 200 OK\r\n\r\nok", b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"],
)
def test_a_body_may_last_until_the_server_hangs_up(text: bytes) -> None:
    """As servers of HTTP/1.0 do it; one that says how long the body is may hang up too."""
    assert says(text, close=True) == ([b"ok"], None)


def test_the_answer_to_head_has_no_body() -> None:
    """Whatever length it tells, and the connection can be used again."""
    seen: list[int] = []

    async def answer(writer: asyncio.StreamWriter, _: int) -> None:
        seen.append(id(writer))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")

    async def run() -> list[bytes]:
        async with server(answer) as url, client() as by:
            return [(await by.head(url)).content for _ in range(2)]

    assert asyncio.run(run()) == [b"", b""]
    assert len(set(seen)) == 1


def test_a_switch_that_was_asked_for_is_not_followed_either() -> None:
    """What comes after it is no HTTP, and nobody here could read it."""

    async def answer(writer: asyncio.StreamWriter, _: int) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nxyz")

    async def run() -> None:
        async with server(answer) as url, client() as by:
            await by.get(url, headers={"connection": "upgrade", "upgrade": "x"})

    with pytest.raises(httpx.RemoteProtocolError, match="another protocol"):
        asyncio.run(run())


def test_a_body_of_unknown_length_is_sent_whole() -> None:
    """What the caller gives in pieces arrives as chunks."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model": "m",'
        yield b' "messages": []}'

    async def run(url: str) -> bytes:
        async with client() as by:
            return (await by.post(f"{url}/v1/chat/completions", content=pieces())).content

    with Provider([step(answer=HELLO)]) as provider:
        assert asyncio.run(run(provider.url)) == HELLO.body
        assert [seen.body for seen in provider.requests] == [b'{"model": "m", "messages": []}']


def test_what_nobody_asked_for_is_never_an_answer() -> None:
    """A server that says more than it was asked loses its connection, so that nothing answers the next request but its own answer."""
    ok, late = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"HTTP/1.1 408 Timeout\r\ncontent-length: 2\r\n\r\nno"
    assert says(ok + late, ok) == ([b"ok", b"ok"], None)


def test_what_is_said_later_is_noticed_too() -> None:
    """An idle connection on which a server complains, and hangs up, is not used again."""
    complained = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)
        if number == 1:
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(b"HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n")
            complained.set()

    async def run() -> list[bytes]:
        async with server(answer) as url, client() as by:
            first = (await by.get(url)).content
            await complained.wait()
            await asyncio.sleep(0.1)
            return [first, (await by.get(url)).content]

    assert asyncio.run(run()) == [b"1", b"2"]


def test_many_at_once_have_connections_of_their_own() -> None:
    """Nobody waits for another's connection, and each gets its own answer."""

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n%04d" % number)

    async def run() -> list[bytes]:
        async with server(answer) as url, client() as by:
            return [each.content for each in await asyncio.gather(*(by.get(url) for _ in range(100)))]

    assert len(set(asyncio.run(run()))) == 100


def test_whoever_stops_waiting_ends_the_connection() -> None:
    """What is cancelled in the middle leaves no answer behind for the next."""
    gone = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            await gone.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)

    async def run() -> bytes:
        async with server(answer) as url, client() as by:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await by.get(url)
            gone.set()
            await asyncio.sleep(0.1)
            return (await by.get(url)).content

    assert asyncio.run(run()) == b"2"


def test_a_body_that_is_not_read_ends_the_connection() -> None:
    """The rest of it would be taken for the next answer."""
    big, small = Answer(pieces=(Piece(BODY),)), HELLO

    async def run(url: str) -> bytes:
        async with client() as by:
            async with by.stream("POST", url, json={}) as found:
                assert found.status_code == 200
            return (await by.post(url, json={})).content

    with Provider([step(answer=big), step(answer=small)]) as provider:
        assert asyncio.run(run(f"{provider.url}/v1/chat/completions")) == small.body
        assert [seen.connection for seen in provider.requests] == [1, 2]


def test_nobody_there() -> None:
    """A port on which nobody listens, a name of nobody, TLS: httpx's own errors."""

    async def error(url: str) -> type[Exception]:
        async with client() as by:
            with pytest.raises(httpx.TransportError) as caught:
                await by.get(url)
        return caught.type

    async def run() -> list[type[Exception]]:
        urls = (f"http://127.0.0.1:{free_port()}/", "http://nobody.invalid/", "https://127.0.0.1/")
        return [await error(url) for url in urls]

    assert asyncio.run(run()) == [httpx.ConnectError, httpx.ConnectError, httpx.UnsupportedProtocol]


@pytest.mark.parametrize("value", ["Bearer a\nb", "Bearer a\r\nx: y", "Bearer \0"])
def test_a_header_cannot_be_smuggled_in(value: str) -> None:
    """What would be two headers is refused, and neither the error nor where it comes from shows it: there may be a key in it."""

    async def run() -> None:
        async with client() as by:
            await by.get("http://127.0.0.1:1/", headers={"authorization": value})

    with pytest.raises(httpx.LocalProtocolError, match="authorization") as caught:
        asyncio.run(run())
    assert "Bearer" not in "".join(traceback.format_exception(caught.value))


def test_what_cannot_be_written_is_an_error_before_anyone_is_asked() -> None:
    """A length that is not the body's would be an answer to something else."""

    async def run() -> None:
        async with client() as by:
            await by.post("http://127.0.0.1:1/", content=b"abc", headers={"content-length": "2"})

    with pytest.raises(httpx.LocalProtocolError, match="Content-Length"):
        asyncio.run(run())


def test_servers_that_are_gone_leave_nothing_open() -> None:
    """A process that asks many proxies, one after the other, does not collect dead connections."""

    async def run() -> int:
        pool = Connections()
        async with httpx.AsyncClient(transport=pool, trust_env=False) as by:
            for _ in range(3):
                with Provider([step(say="x")]) as provider:
                    await by.post(f"{provider.url}/v1/chat/completions", json={"model": "m", "messages": []})
                await asyncio.sleep(0.05)
            return pool.idle

    assert asyncio.run(run()) == 1
