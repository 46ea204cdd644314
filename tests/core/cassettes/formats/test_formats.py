"""The table of formats: recognised by content, one path for all."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.anonymized_export import interaction_to_file_record
from llmproxy.core.cassettes.formats import (
    FORMATS,
    SUFFIXES,
    ReadingProblem,
    Recorded,
    Source,
    find_matching_format,
    get_format,
    jsonl,
    read_each_item,
    read_file_of_recordings,
)
from llmproxy.core.cassettes.formats.vcr import read_vcr_interaction
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt, CassetteError, LLMProxyError, SettingsError
from llmproxy.trace.comparing.recording_diff import summarize_recorded_call

ROOT = Path(__file__).resolve().parents[4]
FILES = {
    "mitmproxy.flows": "mitmproxy", "mitmproxy.har": "har", "cassetter.yaml": "cassetter",
    "cassetter.toml": "cassetter", "ddapm/anthropic/anthropic_v1_messages_post_496a5ade.json": "ddapm",
    "aimock/openai-2026-11-20T11-55-42-820Z-3e5be5fc.json": "aimock",
}  # fmt: skip
ASKED = [
    "What is the capital of Norway?", "Say it slowly: grüß Gott 👋", "What is the weather in Oslo?", "12 degrees",
    "Slow down", "Say it slowly: grüß Gott 👋", "What is the capital of Norway?",
]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_files_are_recognised_by_content(file: str) -> None:
    """Whatever a file is called, its content says what it is."""
    found = find_matching_format(Source((ROOT / "fixtures/formats" / file).read_bytes(), "no-suffix"))
    assert found is not None
    assert found.name == FILES[file]


@pytest.mark.parametrize("name", ["review", "jsonl", "har", "vcr"])
def test_what_we_write_we_recognise(name: str, dialogue: list[Interaction]) -> None:
    """Every format that is written is told from all others, and gives back exactly what went in."""
    recorded = [
        replace(interaction_to_file_record(each), method=("POST", "post", "Patch")[n % 3])
        for n, each in enumerate(dialogue)
    ]
    source = Source(FORMATS[name].loaded.dumps(recorded, "trip").encode(), "x")
    assert find_matching_format(source) is FORMATS[name]
    back = FORMATS[name].loaded.read(source)
    assert [(each.method, each.body, each.response_body, each.headers, each.response_headers) for each in back] == [
        (each.method, each.body, each.response_body, each.headers, each.response_headers) for each in recorded
    ]


@pytest.mark.parametrize("name", ["review", "jsonl", "har", "vcr"])
def test_only_our_own_sound_files_are_replaceable(name: str, dialogue: list[Interaction], tmp_path: Path) -> None:
    """What somebody else wrote, or is damaged, is not overwritten."""
    path = tmp_path / "x"
    path.write_text(FORMATS[name].loaded.dumps([interaction_to_file_record(dialogue[0])], "trip"))
    FORMATS[name].check_replaceable(path)
    foreign = (ROOT / "fixtures/formats/mitmproxy.har").read_text()
    for text in ("", "version: 1\ninteractions: [}", "interactions: []\nversion: 1\n", foreign, path.read_text()[:-40]):
        path.write_text(text)
        with pytest.raises(CassetteCorrupt, match=r"Not overwritten: .*x") as caught:
            FORMATS[name].check_replaceable(path)
        assert "--force" in caught.value.hint


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"name": "x", "version": "1"}', "just text", "\x00\x01", "12:no", "a: b\n", "<xml/>"]
)
def test_other_files_are_not_taken(content: str) -> None:
    """What is no recording is none (an empty file is vcrpy's, so that it is called empty)."""
    found = find_matching_format(Source(content.encode(), "x"))
    assert found is None or (content == "" and found.name == "vcr")


@pytest.mark.parametrize(
    ("form", "path"),
    [("har", "mitmproxy.har"), ("cassetter", "cassetter.yaml"), ("cassetter", "cassetter.toml"), ("ddapm", "ddapm")],
)
def test_whoever_recorded_it_the_requests_are_the_same(
    form: str, path: str, interactions: Callable[[str, str], list[Interaction]], dialogue: list[Interaction]
) -> None:
    """One dialogue, recorded by different programs, has the same keys, texts, models and tokens."""

    def facts(found: list[Interaction]) -> set[tuple[object, ...]]:
        turns = [(each.key, each.model, each.stream, each.usage, summarize_recorded_call(each)) for each in found]
        return {(*rest, t.asked, t.status, t.text, tuple((c.name, c.arguments) for c in t.calls)) for *rest, t in turns}

    assert [summarize_recorded_call(each).asked for each in dialogue] == ASKED
    assert facts(interactions(form, path)) == facts(dialogue)


@pytest.mark.parametrize(("form", "path"), [("har", "mitmproxy.har"), ("mitmproxy", "mitmproxy.flows")])
def test_no_key_comes_in(form: str, path: str, interactions: Callable[[str, str], list[Interaction]]) -> None:
    """Programs that save credentials do not bring them into the store."""
    assert b"Zq8Xv3LmZq8Xv3Lm" in (ROOT / "fixtures/formats" / path).read_bytes()
    assert "Zq8Xv3Lm" not in repr(interactions(form, path))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_an_error(file: str, part: float) -> None:
    """A file that ends in the middle is damaged, with its name in the message; it is never read as far as it goes."""
    data = (ROOT / "fixtures/formats" / file).read_bytes()
    cut = data[: int(len(data) * part)]
    if file.endswith(".toml"):  # ends of tables are nowhere marked: cut in a text, not between lines
        cut = data[: data.rindex(b"data: [DONE]", 0, -len(data) // 10)]
    with pytest.raises(CassetteError, match=r"file\.x"):
        FORMATS[FILES[file]].loaded.read(Source(cut, "file.x"))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"a": [[1]]}', "\xff\xfe", "a: [", '{"log": 3}', "3:abc,"]
)
def test_a_forced_format_never_crashes(name: str, content: str) -> None:
    """Whatever is forced on whatever file ends in exchanges or in our error."""
    try:
        found = FORMATS[name].loaded.read(Source(content.encode("latin-1"), "x"))
    except CassetteError:
        return
    assert found == []


def test_every_format_is_named_in_the_docs() -> None:
    """docs/cassettes.md has every format and every suffix."""
    text = (ROOT / "docs/cassettes.md").read_text(encoding="utf-8")
    assert [name for name in (*FORMATS, *SUFFIXES) if f"`{name}`" not in text] == []


def test_unknown_names(tmp_path: Path) -> None:
    """A name that is in no row is refused with those that are."""
    with pytest.raises(SettingsError, match=re.escape("There is no format 'tape'")):
        get_format("tape")


def test_json_errors_have_a_place() -> None:
    """Damaged JSON is named with line and column, whatever is wrong with it."""
    with pytest.raises(CassetteCorrupt, match="x, line 2, column 4"):
        _ = Source(b'{"a": 1,\n"b"}', "x").json
    with pytest.raises(CassetteCorrupt, match="nested too deeply"):
        _ = Source(b'{"a":' + b"[" * 100_000, "x").json
    with pytest.raises(CassetteCorrupt, match="x: Exceeds the limit"):
        _ = Source(b'{"a":' + b"1" * 5000 + b"}", "x").json
    with pytest.raises(CassetteCorrupt, match="x, line 1: not UTF-8"):
        _ = Source(b'{"a": "\xff"}', "x").json


def test_all_problems_are_listed() -> None:
    """The first ten problems of a file are named, the others counted, and nothing is taken."""

    def one(item: object, number: int) -> Recorded:
        raise ReadingProblem(f"no {item}")

    with pytest.raises(CassetteCorrupt) as caught:
        read_each_item(range(12), one, Source(b"", "x"), "line")
    assert "x: 12 of its 12 lines cannot be read; nothing was taken from it:\n  line 1: no 0\n" in str(caught.value)
    assert str(caught.value).endswith("  line 10: no 9\n  and 2 more")


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """What was opened is looked at and read from memory."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"fixtures": []}))
    source = read_file_of_recordings(path)
    path.unlink()
    assert find_matching_format(source) is FORMATS["aimock"]
    assert FORMATS["aimock"].loaded.read(source) == []


ODD: tuple[object, ...] = (
    None, True, -1, 10**30, float("nan"), "", "\ud800", "x", "http://[", "\r\n", [], {}, [None], {"a": None},
)  # fmt: skip
"""What a file of somebody else may hold anywhere."""


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every value, of lists those of the first."""
    yield path
    members = tree.items() if isinstance(tree, dict) else enumerate(tree[:1]) if isinstance(tree, list) else ()
    for name, value in members:
        yield from places(value, (*path, name))


def with_odd(tree: Any, path: tuple[Any, ...], odd: object) -> Any:
    """Return a copy that holds something else in one place."""
    if not path:
        return odd
    made = tree.copy()
    made[path[0]] = with_odd(made[path[0]], path[1:], odd)
    return made


@pytest.mark.parametrize("file", [file for file in FILES if file.endswith((".har", ".json"))])
def test_an_odd_value_anywhere_is_read_or_refused_in_words(file: str) -> None:
    """Each value of a file in the place of fourteen others: exchanges, or an error that names the file; nothing else is raised."""
    tree = json.loads((ROOT / "fixtures/formats" / file).read_text(encoding="utf-8"))
    form, raised = FORMATS[FILES[file]], []
    for path in places(tree):
        for odd in ODD:
            source = Source(json.dumps(with_odd(tree, path, odd)).encode(), "file", ("m",))
            try:
                find_matching_format(source)
                convert_exchanges(form.read_all([source]), "c", rules=Rules(), redactor=Redactor())
            except LLMProxyError as error:
                raised += [] if "file" in str(error) else [(path, odd, str(error))]
            except Exception as error:  # noqa: BLE001 - all of them are told at once
                raised.append((path, odd, repr(error)))
    assert raised == []


def test_round_trip(dialogue: list[Interaction]) -> None:
    """Every exchange is one line that json.loads reads, and comes back with times and chunks."""
    recorded = [interaction_to_file_record(each) for each in dialogue]
    recorded.append(replace(recorded[0], body=b"\xff", response_body=b"\x00\xfe\n\xe2\x80\xa8"))
    text = jsonl.dumps(recorded, "trip")
    assert [json.loads(line)["cassette"] for line in text.split("\n")[:-1]] == ["trip"] * 8
    assert [replace(each, number=0) for each in jsonl.read(Source(text.encode(), "x"))] == recorded


GOOD = {"llmproxy": 1, "method": "GET", "url": "http://h/", "status": 200}


@pytest.mark.parametrize(("line", "said"), [
    ("{", "x, line 3: not JSON"),
    ("1", "line 2: it is int"),
    (json.dumps({**GOOD, "llmproxy": 2}), "newer llmproxy"),
    (json.dumps({**GOOD, "status": 0}), "line 2: the status is 0"),
    (json.dumps({**GOOD, "headers": [["a"]]}), "`headers` is not a list of pairs"),
    (json.dumps({**GOOD, "body": 3}), "a body is int"),
    (json.dumps({**GOOD, "recorded": []}), "`recorded` is list"),
    ("[" * 100_000, "x, line 3: not JSON"),
])  # fmt: skip
def test_what_is_wrong_is_said(line: str, said: str) -> None:
    """A damaged line is named; nothing is taken of the file."""
    with pytest.raises(CassetteError, match=said):
        jsonl.read(Source(f"{json.dumps(GOOD)}\n\n{line}\n".encode(), "x"))


REQUEST = {"method": "post", "uri": "http://a/b", "headers": {"A": ["1", 2, b"\xff", None]}, "body": None}
RESPONSE = {"status": {"code": 200, "message": None}, "headers": {}, "body": {"string": "x"}}


def test_values_of_every_kind() -> None:
    """Methods are in upper case, header values are texts whatever YAML made of them, and nothing is no reason."""
    found = read_vcr_interaction({"request": REQUEST, "response": RESPONSE}, 7)
    assert (found.number, found.method, found.reason) == (7, "POST", "")
    assert found.headers == (("A", "1"), ("A", "2"), ("A", "ÿ"), ("A", ""))


@pytest.mark.parametrize(("body", "expected"), [
    ("é", "é".encode()), (b"\xff", b"\xff"), (io.BytesIO(b"f"), b"f"), (iter([b"a", "b"]), b"ab"),
    ({"string": ""}, b""), ("\ud800", b"\xed\xa0\x80"),
])  # fmt: skip
def test_bodies(body: object, expected: bytes) -> None:
    """A body may be text, bytes, a file, pieces or a mapping."""
    assert read_vcr_interaction({"request": {**REQUEST, "body": body}, "response": RESPONSE}, 1).body == expected


@pytest.mark.parametrize(("item", "what"), [
    (None, "`request` is missing"),
    ([], "`request` is missing"),
    ({"response": RESPONSE}, "`request` is missing"),
    ({"request": REQUEST, "response": "x"}, "`response` is str"),
    ({"request": {**REQUEST, "body": 7}, "response": RESPONSE}, "request: `body` is int"),
    ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": True}}}, "no code of 200 to 599"),
    ({"request": REQUEST, "response": {**RESPONSE, "status": {"code": 100}}}, "or 101 .100."),
    ({"request": REQUEST, "response": {**RESPONSE, "body": {"base64_string": "a"}}}, "base64 is damaged"),
    ({"request": {**REQUEST, "body": [b"a", {"b": 1}]}, "response": RESPONSE}, "request: `body` is list"),
    ({"request": REQUEST, "response": {**RESPONSE, "body": {"string": 7}}}, "response: `body` is int"),
    ({"request": REQUEST, "response": RESPONSE, "llmproxy": 7}, "`llmproxy` is not a mapping"),
])  # fmt: skip
def test_problems(item: object, what: str) -> None:
    """What cannot be read is said in words."""
    with pytest.raises(ReadingProblem, match=what):
        read_vcr_interaction(item, 1)


def test_aliases_are_not_changed() -> None:
    """Two interactions that share a response through an alias are both read: reading changes nothing."""
    shared = {**RESPONSE, "body": {"string": "x"}}
    item = {"request": REQUEST, "response": shared}
    assert read_vcr_interaction(item, 1).response_body == read_vcr_interaction(item, 2).response_body == b"x"
    assert shared["body"] == {"string": "x"}


def test_mappings_and_texts() -> None:
    """What is missing or of another type is named by its path."""
    tree = {"a": {"b": {"c": "x", "n": 1, "e": ""}}, "l": [1]}
    assert formats.mapping(tree, "a", "b")["c"] == "x"
    assert formats.text(tree["a"]["b"], "c") == "x"  # type: ignore[index]
    assert formats.text({}, "c", "usual") == "usual"
    assert formats.get_list(tree, "l") == [1]
    assert formats.get_list(tree, "none") == []
    for call, said in [
        (lambda: formats.mapping(tree, "a", "x"), "`a.x` is missing"),
        (lambda: formats.mapping([1]), "it is list"),
        (lambda: formats.text({"n": 1}, "n"), "`n` is int, not a text"),
        (lambda: formats.text({"e": ""}, "e"), "`e` is empty"),
        (lambda: formats.get_list({"l": 1}, "l"), "`l` is int, not a list"),
        (lambda: formats.parse_header_mapping([]), "`headers` is list"),
        (lambda: formats.parse_header_mapping({"a": [{}]}), "the header 'a' is dict"),
        (lambda: formats.parse_name_value_headers([{"value": 1}]), "a field without a name"),
        (lambda: formats.decode_base64("a"), "base64 is damaged"),
    ]:
        with pytest.raises(ReadingProblem, match=said):
            call()  # type: ignore[no-untyped-call]


def test_headers() -> None:
    """Repetitions and numbers are kept, HTTP/2's pseudo fields are not."""
    assert formats.parse_header_mapping({"a": ["1", "2"], "b": 3}) == (("a", "1"), ("a", "2"), ("b", "3"))
    assert formats.parse_header_mapping(None) == ()
    assert formats.parse_name_value_headers([{"name": ":path", "value": "/"}, {"name": "a", "value": "1"}]) == (
        ("a", "1"),
    )
    assert formats.parse_name_value_headers(None) == ()


def test_times() -> None:
    """Times in any form are Unix time, durations are microseconds; nonsense is nothing."""
    same = ("2026-11-20T00:00:00Z", "2026-11-20T01:00:00+01:00", datetime(2026, 11, 20, tzinfo=UTC), 1795132800)
    assert [formats.to_unix_time(each) for each in same] == [1795132800.0] * 4
    assert [formats.to_unix_time(each) for each in ("soon", None, True)] == [0.0] * 3
    assert formats.microseconds(1.5) == 1_500_000
    assert formats.microseconds(1.5, 1000) == 1500
    assert [formats.microseconds(value) for value in (-1, None, "1", True, float("nan"), 1e12)] == [0] * 6


@pytest.mark.parametrize("status", [100, 102, 103, 199, 0, 600, True, "200", 99.5, None])
def test_an_interim_status_is_no_answer(status: object) -> None:
    """Replayed, it would leave every client waiting for the real one; 101 begins a WebSocket."""
    with pytest.raises(ReadingProblem, match=f"the status is {status!r}, .*not one of 200 to 599, or 101"):
        formats.status(status)
    assert [formats.status(each) for each in (101, 200, 599)] == [101, 200, 599]
