"""A recorded response as bytes for one client."""

from __future__ import annotations

import gzip
import zlib
from functools import partial

import brotli
import pytest
import zstandard
from hypothesis import given, strategies as st

from llmproxy.core.traffic.body_decoding import BodyDecoder, decode_body, parse_multipart
from llmproxy.core.traffic.interaction import Chunk, Ending, Headers, Response
from llmproxy.core.traffic.response_plan import (
    AnswerSendingPlan,
    ClientFramingTraits,
    plan_response_sending,
    serialize_response_head,
)
from tests.support.narrowing import known

SSE: Headers = (("content-type", "text/event-stream"),)
CHUNKS = (Chunk(1_000_000, b"one"), Chunk(1_000_000, b"two!"), Chunk(3_000_000, b""), Chunk(3_000_000, b"three"))


def response(**changes: object) -> Response:
    """Return a stream of three chunks, two of which came at once."""
    given: dict[str, object] = {"status": 200, "reason": "OK", "headers": SSE, "chunks": CHUNKS, "head_offset": 500_000}
    return Response(**{**given, "chunked": True, **changes})  # type: ignore[arg-type]


def laid(made: Response, client: ClientFramingTraits | None = None, *, speed: float = 0) -> AnswerSendingPlan:
    return plan_response_sending(made, client or ClientFramingTraits(), speed=speed, now=0.0, extra=(("x-extra", "1"),))


def split(made: AnswerSendingPlan) -> tuple[dict[str, str], bytes]:
    head, _, body = b"".join(data for _, data in made.pieces).partition(b"\r\n\r\n")
    return {n.lower(): v for n, _, v in (line.partition(": ") for line in head.decode().split("\r\n")[1:])}, body


def test_at_once_is_one_write_with_the_borders_kept() -> None:
    """HTTP chunks as recorded; an empty one would end the message."""
    made = laid(response())
    assert len(made.pieces) == 1
    headers, body = split(made)
    assert body == b"3\r\none\r\n4\r\ntwo!\r\n5\r\nthree\r\n0\r\n\r\n"
    assert headers["transfer-encoding"] == "chunked"
    assert (headers["x-extra"], headers["x-llmproxy-cache"], headers["date"][:3]) == ("1", "hit", "Thu")
    assert not made.close


@pytest.mark.parametrize(("speed", "times"), [(1, [500_000, 1_000_000, 3_000_000]), (4, [125_000, 250_000, 750_000])])
def test_in_its_own_time(speed: float, times: list[int]) -> None:
    """What is due at the same moment is one write; the end comes with the last chunk."""
    made = laid(response(), speed=speed)
    assert [at for at, _ in made.pieces] == times
    assert made.pieces[-1][1] == b"5\r\nthree\r\n0\r\n\r\n"


def test_time_never_runs_backwards() -> None:
    """A clock that was set back while recording delays nothing and reorders nothing."""
    made = laid(response(chunks=(Chunk(300, b"a"), Chunk(100, b"b"), Chunk(400, b"c")), head_offset=200), speed=1)
    assert [at for at, _ in made.pieces] == [200, 300, 400]
    assert split(made)[1] == b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"


