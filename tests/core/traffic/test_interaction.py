"""The vocabulary: look-ups and joins."""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.providers.provider_table import ClientProgram, parse_user_agent_client
from llmproxy.core.traffic.canonical_json import DEPTH, LossyJsonError, dump, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Chunk, Headers, Response, TimedChunks, header, remove_headers
from llmproxy.core.traffic.json_diff import (
    SHOWN,
    Difference,
    count_common_prefix,
    get_volatile_difference_kind,
    is_volatile_value,
    list_differences,
)

FIELDS: Headers = (("Content-Type", "a"), ("X", "1"), ("x", "2"))


@pytest.mark.parametrize(("name", "first", "others"), [
    ("content-type", "a", FIELDS[1:]), ("x", "1", FIELDS[:1]), ("y", None, FIELDS),
])  # fmt: skip
def test_a_header_is_found_and_taken_out_whatever_its_case(name: str, first: str | None, others: Headers) -> None:
    """The first one counts; all of that name are taken out, and the order of the others stays."""
    assert (header(FIELDS, name), remove_headers(FIELDS, name), remove_headers(FIELDS)) == (first, others, FIELDS)


BORDERS = ((5, 1), (6, 0), (6, 3))
CHUNKS = (Chunk(5, b"a"), Chunk(6, b""), Chunk(6, b"bcd"))


def test_a_body_that_is_cut_has_the_chunks_of_a_tuple() -> None:
    """Equal both ways, to be counted, sliced and gone through; the body itself is not copied."""
    body = b"abcd"
    cut = TimedChunks(body, BORDERS)
    assert cut == CHUNKS
    assert (tuple(cut), len(cut), cut[-1], cut[1:]) == (CHUNKS, 3, CHUNKS[-1], CHUNKS[1:])
    assert (hash(cut), repr(cut)) == (hash(CHUNKS), repr(CHUNKS))
    assert [(offset, bytes(data)) for offset, data in cut.iter_views()] == [(each.offset, each.data) for each in CHUNKS]
    assert Response(200, "OK", (), cut) == Response(200, "OK", (), CHUNKS)
    assert (Response(200, "OK", (), cut).body is body, Response(200, "OK", (), CHUNKS).body) == (True, body)
    assert cut != CHUNKS[:2]
    assert cut != 3
    with pytest.raises(IndexError):
        cut[3]


@pytest.mark.parametrize("borders", [(), ((0, 3),), ((0, 5),), ((0, -1), (0, 5))])
def test_borders_are_those_of_the_body(borders: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="chunk"):
        TimedChunks(b"abcd", borders)


def test_what_is_put_in_place_of_a_body_is_as_long() -> None:
    cut = TimedChunks(b"abcd", BORDERS)
    assert cut.replace_body(b"wxyz") == (Chunk(5, b"w"), Chunk(6, b""), Chunk(6, b"xyz"))
    with pytest.raises(ValueError, match="3 bytes for 4"):
        cut.replace_body(b"abc")


