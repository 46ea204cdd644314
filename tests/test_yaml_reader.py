"""YAML 1.2, its places and its limits; mistakes of syntax are told in plain words."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from llmproxy.errors import Exit, SuiteError
from llmproxy.yaml_reader import (
    MAX_BYTES,
    Problems,
    SuiteProblemsError,
    YamlList,
    YamlMapping,
    YamlPlace,
    find_yaml_place_of_path,
    get_yaml_place,
    read_documents,
    read_yaml_file,
)


def one(text: str) -> object:
    problems = Problems()
    documents = read_documents(text, "f.yaml", problems)
    assert not list(problems)
    assert len(documents) == 1
    return documents[0][0]


def wrong(text: str | bytes) -> list[str]:
    problems = Problems()
    read_documents(text, "f.yaml", problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(("written", "value"), [
    *((text, text) for text in ("no", "yes", "on", "off", "y", "tRUE", "None", "0b11", "1.2.3", "=")),
    *((text, text) for text in ("1_000", "12:30", "190:20:30", "2026-01-02", "2026-01-02T10:00:00Z")),
    ("true", True),
    ("FALSE", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("0o17", 15),
    ("0x1F", 31),
    ("017", 17),
    ("-5", -5),
    ("+5", 5),
    ("1e3", 1000.0),
    (".5", 0.5),
    ("5.", 5.0),
    ("-.inf", -math.inf),
    ("'1'", "1"),
    ("'-'", "-"),
    ('"true"', "true"),
    ("!!str 5", "5"),
    ("!!float 5", 5.0),
    ("!!int '5'", 5),
    ("|\n  no\n", "no\n"),
])  # fmt: skip
def test_plain_values_are_those_of_the_core_schema(written: str, value: object) -> None:
    """Only true and false are booleans; dates, times and 1_000 are texts; quotes make texts."""
    made = one(f"key: {written}\n")
    assert isinstance(made, YamlMapping)
    assert type(made["key"]) is type(value)
    assert made["key"] == value


def test_not_a_number_is_read() -> None:
    made = one("a: .nan")
    assert isinstance(made, YamlMapping)
    assert math.isnan(made["a"])


def test_keys_are_texts_as_written() -> None:
    """`no`, 1 and true are names of columns and tools like all others, as << is in quotes; only the plain one merges."""
    assert one("{no: 1, 1: 2, true: 3, ~: 4, '<<': 5}") == {"no": 1, "1": 2, "true": 3, "~": 4, "<<": 5}


def test_everything_knows_its_place() -> None:
    """File, line and column (a character) of mapping, key, value and item; what is not in a mapping has that one's."""
    made = one("a: 1\nb:\n  - x\n  - {c: d}\n")
    assert isinstance(made, YamlMapping)
    assert str(get_yaml_place(made, "b", key=True)) == "f.yaml:2:1"
    assert str(get_yaml_place(made["b"], 0)) == "f.yaml:3:5"
    assert str(get_yaml_place(made["b"][1], "c")) == "f.yaml:4:9"
    assert str(get_yaml_place(one("{ä: x, ö: y}"), "ö", key=True)) == "f.yaml:1:8"
    assert get_yaml_place(made, "nothing") == made.place
    assert get_yaml_place({"plain": 1}) is None


def test_equal_keys_are_refused_with_both_places() -> None:
    """All of them in the file, also those that look different."""
    told = wrong("a: 1\nb: {x: 1, 'x': 2}\na: 3\n")
    assert told == [
        "f.yaml:2:11: `x` stands here twice, first at line 2, column 5 (keep one)",
        "f.yaml:3:1: `a` stands here twice, first at line 1, column 1 (keep one)",
    ]


def test_anchors_and_merges_work() -> None:
    """What stands there wins, then the first of a list; merged members keep their places."""
    made = one("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], a: 0}\nw: *x\n")
    assert isinstance(made, YamlMapping)
    assert made["z"] == {"a": 0, "b": 1, "c": 2}
    assert made["w"] is made["x"]
    assert str(get_yaml_place(made["z"], "c")) == "f.yaml:2:17"


def test_several_documents_are_read_and_empty_ones_left_out() -> None:
    """A line of dashes too many does no harm."""
    documents = read_documents("---\na: 1\n---\n---\nb: 2\n---\n", "f.yaml", Problems())
    assert [value for value, _ in documents] == [{"a": 1}, {"b": 2}]
    assert str(documents[1][1]) == "f.yaml:5:1"