CHUNKED = ("transfer-encoding", "chunked")
FRAMING = [
    # response, client -> framing header, body, close
    ({"chunked": False}, ClientFramingTraits(), ("content-length", "12"), b"onetwo!three", False),
    ({}, ClientFramingTraits(http10=True, keep_alive=True), ("connection", "close"), b"onetwo!three", True),
    ({"chunked": False}, ClientFramingTraits(http10=True, keep_alive=True), ("connection", "keep-alive"), b"onetwo!three",
     False),
    ({"chunked": False}, ClientFramingTraits(http10=True, keep_alive=False), ("connection", "close"), b"onetwo!three", True),
    ({}, ClientFramingTraits(keep_alive=False), ("connection", "close"), None, True),
    ({}, ClientFramingTraits("HEAD"), ("x-extra", "1"), b"", False),
    ({"status": 204, "chunks": ()}, ClientFramingTraits(), ("x-extra", "1"), b"", False),
    ({"status": 304, "chunks": ()}, ClientFramingTraits(), ("x-extra", "1"), b"", False),
    ({"chunks": (), "chunked": False}, ClientFramingTraits(), ("content-length", "0"), b"", False),
    ({"ending": Ending.CUT}, ClientFramingTraits(), CHUNKED, b"3\r\none\r\n4\r\ntwo!\r\n5\r\nthree\r\n", True),
    ({"ending": Ending.CUT}, ClientFramingTraits(http10=True), ("content-length", "13"), b"onetwo!three", True),
    ({"ending": Ending.CUT, "chunked": False}, ClientFramingTraits(), ("transfer-encoding", "chunked"), None, True),
    ({"ending": Ending.UNTERMINATED}, ClientFramingTraits(), ("transfer-encoding", "chunked"), None, False),
]  # fmt: skip


def test_a_cut_is_not_announced() -> None:
    """After `connection: close` Node's fetch takes an answer without its last chunk for a whole one; who asked for it is told so."""
    assert "connection" not in split(laid(response(ending=Ending.CUT)))[0]
    assert split(laid(response(ending=Ending.CUT), ClientFramingTraits(keep_alive=False)))[0]["connection"] == "close"


@pytest.mark.parametrize(("changes", "client", "field", "body", "close"), FRAMING)
def test_framing_is_made_for_the_client(
    changes: dict[str, object], client: ClientFramingTraits, field: tuple[str, str], body: bytes | None, close: bool
) -> None:
    """A length where there was one, chunks where there was none, and a cut is cut again."""
    made = laid(response(**changes), client)
    headers, sent = split(made)
    assert field in headers.items()
    assert body is None or sent == body
    assert made.close is close
    assert not {"content-length", "transfer-encoding"} <= set(headers)


def test_what_was_between_two_machines_is_not_replayed() -> None:
    """Hop-by-hop fields, cookies, and what would lead the client elsewhere."""
    gone = ("Connection", "Keep-Alive", "Set-Cookie", "Alt-Svc", "Date", "Strict-Transport-Security")
    headers, _ = split(laid(response(headers=(*((name, "recorded") for name in gone), ("X-Request-Id", "r")))))
    assert "recorded" not in headers.values()
    assert headers["x-request-id"] == "r"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503, 529])
def test_a_transient_error_asks_for_no_pause(status: int) -> None:
    """One millisecond, with the recorded value beside it; in its own time it says what it said."""
    made = response(status=status, headers=(("Retry-After", "7"), ("retry-after-ms", "7000")), chunked=False)
    headers, _ = split(laid(made))
    names = ("retry-after", "retry-after-ms", "x-llmproxy-recorded-retry-after")
    assert tuple(map(headers.get, names)) == ("0", "1", "7")
    headers, _ = split(laid(made, speed=1))
    assert tuple(map(headers.get, names)) == ("7", "7000", None)
    assert split(laid(response(status=status, headers=())))[0]["retry-after-ms"] == "1"


@pytest.mark.parametrize(("name", "recorded", "at_once", "twice", "as_recorded"), [
    ("openai-poll-after-ms", "5000", "1", "2500", "5000"),
    ("Retry-After", "7", "0", "4", "7"),
    ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT", *["Wed, 21 Oct 2026 07:28:00 GMT"] * 3),
    ("x-other-after", "7", "7", "7", "7"),
])  # fmt: skip
@pytest.mark.parametrize("status", [200, 202, 301])
def test_waits_of_other_answers_are_scaled_with_the_speed(
    status: int, name: str, recorded: str, at_once: str, twice: str, as_recorded: str
) -> None:
    """A client that polls waits as long as the replay takes: not at all, half as long, as recorded; dates stay."""
    made = response(status=status, headers=((name, recorded),))
    assert [split(laid(made, speed=speed))[0][name.lower()] for speed in (0, 2, 1)] == [at_once, twice, as_recorded]


