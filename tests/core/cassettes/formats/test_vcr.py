"""vcrpy's cassettes, in YAML and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import requests
from hypothesis import given, strategies as st

from llmproxy.core.cassettes.formats import Recorded, Source, read_file_of_recordings, vcr as ours, write_text
from llmproxy.core.cassettes.formats.vcr import dumps, read
from llmproxy.errors import CassetteCorrupt, CassetteNewer, CassetteNotFound, MachineError


def test_yaml_and_json() -> None:
    """What vcrpy writes with either serializer is read."""
    text = ours.dumps([Recorded("GET", "http://h/", (), b"", 200, "OK", (), b"x")], "x")
    assert ours.recognises(Source(text.encode(), "x"))
    assert ours.read(Source(text.encode(), "x"))[0].response_body == b"x"
    tree = {"version": 1, "interactions": [{"request": {"method": "GET", "uri": "http://h/", "headers": {}, "body": None},
            "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "👋"}}}]}  # fmt: skip
    source = Source(json.dumps(tree, indent=4).encode(), "x")
    assert ours.recognises(source)
    assert ours.read(source)[0].response_body == "👋".encode()
    tree["interactions"].append({"request": {}})  # type: ignore[attr-defined]
    with pytest.raises(CassetteCorrupt, match="interaction 2: `response` is missing"):
        ours.read(Source(json.dumps(tree).encode(), "x"))


@pytest.mark.parametrize(("text", "is_it"), [
    ("", True), ("interactions: []\nversion: 1\n", True), ("- request:\n", True), ("key: value\n", False),
    ("{}", False),
])  # fmt: skip
def test_recognition(text: str, is_it: bool) -> None:
    """An empty file counts, so that it is called empty; other YAML does not."""
    assert ours.recognises(Source(text.encode(), "x")) is is_it


URI = "https://api.openai.com/v1/chat/completions"
HEAD = f"interactions:\n- request:\n    method: POST\n    uri: {URI}\n    headers: {{}}\n    body: null\n"
GOOD = HEAD + "  response:\n    status: {code: 200, message: OK}\n    headers: {}\n    body: {string: hi}\nversion: 1\n"


def parse(text: str) -> list[Recorded]:
    return read(Source(text.encode(), "c.yaml"))


def recorded(**changes: object) -> Recorded:
    values: dict[str, object] = {
        "method": "POST",
        "uri": URI,
        "headers": (("content-type", "application/json"), ("accept", "*/*")),
        "body": b'{"a": 1}',
        "status": 200,
        "reason": "OK",
        "response_headers": (("content-type", "text/plain"), ("x-a", "1"), ("x-b", "2"), ("x-a", "3")),
        "response_body": b"hello",
    }
    return Recorded(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("members", "body"), [
    ("{status: {code: 200, message: OK}, headers: {}, body: {string: 'é'}}", "é".encode()),
    ("{status: {code: 200, message: OK}, headers: {}, body: {string: !!binary /wA=}}", b"\xff\x00"),
    ("{status: {code: 200, message: OK}, headers: {}, body: {string: null}}", b""),
    ("{status: {code: 200, message: OK}, headers: {}, body: {encoding: UTF-8, base64_string: aGk=}}", b"hi"),
    ("{status: {code: 200, message: OK}, headers: {}, body: hi}", b"hi"),
    ("{status_code: 200, http_version: HTTP/1.1, headers: {a: [b]}, content: hi}", b"hi"),
    ("{status_code: 200, headers: {a: b}, content: !!binary /w==}", b"\xff"),
    ("{status: 200, headers: [[a, b]], body: {string: hi}}", b"hi"),
])  # fmt: skip
def test_forms_of_a_response(members: str, body: bytes) -> None:
    """Every form in which vcrpy's stubs ever wrote a response is read."""
    (found,) = parse(f"{HEAD}  response: {members}\nversion: 1\n")
    assert found.response_body == body


@pytest.mark.parametrize(("body", "expected"), [
    ("null", b""),
    ("'{}'", b"{}"),
    ("!!binary /w==", b"\xff"),
    ("!!python/object/new:_io.BytesIO {state: [!!binary /w==, 0, null]}", b"\xff"),
    ("[!!binary YQ==, b]", b"ab"),
])  # fmt: skip
def test_forms_of_a_request_body(body: str, expected: bytes) -> None:
    """Text, bytes, files and lists of pieces are bodies."""
    (found,) = parse(GOOD.replace("body: null", f"body: {body}"))
    assert found.body == expected