@pytest.mark.parametrize(("text", "place", "words"), [
    ("", "1:1", "the file is empty"),
    ("  \n\n", "1:1", "the file is empty"),
    ("# nothing\n", "1:1", "nothing but comments"),
    ("a: [*b]", "1:5", "*b names no anchor above"),
    ("a: &a [*a]", "1:8", "it would never end"),
    ("a: {<<: 1}", "1:9", "merges mappings"),
    ("a: {<<: *x, <<: *x}\n", "1:9", "*x names no anchor"),
    ("x: &x {}\na: {<<: *x, <<: *x}\n", "2:13", "`<<` stands here twice"),
    ("? [a]\n: b\n", "1:3", "a key must be a plain text"),
    ("a: !include x.yaml", "1:4", "the tag !include is not known"),
    ("a: !!python/name:os.system x", "1:4", "!!python/name:os.system is not known"),
    ("a: !!timestamp 2026-01-01", "1:4", "!!timestamp is not known"),
    ("a: !!int x", "1:4", "'x' is no int"),
    ("a: " + "9" * 500, "1:4", "this number has 500 digits"),
    ("[" * 5000, "1:66", "nested more than 64 deep"),
    (b"\xff\xfe\x00", "1:3", "not UTF-8"),
    (b"a: 1\nb: \xe9\n", "2:4", "the file is not UTF-8 text"),
    ("a:\n\tb: 1\n", "2:1", "indented with a tab, and YAML allows only spaces (replace the tab"),
    ("a:\n  b: 1\n \tc: 2\n", "3:2", "indented with a tab"),
    ("a: b: c", "1:5", "needs quotes around it"),
    ("a: 'x", "1:6", "a quote is opened and never closed"),
    ("a: {b: 1\nc: 2\n", "2:2", "which begins in line 1"),
    ("- a\nb: c\n", "2:1", "check the indentation"),
    ("a: @x", "1:4", "begins with @"),
    ("a: \x00", "1:4", "save the file as UTF-8"),
    ("a: 1\nb\n", "3:1", "a colon and a space"),
])  # fmt: skip
def test_what_cannot_be_used_is_said_with_its_place(text: str | bytes, place: str, words: str) -> None:
    """Empty files, tags, endless and missing anchors, odd keys, depth; of syntax, what one usually has to do."""
    told = wrong(text)
    assert len(told) == 1
    assert told[0].startswith(f"f.yaml:{place}: ")
    assert words in told[0]


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    """Ten aliases of ten aliases of ...: counted before anybody expands them."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    began = time.process_time()
    told = wrong("\n".join(lines))
    assert time.process_time() - began < 1
    assert len(told) == 1
    assert "the aliases of the file expand to more than 300,000 values" in told[0]


def test_a_large_file_is_refused_at_once(tmp_path: Path) -> None:
    """5 MB: the reason, and what to do, without reading them."""
    path, problems = tmp_path / "big.yaml", Problems()
    path.write_text("# " + "x" * 5_000_000, encoding="utf-8")
    began = time.process_time()
    assert read_yaml_file(path, problems) == []
    assert time.process_time() - began < 1
    assert "5.0 MB, and at most 1.0 MB are read (split it" in str(*problems)


def test_the_largest_file_is_read_in_time() -> None:
    """What is not refused for its size does not take long."""
    text = "- {id: aaaa, steps: [{chat: hello there}]}\n" * (MAX_BYTES // 45)
    began = time.process_time()
    assert len(read_documents(text, "f.yaml", Problems())) == 1
    assert time.process_time() - began < 10  # alone on the machine: under one


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    problems = Problems()
    assert read_yaml_file(tmp_path / "no.yaml", problems) == []
    assert "No such file" in str(*problems)


def test_zeros_that_get_lost_are_doubted() -> None:
    """01234 is a number in YAML 1.2; whoever means a postal code hears of it."""
    problems, doubts = Problems(), Problems()
    read_documents("zip: 01234\nn: 0\nm: '007'\n", "f.yaml", problems, doubts)
    assert [str(doubt) for doubt in doubts] == [
        "f.yaml:1:6: 01234 is read as the number 1234 (put it in quotes to keep its zeros)"
    ]
    assert not list(problems)


def at(line: int, column: int = 1, file: str = "a.yaml") -> YamlPlace:
    return YamlPlace(file, line, column)


def tree() -> YamlMapping:
    """``tags: [x]`` in lines 2 and 3."""
    tags, root = YamlList(at(2, 7)), YamlMapping(at(2))
    tags.put("x", at(3, 4))
    root.put("tags", tags, at(2, 1), at(2, 7))
    return root


def test_all_problems_are_told_in_the_order_of_the_file() -> None:
    """One error, a line each, whatever was found first; those without a place come first."""
    problems = Problems()
    problems.add(at(9), "later", "a hint")
    problems.add(at(2, 3), "earlier")
    problems.add(None, "no such file")
    with pytest.raises(SuiteProblemsError) as caught:
        problems.raise_if_any()
    assert str(caught.value).splitlines() == ["no such file", "a.yaml:2:3: earlier", "a.yaml:9:1: later (a hint)"]
    assert isinstance(caught.value, SuiteError)
    assert caught.value.exit_code is Exit.USAGE


def test_files_stay_in_the_order_in_which_they_were_read() -> None:
    problems = Problems()
    problems.add(at(1, file="z.yaml"), "one")
    problems.add(at(1, file="a.yaml"), "two")
    problems.add(at(2, file="z.yaml"), "three")
    assert [problem.message for problem in problems] == ["one", "three", "two"]


def test_the_same_problem_is_told_once() -> None:
    """Two readers of one mistake do not double it."""
    problems = Problems()
    problems.add(at(1), "x")
    problems.add(at(1), "x")
    assert len(problems) == 1


def test_many_problems_are_cut() -> None:
    """A reader wants to repair the first ones."""
    problems = Problems()
    for line in range(1, 60):
        problems.add(at(line), "x")
    with pytest.raises(SuiteProblemsError, match="and 9 more problems"):
        problems.raise_if_any()


def test_a_path_is_located_past_names_that_are_no_keys() -> None:
    """Branches of unions stand in pydantic's paths and not in files."""
    assert find_yaml_place_of_path(tree(), ("(branch)", "tags", 0)) == at(3, 4)
    assert find_yaml_place_of_path(tree(), ("tags", 7)) == at(2, 7)


def test_a_twin_is_changed_alone() -> None:
    """Defaults are put into a copy: an anchor may share the mapping."""
    root = tree()
    twin = root.copy_with_places()
    twin.put("id", "x", at(5), at(5))
    assert "id" not in root
    assert get_yaml_place(twin, "tags") == at(2, 7)


def test_utf_16_and_byte_order_marks_are_read() -> None:
    """Editors on Windows write them."""
    for text in ("a: ö".encode("utf-16"), "a: ö".encode("utf-8-sig"), "\ufeffa: ö"):
        problems = Problems()
        assert read_documents(text, "f.yaml", problems)[0][0] == {"a": "ö"}
        assert not list(problems)