def test_a_recorded_line_break_starts_no_field() -> None:
    """What a store holds cannot split a response."""
    assert serialize_response_head(200, "a\r\nX: 1", (("b\r\nY", "c\nZ: 1"),)).count(b"\r\n") == 3


CODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate ": partial(zlib.compress, wbits=-15),  # without zlib's wrapper
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
    "": bytes,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
}


@pytest.mark.parametrize("coding", CODERS)
@given(data=st.binary(max_size=3000), size=st.integers(1, 400))
def test_what_was_coded_comes_back_in_any_pieces(coding: str, data: bytes, size: int) -> None:
    """Decoding whole and piece by piece gives the same."""
    coded = CODERS[coding](data)
    inflater = BodyDecoder(coding)
    assert b"".join([inflater.decode_piece(coded[at : at + size]) for at in range(0, len(coded), size)]) == data
    assert inflater.is_complete
    assert decode_body(coded, coding) == data


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_truncated_and_corrupt_bodies_are_errors(coding: str) -> None:
    """A body that stops in the middle, or is something else, is said and not guessed."""
    coded = CODERS[coding](b"hello world, " * 50)
    with pytest.raises(ValueError, match="truncated"):
        decode_body(coded[:-3], coding)
    with pytest.raises(ValueError, match=r"."):
        decode_body(b"\xff\xfenot compressed at all", coding)
    with pytest.raises(ValueError, match=r"."):
        decode_body(coded + b"more", coding)


def test_an_unknown_coding_is_named() -> None:
    with pytest.raises(ValueError, match="unknown content-encoding 'snappy'"):
        decode_body(b"x", "gzip, snappy")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br"])
def test_a_bomb_stops_at_the_limit(coding: str) -> None:
    """16 MiB of zeros do not come out where 256 KiB are allowed."""
    coded = CODERS[coding](bytes(16 << 20))
    with pytest.raises(ValueError, match="larger than 262144 bytes"):
        decode_body(coded, coding, 1 << 18)
    assert len(decode_body(CODERS[coding](bytes(1 << 18)), coding, 1 << 18)) == 1 << 18


def test_gzip_members_and_zstd_frames_follow_one_another() -> None:
    """Concatenated members are one body, as RFC 1952 and RFC 8878 say."""
    assert decode_body(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", "gzip") == b"ab"
    coder = zstandard.ZstdCompressor()
    assert decode_body(coder.compress(b"a") + coder.compress(b"b"), "zstd") == b"ab"


def test_each_flushed_piece_comes_out_at_once() -> None:
    """A stream's events are not held back until its end."""
    packer = zlib.compressobj(wbits=31)
    inflater = BodyDecoder("gzip")
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        assert inflater.decode_piece(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)) == event
    assert not inflater.is_complete


FORM = (
    b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
    b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.WAV"\r\nContent-Type: audio/x-wav\r\n\r\n\x00\r\n--b\xff\r\n'
    b"--b1--\r\n"
)


def test_a_form_comes_apart_binary_safe() -> None:
    """Line ends and things like boundaries inside a file stay in it."""
    parts = known(parse_multipart(FORM, 'multipart/form-data; boundary="b1"'))
    assert [(part.name, part.filename, part.content_type, part.data) for part in parts] == [
        ("model", None, "", b"whisper-1"),
        ("file", "a.WAV", "audio/x-wav", b"\x00\r\n--b\xff"),
    ]


@pytest.mark.parametrize(("body", "content_type"), [
    (FORM, "application/json"),
    (FORM, "multipart/form-data"),
    (FORM[:-6], "multipart/form-data; boundary=b1"),
    (b"", "multipart/form-data; boundary=b1"),
    (FORM.replace(b"Type: audio/x-wav", b"Transfer-Encoding: base64"), "multipart/form-data; boundary=b1"),
])  # fmt: skip
def test_what_is_no_whole_form_is_none(body: bytes, content_type: str) -> None:
    """Nothing is guessed about a form that is cut off or not one."""
    assert parse_multipart(body, content_type) is None
