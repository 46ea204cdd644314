"""YAML and JSON as texts: what is written is read back, and what explodes is refused."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from llmproxy.core.cassettes.formats.cassetter_reader import write_json_in_recorded_style
from llmproxy.core.cassettes.formats.yaml_text import (
    MAX_BYTES,
    STYLES,
    YamlAliasToWrite,
    YamlValueWithAnchor,
    detect_json_style,
    dump_yaml_collection,
    encode_json_in_style,
    load_yaml,
)
from llmproxy.errors import CassetteCorrupt
from tests.support.narrowing import known

TEXTS = st.text(st.characters(codec="utf-8")) | st.text("ab \n\t:#-'\"{}[]&*!|>%@`,?\r\x85\u2028\ufeff~=<")
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(TREES)
@example("no")
@example("1e5")
@example("0x1f")
@example(1e-05)
@example(-1.5e300)
@example("2024-01-01")
@example("1:30")
@example("<<")
@example("=")
@example(" a\nb")
@example("a\n \n b\n\n\n")
@example("\n\n")
@example("a\n\tb\n")
@example("\t\na")
@example("- a: b\n...\n---\n")
@example({"<<": {"a": 1}, "": [], "null": {}, "a: b": [[]], "-": [[[1], 2]]})
def test_what_is_written_is_read_again(tree: object) -> None:
    """Every JSON value comes back as it was: type by type, order and white space kept."""
    assert json.dumps(load_yaml(dump_yaml_collection({"x": tree}), "x")["x"]) == json.dumps(tree)


@settings(deadline=None)
@given(TEXTS)
def test_other_readers_see_the_same_texts(text: str) -> None:
    """What stands there plainly is a text to every other YAML reader as well."""
    assert yaml.safe_load(dump_yaml_collection({"x": text})) == {"x": text}


@pytest.mark.parametrize(
    "mark", [*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x1b\x07\x7f\x9b"]
)
@pytest.mark.parametrize("text", ["pay {} bob", "two\nlines {} of it\n", "{}", "k{}"])
def test_no_reviewer_reads_another_text_than_the_agent(mark: str, text: str) -> None:
    """Marks that turn text round, and what a terminal obeys, stand there as escapes, in values and names, on one line or more."""
    tree = {text.format(mark): text.format(mark)}
    written = dump_yaml_collection(tree)
    assert mark not in written
    assert load_yaml(written, "x") == tree


def test_it_looks_as_it_should() -> None:
    """Members in their order, what is short on one line, texts of several lines as blocks."""
    tree = {"role": "user", "parts": [{"text": "a: b\nc\n", "num": [1, 2.5, None, True]}, [], {}, [["x"]]]}
    assert dump_yaml_collection({"said": tree}) == (
        "said:\n  role: user\n  parts:\n    - text: |\n        a: b\n        c\n      num: [1, 2.5, null, true]\n"
        "    - []\n    - {}\n    - [[x]]\n"
    )


def test_parts_that_come_again() -> None:
    """A part with a name is an anchor, and an alias where it comes again."""
    text = dump_yaml_collection({
        "a": [YamlValueWithAnchor("p1", {"b": 1}), YamlAliasToWrite("p1")],
        "c": YamlValueWithAnchor("p2", "text"),
        "d": YamlAliasToWrite("p2"),
    })  # fmt: skip
    assert text == "a:\n  - &p1 {b: 1}\n  - *p1\nc: &p2 text\nd: *p2\n"
    assert load_yaml(text, "x") == {"a": [{"b": 1}, {"b": 1}], "c": "text", "d": "text"}


def test_what_is_no_json_is_not_written() -> None:
    """Values that JSON does not have are mistakes of the programmer."""
    with pytest.raises(TypeError):
        dump_yaml_collection({"a": b"bytes"})
    with pytest.raises(TypeError):
        dump_yaml_collection("text")


@pytest.mark.parametrize(("text", "said"), [
    ("a: 1\nb: 2\na: 3\n", "x:3:1: `a` stands here twice, first at line 1"),
    ("a: 1\n? [b]\n: 2\n", "x:2:3: a key must be a plain text"),
    ("a: [1\n", "x:2:1: this is no YAML"),
    ("a: !!python/object:os.system 1\n", "x:1:4: the tag !!python/object:os.system is not known"),
    ("a: 1\n---\nb: 1\n", "x:3:1: a second document"),
    ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 90}]\n" for n in range(1, 9)), "expand to more than"),
    ("a: " + "[" * 200 + "]" * 200, "nested more than 64 deep"),
    ("a: \x00", "x:1:4: this is no YAML"),
    ("a: *b", r"\*b names no anchor above"),
    ("a: " + "1" * 5000, "Exceeds the limit"),
])  # fmt: skip
def test_what_is_refused(text: str, said: str) -> None:
    """What is damaged, ambiguous or explodes is an error with its line."""
    with pytest.raises(CassetteCorrupt, match=said):
        load_yaml(text, "x")


def test_scalars_are_those_of_json() -> None:
    """What YAML 1.1 would take for a date, a truth or an octal number is a text."""
    text = "a: no\nb: 2024-01-01\nc: 010\nd: 1_000\ne: .5\nf: 1:30\ng: -3\nh: 1e3\ni: null\nj: ~\nk:\nl: True\nm: 0\n"
    assert load_yaml(text, "x") == {
        "a": "no", "b": "2024-01-01", "c": "010", "d": "1_000", "e": ".5", "f": "1:30", "g": -3, "h": 1000.0, "i": None,
        "j": None, "k": None, "l": "True", "m": 0,
    }  # fmt: skip


@settings(deadline=None)
@given(TREES, st.sampled_from(sorted(STYLES)))
def test_what_is_found_is_exact(tree: object, style: str) -> None:
    """Whatever was written how, what is found gives the bytes back, and other bytes are never found."""
    body = encode_json_in_style([tree], style)
    assert encode_json_in_style(*known(detect_json_style(body))) == body


@pytest.mark.parametrize("body", [
    b"", b"7", b'"x"', b"{", b'{"a":1,"a":2}', b'{"a":1.00}', b'{"a":1e3}', b'{"a":NaN}', b'{"a" :1}', b'{"a":"\\/"}',
    b'{"a":"\xff"}', b'{"a": 1,"b":2}', b' {"a":1}', b'{"a":-0}', b"[" * 100 + b"]" * 100, b'{"a":"\\u00FC"}',
    b'{\r\n  "a": 1\r\n}', b'{\n       "a": 1\n}', b"[" + b"1," * MAX_BYTES + b"1]", b"[" + b"9" * 5000 + b"]",
], ids=lambda body: repr(body[:16]))  # fmt: skip
def test_what_no_style_gives_back_has_none(body: bytes) -> None:
    """Bytes that a tree would lose something of stay text."""
    assert detect_json_style(body) is None


def test_lost_bytes_are_written_by_length() -> None:
    """Of a tree whose bytes are lost, the style with the recorded length is taken, else the compact one."""
    tree = {"a": [1, 2], "b": "ü"}
    for text in (json.dumps(tree), json.dumps(tree, indent=2), json.dumps(tree, separators=(",", ":"))):
        assert write_json_in_recorded_style(tree, str(len(text.encode()))) == text.encode()
    assert (
        write_json_in_recorded_style(tree, "3")
        == write_json_in_recorded_style(tree, None)
        == encode_json_in_style(tree, "compact")
    )
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json_in_recorded_style(float("nan"), None)
