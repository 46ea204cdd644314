"""mitmproxy's flow files, read as mitmproxy reads them, without it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from llmproxy.core.cassettes.formats import Recorded, Source, mitmflows
from llmproxy.errors import CassetteCorrupt

FLOWS = Path(__file__).resolve().parents[4] / "fixtures/formats/mitmproxy.flows"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=10,
)


def dumps(value: object) -> bytes:
    tnetstring = pytest.importorskip("mitmproxy.io.tnetstring")
    data: bytes = tnetstring.dumps(value)
    return data


def flow(**changes: object) -> dict[str, Any]:
    made: dict[str, Any] = {
        "version": 21,
        "type": "http",
        "request": {"method": b"POST", "scheme": b"https", "host": "api.openai.com", "port": 443, "path": b"/v1/x",
                    "authority": b"", "headers": [[b":authority", b"h"], [b"a", b"\xfc"]], "content": b"{}",
                    "timestamp_start": 100.0, "timestamp_end": 100.5},
        "response": {"status_code": 200, "reason": b"OK", "headers": [], "content": b"{}", "timestamp_start": 101.0,
                     "timestamp_end": 102.0},
    }  # fmt: skip
    for path, value in changes.items():
        side, _, name = path.partition("__")
        if name:
            made[side][name] = value
        else:
            made[side] = value
    return made


def read(*flows: object) -> list[Recorded]:
    return mitmflows.read(Source(b"".join(map(dumps, flows)), "x.flows"))


@settings(deadline=None)
@given(VALUES)
def test_values_are_read_as_mitmproxy_reads_them(value: object) -> None:
    """Every value that mitmproxy writes comes back the same."""
    data = dumps({"v": value})
    found, end = mitmflows._parse_value(memoryview(data), 0, len(data), 0)
    assert end == len(data)
    assert found == {"v": value}


def test_its_own_reader_sees_the_same() -> None:
    """Method, address, header fields, raw bodies and times are those of mitmproxy's own reader."""
    theirs = list(pytest.importorskip("mitmproxy.io").FlowReader(io.BytesIO(FLOWS.read_bytes())).stream())
    theirs.sort(key=lambda each: each.request.timestamp_start)
    ours = mitmflows.read(Source(FLOWS.read_bytes(), "x"))
    assert len(ours) == 7
    for a, b in zip(ours, theirs, strict=True):
        assert (a.method, a.uri, a.status, a.reason) == (
            b.request.method, b.request.url, b.response.status_code, b.response.reason,
        )  # fmt: skip
        assert (a.body, a.response_body) == (b.request.raw_content, b.response.raw_content)
        assert a.response_headers == tuple(b.response.headers.items(multi=True))
        assert a.recorded_at == b.request.timestamp_start


def test_one_flow() -> None:
    """The parts of a flow stand where they belong; HTTP/2's pseudo fields are gone."""
    (each,) = read(flow())
    assert (each.method, each.uri, each.headers) == ("POST", "https://api.openai.com/v1/x", (("a", "ü"),))
    assert (each.recorded_at, each.extra) == (100.0, {"head_offset": 500_000, "body_offset": 1_500_000})


@pytest.mark.parametrize(("host", "port", "asked", "uri"), [
    ("api.openai.com", 8443, b"", "https://api.openai.com:8443/v1/x"),
    ("1.2.3.4", 443, b"api.openai.com", "https://api.openai.com/v1/x"),
    ("1.2.3.4", 443, b"api.openai.com:443", "https://api.openai.com:443/v1/x"),
    ("127.0.0.1", 9, b"127.0.0.1:9", "https://127.0.0.1:9/v1/x"),
    ("::1", 9, b"[::1]:9", "https://[::1]:9/v1/x"),
    ("::1", 443, b"", "https://[::1]/v1/x"),
])  # fmt: skip
def test_addresses(host: str, port: int, asked: bytes, uri: str) -> None:
    """A transparent proxy saw an address only; the host that was asked for counts then."""
    assert read(flow(request__host=host, request__port=port, request__authority=asked))[0].uri == uri


@pytest.mark.parametrize(("changes", "why"), [
    ({"response": None}, "there was no answer"),
    ({"response__content": None}, "streamed and not saved"),
    ({"request__content": None}, "streamed and not saved"),
    ({"websocket": {"messages": []}}, "it is a WebSocket"),
    ({"type": "tcp"}, "it is tcp, not HTTP"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_skipped(changes: dict[str, object], why: str) -> None:
    """A flow that is sound and no recording is skipped with the reason, the others are taken."""
    found = read(flow(**changes), flow())
    assert [bool(each.problem) for each in sorted(found, key=lambda each: each.number)] == [True, False]
    assert why in next(each.problem for each in found if each.problem)


@pytest.mark.parametrize(("data", "said"), [
    (b"12", "byte 0: no length"),
    (b"5:abc,", "byte 0: 5 bytes and a type should follow, 4 bytes are left"),
    (b"1:a,", "byte 0: a flow is bytes"),
    (b"7:1:a,1:b}", "byte 6: 1 bytes and a type should follow, 1 bytes are left"),
    (b"8:1:a;1:b#}", "byte 6: b'b' is not of type '#'"),
    (b"8:1:a;1:b?}", "byte 6: the type '\\?' is unknown"),
    (b"8:1:a;1:b~}", "unknown"),
    (b"4:1:a;}", "byte 0: a dictionary's last name"),
    (b"4:1:\xff;}", "byte 2"),
    (b"999999999999999:", "no length"),
])  # fmt: skip
def test_damage_has_a_place(data: bytes, said: str) -> None:
    """What is damaged is named with its place in bytes."""
    with pytest.raises(CassetteCorrupt, match=said):
        mitmflows.read(Source(data, "x.flows"))


def test_deep_nesting_ends_in_an_error() -> None:
    data = b""
    for _ in range(2000):
        data = b"%d:%s]" % (len(data), data)
    with pytest.raises(CassetteCorrupt, match="nested too deeply"):
        mitmflows.read(Source(data, "x"))


@pytest.mark.parametrize(("changes", "said"), [
    ({"version": [0, 18]}, "bring it up to date"),
    ({"version": 3}, "bring it up to date"),
    ({"request": None}, "`request` is missing"),
    ({"request__headers": [[b"a"]]}, "not a list of pairs"),
    ({"request__content": 3}, "a body is int"),
    ({"response__status_code": 0}, "the status is 0"),
])  # fmt: skip
def test_what_is_wrong_is_said(changes: dict[str, object], said: str) -> None:
    """A flow that is not what it should be is named by its number."""
    with pytest.raises(CassetteCorrupt, match=f"flow 2: .*{said}"):
        read(flow(), flow(**changes))
