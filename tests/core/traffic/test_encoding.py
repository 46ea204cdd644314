"""Content-encodings are undone exactly, in any pieces, within a limit; multipart forms come apart as they were put together."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given, strategies as st

from llmproxy.core.traffic.encoding import Inflater, decode, multipart

RAW = zlib.compressobj(wbits=-15)


def raw_deflate(data: bytes) -> bytes:
    """Compress without zlib's wrapper."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate ": raw_deflate,
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
    inflater = Inflater(coding)
    assert b"".join([inflater.feed(coded[at : at + size]) for at in range(0, len(coded), size)]) == data
    assert inflater.complete
    assert decode(coded, coding) == data


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_truncated_and_corrupt_bodies_are_errors(coding: str) -> None:
    """A body that stops in the middle, or is something else, is said and not guessed."""
    coded = CODERS[coding](b"hello world, " * 50)
    with pytest.raises(ValueError, match="truncated"):
        decode(coded[:-3], coding)
    with pytest.raises(ValueError, match=r"."):
        decode(b"\xff\xfenot compressed at all", coding)


def test_an_unknown_coding_is_named() -> None:
    """The message says which one."""
    with pytest.raises(ValueError, match="unknown content-encoding 'snappy'"):
        decode(b"x", "gzip, snappy")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br"])
def test_a_bomb_stops_at_the_limit(coding: str) -> None:
    """64 MiB of zeros do not come out where 1 MiB is allowed."""
    coded = CODERS[coding](bytes(64 << 20))
    with pytest.raises(ValueError, match="larger than 1048576 bytes"):
        decode(coded, coding, 1 << 20)
    assert len(decode(CODERS[coding](bytes(1 << 20)), coding, 1 << 20)) == 1 << 20


def test_gzip_members_and_zstd_frames_follow_one_another() -> None:
    """Concatenated members are one body, as RFC 1952 and RFC 8878 say."""
    assert decode(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", "gzip") == b"ab"
    coder = zstandard.ZstdCompressor()
    assert decode(coder.compress(b"a") + coder.compress(b"b"), "zstd") == b"ab"


def test_each_flushed_piece_comes_out_at_once() -> None:
    """A stream's events are not held back until its end."""
    packer = zlib.compressobj(wbits=31)
    inflater = Inflater("gzip")
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        assert inflater.feed(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)) == event
    assert not inflater.complete


FORM = (
    b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
    b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.WAV"\r\nContent-Type: audio/x-wav\r\n\r\n\x00\r\n--b\xff\r\n'
    b"--b1--\r\n"
)


def test_a_form_comes_apart_binary_safe() -> None:
    """Line ends and things like boundaries inside a file stay in it."""
    parts = multipart(FORM, 'multipart/form-data; boundary="b1"')
    assert parts is not None
    assert [(part.name, part.filename, part.content_type, part.data) for part in parts] == [
        ("model", None, "", b"whisper-1"),
        ("file", "a.WAV", "audio/x-wav", b"\x00\r\n--b\xff"),
    ]


@pytest.mark.parametrize(("body", "content_type"), [
    (FORM, "application/json"),
    (FORM, "multipart/form-data"),
    (FORM[:-6], "multipart/form-data; boundary=b1"),
    (b"", "multipart/form-data; boundary=b1"),
    (
        FORM.replace(b"Content-Type: audio/x-wav", b"Content-Transfer-Encoding: base64"),
        "multipart/form-data; boundary=b1",
    ),
])  # fmt: skip
def test_what_is_no_whole_form_is_none(body: bytes, content_type: str) -> None:
    """Nothing is guessed about a form that is cut off or not one."""
    assert multipart(body, content_type) is None