@pytest.mark.parametrize(("text", "what"), [
    ("", "the file is empty"),
    (" \n\t\n", "the file is empty"),
    ("- 1\n- 2", "before version 1"),
    ("just text", "a cassette is a mapping"),
    ("interactions: []", "`version` must be 1"),
    ("version: 2\ninteractions: []", "`version` must be 1, the file says 2"),
    ("version: 1", "`interactions` must be a list, not nothing"),
    ("version: 1\ninteractions: {}", "`interactions` must be a list, not dict"),
    ("version: 1\ninteractions: [}", "line 2"),
    ("version: 1\ninteractions:\n  - a: b\n c", "line"),
    ("version: 1\ninteractions: [1]", "interaction 1"),
    (GOOD.replace("status: {code: 200, message: OK}", "x: y"), "line 2, interaction 1: response: `status` has no code"),
    (GOOD.replace("code: 200", "code: 7"), "`status` has no code of 200 to 599"),
    (GOOD.replace("    body: {string: hi}\n", ""), "response: `body` is missing"),
    (GOOD.replace("{string: hi}", "{text: hi}"), "`body` has no `string`"),
    (GOOD.replace("method: POST", "x: y"), "`method` is missing"),
    (GOOD.replace(f"uri: {URI}", "uri: 7"), "`uri` is int"),
    (GOOD.replace("headers: {}", "headers: 7"), "`headers` is not a mapping"),
    (GOOD + "llmproxy: 7\n", "must say its `format`"),
    ("a: &a [x]\n" + "b: [" + "*a, " * 20_000 + "*a]\n", "too many aliases"),
    ("[" * 500 + "]" * 500, "nested too deeply"),
    ("a: &a {b: c}\nd:\n  <<: *a\n", "merge keys"),
    ("version: 1\ninteractions: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ("version: 1\ninteractions: !!python/name:os.system ''", "could not determine a constructor"),
    ("version: 1\nversion: \x00", "line 2: the character #0000 must not"),
])  # fmt: skip
def test_corrupt(text: str, what: str, tmp_path: Path) -> None:
    """A damaged file is an error that names the file and the place; it is never empty, and never constructed."""
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CassetteCorrupt) as error:
        read(read_file_of_recordings(path))
    assert what in str(error.value)
    assert "bad.yaml" in str(error.value)


def test_not_text_and_not_there(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, a missing file and a folder are told apart."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"version: 1\n\xff")
    with pytest.raises(CassetteCorrupt, match="line 2: not UTF-8"):
        read(read_file_of_recordings(path))
    with pytest.raises(CassetteNotFound, match="no cassette file"):
        read(read_file_of_recordings(tmp_path / "b.yaml"))
    with pytest.raises(MachineError):
        read(read_file_of_recordings(tmp_path))


def test_newer_format() -> None:
    """A file of a newer llmproxy is not half understood."""
    with pytest.raises(CassetteNewer, match="format 99"):
        parse(GOOD + "llmproxy: {format: 99}\n")


def test_recorded_at() -> None:
    """A time is taken where the file has one."""
    (found,) = parse(GOOD.replace("  response:", "  recorded_at: '2026-11-20T00:00:00Z'\n  response:"))
    assert found.recorded_at == 1795132800.0
    for unquoted in ("2026-11-20", "2026-11-20T01:00:00+01:00", "2026-11-20 00:00:00"):
        assert (
            parse(GOOD.replace("  response:", f"  recorded_at: {unquoted}\n  response:"))[0].recorded_at == 1795132800.0
        )
    assert parse(GOOD)[0].recorded_at == 0.0


def test_empty_list_is_a_cassette() -> None:
    """A cassette without interactions is one, unlike an empty file."""
    assert parse("version: 1\ninteractions: []\n") == []


BODIES = st.binary(max_size=60) | st.text(max_size=60).map(str.encode)


@given(BODIES, BODIES)
def test_bodies_and_the_order_of_headers_survive(request_body: bytes, response_body: bytes) -> None:
    """Any body's bytes, and order and repetition of header fields, are the same after writing and reading."""
    before = recorded(body=request_body, response_body=response_body)
    (after,) = parse(dumps([before], "c"))
    names = ("method", "uri", "headers", "body", "status", "reason", "response_headers", "response_body")
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]


def test_order_that_does_not_fit_is_ignored() -> None:
    """A header field that was added by hand is read, with the order of the file."""
    text = dumps([recorded()], "c").replace("      accept:\n", "      added:\n      - by hand\n      accept:\n")
    assert ("added", "by hand") in parse(text)[0].headers


def test_vcrpy_reads_it() -> None:
    """The deserializer of vcrpy takes our file, and our member does not show."""
    from vcr.serialize import deserialize
    from vcr.serializers import yamlserializer

    asked, answered = deserialize(dumps([recorded(extra={"provider": "openai"})], "c"), yamlserializer)
    assert (asked[0].method, asked[0].uri, asked[0].body) == ("POST", URI, b'{"a": 1}')
    assert answered[0]["body"] == {"string": b"hello"}
    assert "llmproxy" not in answered[0]


def test_vcrpy_replays_it(tmp_path: Path) -> None:
    """With use_cassette vcrpy answers httpx and requests from our file, repeats in their order, without a network."""
    import vcr

    path = tmp_path / "c.yaml"
    answers = [recorded(), recorded(response_body=b"\xffagain"), recorded(status=429, reason="Too Many")]
    write_text(path, dumps(answers, "c"))
    before = path.read_bytes()
    with vcr.use_cassette(str(path), record_mode="none"):
        assert httpx.post(URI, json={"a": 1}).text == "hello"
        second = requests.post(URI, json={"a": 1}, timeout=5)
        assert second.content == b"\xffagain"
        assert second.headers["x-b"] == "2"
        assert httpx.post(URI, json={"a": 1}).status_code == 429
    assert path.read_bytes() == before


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Its folder is made, no temporary file stays, and a folder that cannot be made is said."""
    path = tmp_path / "deep" / "c.yaml"
    for count in (1, 2):
        write_text(path, dumps([recorded()] * count, "c"))
        assert len(read(read_file_of_recordings(path))) == count
    assert [file.name for file in path.parent.iterdir()] == ["c.yaml"]
    with pytest.raises(MachineError, match="cannot be written"):
        write_text(path / "c.yaml", "x")
