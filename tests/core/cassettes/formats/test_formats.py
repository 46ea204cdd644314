"""The table of formats: recognised by content, one path for all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.cassettes.adopt import adopt
from llmproxy.core.cassettes.formats import FORMATS, SUFFIXES, Source, collect, get_format, open_source, recognise
from llmproxy.core.cassettes.formats.recorded import ReadingProblem, Recorded
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteCorrupt, CassetteError, LLMProxyError, SettingsError
from llmproxy.trace.comparing.requests import turn_of

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
    found = recognise(Source((ROOT / "fixtures/formats" / file).read_bytes(), "no-suffix"))
    assert found is not None
    assert found.name == FILES[file]


@pytest.mark.parametrize("name", ["review", "jsonl", "har", "vcr"])
def test_what_we_write_we_recognise(name: str, dialogue: list[Interaction]) -> None:
    """Every format that is written is told from all others, and gives back exactly what went in."""
    from llmproxy.core.cassettes.stand_ins import release

    recorded = [replace(release(each), method=("POST", "post", "Patch")[n % 3]) for n, each in enumerate(dialogue)]
    source = Source(FORMATS[name].dumps(recorded, "trip").encode(), "x")
    assert recognise(source) is FORMATS[name]
    back = FORMATS[name].read(source)
    assert [(each.method, each.body, each.response_body, each.headers, each.response_headers) for each in back] == [
        (each.method, each.body, each.response_body, each.headers, each.response_headers) for each in recorded
    ]


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"name": "x", "version": "1"}', "just text", "\x00\x01", "12:no", "a: b\n", "<xml/>"]
)
def test_other_files_are_not_taken(content: str) -> None:
    """What is no recording is none (an empty file is vcrpy's, so that it is called empty)."""
    found = recognise(Source(content.encode(), "x"))
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
        turns = [(each.key, each.model, each.stream, each.usage, turn_of(each)) for each in found]
        return {(*rest, t.asked, t.status, t.text, tuple((c.name, c.arguments) for c in t.calls)) for *rest, t in turns}

    assert [turn_of(each).asked for each in dialogue] == ASKED
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
        FORMATS[FILES[file]].read(Source(cut, "file.x"))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"a": [[1]]}', "\xff\xfe", "a: [", '{"log": 3}', "3:abc,"]
)
def test_a_forced_format_never_crashes(name: str, content: str) -> None:
    """Whatever is forced on whatever file ends in exchanges or in our error."""
    try:
        found = FORMATS[name].read(Source(content.encode("latin-1"), "x"))
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
        collect(range(12), one, Source(b"", "x"), "line")
    assert "x: 12 of its 12 lines cannot be read; nothing was taken from it:\n  line 1: no 0\n" in str(caught.value)
    assert str(caught.value).endswith("  line 10: no 9\n  and 2 more")


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """What was opened is looked at and read from memory."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"fixtures": []}))
    source = open_source(path)
    path.unlink()
    assert recognise(source) is FORMATS["aimock"]
    assert FORMATS["aimock"].read(source) == []


ODD: tuple[object, ...] = (
    None, True, -1, 10**30, float("nan"), "", "\ud800", "x", "http://[", "\r\n", [], {}, [None], {"a": None},
)  # fmt: skip
"""What a file of somebody else may hold anywhere."""


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Give the path of every value, of lists those of the first."""
    yield path
    members = tree.items() if isinstance(tree, dict) else enumerate(tree[:1]) if isinstance(tree, list) else ()
    for name, value in members:
        yield from places(value, (*path, name))


def with_odd(tree: Any, path: tuple[Any, ...], odd: object) -> Any:  # noqa: ANN401 - JSON
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
                recognise(source)
                adopt(form.read_all([source]), "c", rules=Rules(), redactor=Redactor())
            except LLMProxyError as error:
                raised += [] if "file" in str(error) else [(path, odd, str(error))]
            except Exception as error:  # noqa: BLE001 - all of them are told at once
                raised.append((path, odd, repr(error)))
    assert raised == []