@pytest.mark.parametrize(("said", "client"), [
    ("claude-cli/2.1.332 (external, cli)", ClientProgram("Claude Code", "2.1.332")),
    ("codex_cli_rs/0.63.0 (Debian 12; x86_64) vt100", ClientProgram("Codex", "0.63.0")),
    ("AsyncOpenAI/Python 2.8.1", ClientProgram("AsyncOpenAI/Python", "2.8.1")),
    ("ai-sdk/openai/2.0.3 runtime/node", ClientProgram("ai-sdk/openai", "2.0.3")),
    ("my agent", None),
    ("", None),
])  # fmt: skip
def test_a_client_is_read_from_its_user_agent(said: str, client: ClientProgram | None) -> None:
    """Agents by the name that people call them; others by what they say; what has no version is nobody."""
    assert parse_user_agent_client((("User-Agent", said),)) == client
    assert parse_user_agent_client(()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def canonical(text: str | bytes) -> bytes:
    return dump(parse_json_or_raise_if_lossy(text))


SAME = [
    ('{"a":1,"b":2}', ' { "b" : 2 ,\n"a":1 } '), ("1", "1.0"), ("1", "1e0"), ("100", "1E2"), ("0", "-0.0"),
    ("0.5", "5e-1"), ("0.1", "0.10"), ('"é/"', '"\\u00e9\\/"'), ('"\U0001f600"', '"\\ud83d\\ude00"'),
    ("100000000000000000000000", "1e23"),
]  # fmt: skip
"""Order, white space, escapes and the form of a number are syntax."""
OTHERS = [
    ("[1,2]", "[2,1]"), ("1", "true"), ("0", "false"), ("0", "null"), ('"1"', "1"),
    ("9007199254740993", "9007199254740992"), ('"\\ud800"', '"\\udbff"'), ('"\\ud800"', '"\\ufffd"'),
    ('"e\u0301"', '"\u00e9"'), ("{}", "[]"), ('{"a":null}', "{}"), ("99999999999999991611392", "1e23"),
    ("0.1", "0.10000000000000002"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("same", "one", "other"), [(same, *each) for same, table in ((True, SAME), (False, OTHERS)) for each in table]
)
def test_equal_values_are_written_equally_and_different_ones_stay_different(same: bool, one: str, other: str) -> None:
    """Nothing is rounded, reordered or unified that could be meant."""
    assert (canonical(one) == canonical(other)) is same


@pytest.mark.parametrize("text", [
    "", "nope", "{", '{"a":1,"a":2}', "NaN", "[Infinity]", "1e400", "0.1000000000000000055511151231257827",
    "9007199254740992.5", "9" * 5000, "[" * 100_000, "[" * (DEPTH + 2) + "]" * (DEPTH + 2), b"\xff",
    b"\xef\xbb\xbf{}", '{"a":1} x',
])  # fmt: skip
def test_what_cannot_be_canonicalised_is_refused(text: str | bytes) -> None:
    """The caller keys the raw bytes instead; there is no other exception."""
    with pytest.raises(LossyJsonError):
        parse_json_or_raise_if_lossy(text)


def test_the_depth_that_is_taken_is_exact() -> None:
    """Whether a body is taken must not depend on the stack of the moment."""
    assert canonical("[" * DEPTH + "]" * DEPTH) == b"[" * DEPTH + b"]" * DEPTH


@given(JSON, st.randoms(use_true_random=False))
def test_writing_is_independent_of_style_and_stable(value: object, chance: random.Random) -> None:
    """Any way of writing a value leads to the same bytes, and those lead to themselves."""

    def shuffled(node: object) -> object:
        if isinstance(node, dict):
            names = list(node)
            chance.shuffle(names)
            return {name: shuffled(node[name]) for name in names}
        return [shuffled(child) for child in node] if isinstance(node, list) else node

    plain = canonical(json.dumps(value))
    styled = canonical(json.dumps(shuffled(value), ensure_ascii=False, indent=2))
    assert plain == styled == canonical(plain)


JSON_DIFFERENCES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def message(text: str, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": text}


def paths(old: object, new: object) -> list[str]:
    return [difference.path for difference in list_differences(old, new)]


@given(JSON_DIFFERENCES)
def test_equal_trees_have_none(tree: object) -> None:
    """A tree differs in nothing from its copy."""
    assert list_differences(tree, copy.deepcopy(tree)) == []


@given(JSON_DIFFERENCES, JSON_DIFFERENCES)
def test_unequal_trees_have_some(old: object, new: object) -> None:
    assert list_differences(old, new, 100) or old == new


@pytest.mark.parametrize(("old", "new", "found"), [
    ({"model": "a", "messages": [message("x"), message("y")]}, {"model": "a", "messages": [message("x"), message("z")]}, ["$.messages[1].content"]),
    ([message("you are helpful today", "system"), message("hello")],
     [message("you are helpful tonight", "system"), message("wait", "assistant"), message("hello")], ["$[0].content", "$[1]"]),
    ({"a": True, "b": [1]}, {"a": 1, "b": [True]}, ["$.a", "$.b[0]"]),
    ({"a b": 1}, {"a b": 2}, ['$["a b"]']),
], ids=["changed", "changed beside an inserted one", "true is not one", "an odd name, to be pasted into `ignore`"])  # fmt: skip
def test_a_difference_has_its_path(old: object, new: object, found: list[str]) -> None:
    """By JSON path, with the old and the new value; no more than are asked for."""
    assert paths(old, new) == found
    assert [each.path for each in list_differences(old, new, 1)] == found[:1]
    if found == ["$.messages[1].content"]:
        assert list_differences(old, new) == [Difference(found[0], '"y"', '"z"')]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_inserted_message_is_one_difference(at: int) -> None:
    """A message put in anywhere does not make the later ones differ; dropping it is one difference too."""
    old = [message("a"), message("b", "assistant"), message("c")]
    new = [*old[:at], message("new"), *old[at:]]
    (added,), (dropped,) = list_differences(old, new), list_differences(new, old)
    assert (added.path, added.old) == (dropped.path, dropped.new) == (f"$[{at}]", "")


def test_long_texts_are_shown_where_they_differ() -> None:
    """Of a long text the surroundings of its first differing place are shown, with some context before."""
    text = "word " * 5000
    found = list_differences({"t": text + "the cat sat" + text}, {"t": text + "the dog sat" + text})[0]
    assert found.old.startswith('"…')
    assert "the cat sat" in found.old
    assert "the dog sat" in found.new
    assert max(len(found.old), len(found.new)) < SHOWN + 10


def test_values_are_shortened_and_escaped() -> None:
    """A terminal or log can show every value: no control characters, no long lines."""
    found = list_differences({"a": 1}, {"a": "\x1b[31mred\nline\u202e" + "x" * 500})[0]
    assert "\\u001b[31mred\\nline\\u202e" in found.new
    assert found.new.isprintable()
    assert len(found.new) < SHOWN + 10


def test_deep_and_wide_trees_are_bounded() -> None:
    """Very deep or very long trees are compared coarsely, without an error."""
    deep_old: object = 1
    deep_new: object = 2
    for _ in range(5000):
        deep_old, deep_new = [deep_old], [deep_new]
    assert len(list_differences(deep_old, deep_new)) == 1
    assert list_differences([*range(20_000)], [*range(1, 20_001)], 3)


LONG = "lorem ipsum " * 2000
VOLATILE = [
    ("Today is 2026-11-19.", "Today is 2026-11-20.", "date/time"),
    ("at 2026-11-19T10:00:00Z sharp", "at 2026-11-19T10:00:07Z sharp", "date/time"),
    ("It is Thursday, November 19, 2026.", "It is Friday, November 20, 2026.", "date/time"),
    ("now 9:05 PM", "now 10:05 PM", "date/time"),
    ("id 123e4567-e89b-12d3-a456-426614174000", "id 9b2e4567-e89b-12d3-a456-426614174111", "uuid"),
    ("in /tmp/pytest-1/a", "in /tmp/pytest-22/a", "temporary path"),
    ("cwd: /home/ann/work", "cwd: /home/bob/work", "home or working folder"),
    ("http://localhost:41231/x", "http://localhost:50112/x", "port"),
    ("at http://127.0.0.1:29627/mcp", "at http://127.0.0.1:38112/mcp", "port"),
    ("took until 12:41:07.25 today", "took until 12:41:09.5 today", "date/time"),
    ("ts=1763550000", "ts=1763550001", "unix timestamp"),
    ("call_Ab12Cd34", "call_Zz98Yy76", "tool-call id"),
    ("see resp_68aa0011bb22", "see resp_77cc0011bb22", "object id"),
    ("commit 3f9a2b1c", "commit a81b4d2e", "random hex"),
    ("run k3J9x0aQ77Lm2", "run p0Z1b8Rw45Ty9", "random id"),
    ("attempt 9 of it", "attempt 10 of it", "counter"),
    ("step 1", "step 12", "counter"),
    (f"{LONG}on 2026-11-19 {LONG}", f"{LONG}on 2026-11-20 {LONG}", "date/time"),
    (1763550000, 1763550042, "unix timestamp"),
    (1763550000.25, 1763550042.5, "unix timestamp"),
]
REAL = [
    ("Write a poem.", "Write a novel."), (0.2, 0.7), (100, 200), (True, False), ("a", None), ({"a": 1}, {"a": 2}),
    ("keep 3 apples", "keep 4 pears"), ("today is 2026-11-19", "today is nice"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "kind"), VOLATILE, ids=lambda each: str(each)[-40:])
def test_kinds(old: object, new: object, kind: str) -> None:
    """What changes from run to run by nature is recognised, in both directions."""
    assert get_volatile_difference_kind(old, new) == kind
    assert get_volatile_difference_kind(new, old) == kind


@pytest.mark.parametrize(("old", "new"), REAL)
def test_real_changes(old: object, new: object) -> None:
    """A real change of the request is never called volatile."""
    assert get_volatile_difference_kind(old, new) is None


def test_model_names_are_choices() -> None:
    """A date in a model's name is a choice, not the time of day."""
    assert list_differences({"model": "gpt-4o-2024-08-06"}, {"model": "gpt-4o-2024-11-20"})[0].looks is None


def test_is_one() -> None:
    """A value is told from a text that merely contains one."""
    assert is_volatile_value("123e4567-e89b-12d3-a456-426614174000")
    assert not is_volatile_value("the id 123e4567-e89b-12d3-a456-426614174000")
    assert not is_volatile_value("7")


@given(st.text(), st.text(), st.text())
def test_common_prefix(start: str, left: str, right: str) -> None:
    """The common prefix is common, and one character more is not."""
    a, b = start + left, start + right
    n = count_common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
