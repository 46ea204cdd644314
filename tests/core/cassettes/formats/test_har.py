"""HTTP archives, mitmproxy's and others'; and our own, which browsers open."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from llmproxy.core.cassettes.anonymized_export import interaction_to_file_record
from llmproxy.core.cassettes.formats import Recorded, Source, har
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Chunk, Interaction
from llmproxy.errors import CassetteCorrupt


def entry(**changes: object) -> dict[str, Any]:
    made: dict[str, Any] = {
        "startedDateTime": "2026-11-20T12:00:00.000Z",
        "request": {"method": "POST", "url": "https://api.openai.com/v1/x#y", "headers": []},
        "response": {"status": 200, "statusText": "OK", "headers": [], "content": {"size": 2, "text": "{}"}},
        "timings": {"send": 1, "wait": 20.5, "receive": 3},
    }
    for path, value in changes.items():
        side, _, name = path.partition("__")
        if name:
            made[side] = {**made[side], name: value}
        else:
            made[side] = value
    return made


def read(*entries: object) -> list[Recorded]:
    return har.read(Source(json.dumps({"log": {"entries": entries}}).encode(), "x.har"))


def test_times(dialogue: list[Interaction], interactions: Callable[[str, str], list[Interaction]]) -> None:
    """Start, head and end of an answer are those that mitmproxy measured (it counts the head from the request's start)."""
    found = interactions("har", "mitmproxy.har")
    assert [each.response.body for each in found] == [each.response.body for each in dialogue]
    for a, b in zip(found, dialogue, strict=True):
        assert abs(a.started_at - b.started_at) < 0.001
        assert 0 < a.response.head_offset < a.response.chunks[0].offset
        assert abs(a.response.chunks[0].offset - b.response.chunks[0].offset) < 5000
    (each,) = read(entry())
    assert each.extra == {"head_offset": 21_500, "body_offset": 24_500}
    assert each.uri == "https://api.openai.com/v1/x"


def test_what_others_write() -> None:
    """Base64 in either place, forms as fields, a body that the answer does not have."""
    coded = {"text": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}
    (each,) = read(entry(response__content=coded, request__postData=coded))
    assert (each.body, each.response_body) == (b"\xff\x00", b"\xff\x00")
    form = {"mimeType": "application/x-www-form-urlencoded", "params": [{"name": "a", "value": "b c"}, {"name": "d"}]}
    assert read(entry(request__postData=form))[0].body == b"a=b+c&d="
    assert read(entry(response__content={"size": 0}))[0].problem == ""


@pytest.mark.parametrize(("changes", "why"), [
    ({"response__content": {"size": 7}}, "its body was not saved"),
    ({"response__status": 0}, "there was no answer"),
    ({"response__status": 101}, "it is a WebSocket"),
    ({"_webSocketMessages": [{}]}, "it is a WebSocket"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_skipped(changes: dict[str, object], why: str) -> None:
    """An entry that is sound and no recording is skipped with the reason, the others are taken."""
    adopted = convert_exchanges(read(entry(**changes), entry()), "c", rules=Rules(), redactor=Redactor())
    assert [each.interaction is None for each in adopted] == [True, False]
    assert why in adopted[0].why


def test_entries_are_put_in_order() -> None:
    """A conversation is read in the order of its requests, whatever order the browser wrote."""
    assert [each.number for each in read(entry(startedDateTime="2026-11-20T12:00:01Z"), entry())] == [2, 1]


@pytest.mark.parametrize(("text", "said"), [
    ('{"log": {"entries": [', "x.har, line 1, column"),
    ('{"log": {"entries": 1}}', "`entries` is int"),
    ('{"log": 1}', "`log` is int"),
    ('{"log": {"entries": [1]}}', "entry 1: `request` is missing"),
    (json.dumps({"log": {"entries": [entry(), entry(response__status="200")]}}), "entry 2: the status is '200'"),
    (json.dumps({"log": {"entries": [entry(response__content={"text": 3})]}}), "is not a text"),
    (json.dumps({"log": {"entries": [entry(response__content={"text": "?", "encoding": "base64"})]}}), "base64"),
    (json.dumps({"log": {"entries": [entry(request__url=3)]}}), "`url` is int"),
])  # fmt: skip
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    """A damaged file is named with line or entry."""
    with pytest.raises(CassetteCorrupt, match=said):
        har.read(Source(text.encode(), "x.har"))


NEEDED: dict[str, dict[str, Any]] = {
    "entry": {"startedDateTime": str, "time": (int, float), "request": dict, "response": dict, "cache": dict, "timings": dict},
    "request": {"method": str, "url": str, "httpVersion": str, "cookies": list, "headers": list, "queryString": list, "headersSize": int, "bodySize": int},
    "response": {"status": int, "statusText": str, "httpVersion": str, "cookies": list, "headers": list, "content": dict, "redirectURL": str, "headersSize": int, "bodySize": int},
    "timings": {"send": (int, float), "wait": (int, float), "receive": (int, float)},
}  # fmt: skip
"""What HAR 1.2 requires."""


def test_what_we_write_is_har(dialogue: list[Interaction]) -> None:
    """Everything that HAR 1.2 requires is there, of the right type; times are ISO with a zone."""
    log = json.loads(har.dumps([interaction_to_file_record(each) for each in dialogue], "trip"))["log"]
    assert (log["version"], log["creator"]["name"], len(log["entries"])) == ("1.2", "llmproxy", 7)
    for each in log["entries"]:
        for part, members in NEEDED.items():
            tree = each if part == "entry" else each[part]
            assert [name for name, type_ in members.items() if not isinstance(tree.get(name), type_)] == []
        assert datetime.fromisoformat(each["startedDateTime"]).tzinfo is not None
        assert each["time"] == each["timings"]["wait"] + each["timings"]["receive"]
        assert each["request"]["postData"]["mimeType"] == "application/json"


def test_another_program_opens_what_we_write(dialogue: list[Interaction]) -> None:
    """Mitmproxy's reader of HAR files sees the same exchanges."""
    reader = pytest.importorskip("mitmproxy.io")
    text = har.dumps([interaction_to_file_record(each) for each in dialogue], "trip")
    flows = list(reader.FlowReader(io.BytesIO(text.encode())).stream())
    assert [(f.request.raw_content, f.response.status_code, f.response.raw_content) for f in flows] == [
        (each.request.body, each.response.status, each.response.body) for each in dialogue
    ]


def test_what_we_write_we_read_exactly(dialogue: list[Interaction]) -> None:
    """Store -> HAR -> store loses nothing: chunks, times, bytes that are no text."""
    streamed = dialogue[1]
    body = streamed.response.body
    cut = (Chunk(3000, body[:100]), Chunk(21_000, body[100:]))
    odd = replace(
        dialogue[0],
        request=replace(dialogue[0].request, body=b"\xff\xfe"),
        response=replace(dialogue[0].response, chunks=(Chunk(9, b"\x00\xff"),)),
    )
    before = [replace(streamed, response=replace(streamed.response, chunks=cut)), odd]
    socket = replace(odd, response=replace(odd.response, status=101, chunks=(Chunk(1, b'{"t":1}\n'),)))
    recorded = [interaction_to_file_record(each) for each in (*before, socket)]
    back = har.read(Source(har.dumps(recorded, "trip").encode(), "x"))
    assert [each.problem for each in back] == ["", "", ""]
    assert sorted((each.body, each.response_body, each.headers, str(each.extra)) for each in back) == sorted(
        (each.body, each.response_body, each.headers, str(each.extra)) for each in recorded
    )


def test_odd_values_do_not_stop_an_export() -> None:
    """Whatever an imported file said about times, the HAR is written."""
    each = Recorded(
        "GET", "http://h/?a=b", (), b"", 200, "", (("location", "/z"),), b"", extra={"started_at": 1e300, "chunks": "x"}
    )
    made = json.loads(har.dumps([each], "x"))["log"]["entries"][0]
    assert made["startedDateTime"].startswith("1970-01-01T00:00:00")
    assert made["response"]["redirectURL"] == "/z"
    assert made["request"]["queryString"] == [{"name": "a", "value": "b"}]


def test_a_browser_s_archive_replays_without_the_coding_that_its_text_lacks() -> None:
    """DevTools save answers decoded and leave the field; its times alone do not make a file ours."""
    coded = [{"name": "content-encoding", "value": "br"}, {"name": "content-type", "value": "application/json"}]
    (each,) = convert_exchanges(read(entry(response__headers=coded)), "c", rules=Rules(), redactor=Redactor())
    assert each.interaction is not None
    assert each.interaction.response.headers == (("content-type", "application/json"),)
    assert each.interaction.response.body == b"{}"
