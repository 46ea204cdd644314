"""Files of data: what they mean, and what is refused with its line.

Cases from data in Python tests: pytest names, selects and reports each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy import scenario
from llmproxy.scenario.values.data_files import DataFileError, read_data_file_rows
from llmproxy.yaml_reader import Problems, read_documents


def data(folder: Path, text: str, name: str = "cases.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("a.csv", 'id,city\r\na,"Rome, Italy"\r\n\r\nb,007\r\n', [{"id": "a", "city": "Rome, Italy"}, {"id": "b", "city": "007"}]),
        ("a.csv", "\ufeffid;city\na;Köln\n", [{"id": "a", "city": "Köln"}]),
        ("a.tsv", "id\tcity\na\tx,y\n", [{"id": "a", "city": "x,y"}]),
        ("a.jsonl", '{"n": 1}\n\n{"n": [2]}\n', [{"n": 1}, {"n": [2]}]),
        ("a.json", '[{"n": null}]', [{"n": None}]),
        ("a.yaml", "- {n: 1, who: {name: Ann}}\n- n: 2\n", [{"n": 1, "who": {"name": "Ann"}}, {"n": 2}]),
    ],
)  # fmt: skip
def test_what_files_mean(tmp_path: Path, name: str, text: str, want: list[object]) -> None:
    """Cells of CSV are texts, always; the others keep their types."""
    assert [row.values for row in read_data_file_rows(data(tmp_path, text, name))] == want


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("a.csv", "", 0, "has no rows"),
        ("a.csv", "id,city\n", 0, "has no rows"),
        ("a.csv", "id,city\na,Rome\nb\n", 3, "has 1 cell, and there are 2 columns"),
        ("a.csv", "id,\na,b\n", 1, "column 2 has no name"),
        ("a.csv", "id,id\na,b\n", 1, "two columns are called 'id'"),
        ("a.csv", "id,city\na,Rome\n,Paris\n", 3, "this case has no `id`"),
        ("a.csv", "id,city\na,Rome\na,Paris\n", 3, "the id 'a' stands here twice, first in line 2"),
        ("a.json", '[{"id": "a"}, {"id": "a"}]', 1, "the id 'a' stands here twice, first in line 1"),
        ("a.csv", 'id,city\na,"Rome\n', 2, "is no CSV"),
        ("a.jsonl", '{"id": "a"}\n{"n": 1}\n', 2, "this case has no `id`"),
        ("a.jsonl", '{"n": 1}\nn: 2\n', 2, "is no JSON: Expecting value (column 1)"),
        ("a.jsonl", "[1]\n", 1, "a row is a mapping"),
        ("a.yaml", "n: 1\n", 0, "is to be a list of mappings"),
        ("a.yaml", "- n: [1\n", 2, "this is no YAML"),
        ("a.yaml", "- id: a\n  n: 1\n\n- n: 2\n", 4, "this case has no `id`"),
        ("a.yaml", "- id: a\n  id: b\n", 2, "`id` stands here twice"),
        ("a.yaml", "- !!python/name:os.system x\n", 1, "is not known"),
        ("a.yaml", "- n: " + 5000 * "1" + "\n", 1, "this number has 5000 digits"),
        ("a.yaml", "- n: 1\n---\n- n: 2\n", 3, "a second document"),
        ("a.yaml", "x\n", 0, "is to be a list of mappings, and is a single value"),
        ("a.yaml", "# nothing\n", 1, "nothing but comments"),
        ("a.json", '[{"id": "a"},\n\n {"n": 1}]', 3, "this case has no `id`"),
        ("a.json", '[\n{"id": "a"}, [1]]', 2, "a row is a mapping"),
        ("a.jsonl", '{"n": 1}\n{"n": 1, "n": 2}\n', 2, "'n' stands twice in one object"),
        ("a.json", '[{"n": 1},\n {"n": {"a": 1, "a": 2}}]', 2, "'a' stands twice in one object"),
        ("a.xlsx", "x", 0, "data is read from .csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(tmp_path: Path, name: str, text: str, line: int, words: str) -> None:
    with pytest.raises(DataFileError) as caught:
        read_data_file_rows(data(tmp_path, text, name))
    assert (caught.value.line, words in str(caught.value)) == (line, True)


def test_yaml_is_read_as_suites_are(tmp_path: Path) -> None:
    """Version 1.2: what a suite's own list would be, a file is; PyYAML alone would make 8, False, 750 and a date of these."""
    said = "[{a: 010, b: no, c: 12:30, d: 2026-01-02, e: 1_000, f: 0x1F, g: 1e3, h: ~, i: true, j: '7', <<: &m {k: 1}}, *m]"
    (first, second) = read_data_file_rows(data(tmp_path, said, "a.yaml"))
    (suite, _), *_ = read_documents(said, "s.yaml", Problems())
    assert [first.values, second.values] == suite
    assert first.values == {
        "a": 10, "b": "no", "c": "12:30", "d": "2026-01-02", "e": "1_000", "f": 31, "g": 1000.0, "h": None, "i": True, "j": "7", "k": 1,
    }  # fmt: skip


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "deep.json": f'[{{"a": {DEEP}}}]',
    "deep.jsonl": f'{{"a": {DEEP}}}',
    "deep.yaml": f"- a: {DEEP}",
    "deeper than suites.yaml": "- a: " + "[" * 65 + "]" * 65,
    "bomb.yaml": "- a0: &a0 [x, x]\n" + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "merges.yaml": "- m0: &m0 {k: 1, l: 2}\n" + "".join(f"  m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 9)),
    "itself.yaml": "- &a {a: *a}",
    "itself, in a list.yaml": "- a: &a [*a]",
    "itself, merged.yaml": "- &a {<<: *a}",
    "hexadecimal.yaml": "- a: 0x" + "f" * 5_000,
    **{f"{tag}.yaml": f"- a: !!{tag} {value}" for tag, value in {
        "int": "x", "float": "x", "bool": "x", "binary": "eA==", "timestamp": "x", "set": "{a}", "omap": "[1]", "python/name:os.system": "''",
    }.items()},
}  # fmt: skip
"""Files that are legal, or nearly, and end, hold up or fill who reads them; the tags make values that JSON has not."""


@pytest.mark.parametrize("name", HOSTILE)
def test_no_file_of_data_stops_the_program(tmp_path: Path, name: str) -> None:
    """It is refused in words, before anything is made of it: libyaml recurses in C, where Python cannot catch it."""
    with pytest.raises(DataFileError):
        read_data_file_rows(data(tmp_path, HOSTILE[name], name.replace("/", "-")))


def test_a_file_that_is_not_there_or_not_utf8(tmp_path: Path) -> None:
    """Both with what to do, or why; anchors are for using a value again, and many uses of a small one are no bomb."""
    with pytest.raises(DataFileError, match="No such file"):
        read_data_file_rows(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"id,city\na,K\xf6ln\n")
    with pytest.raises(DataFileError, match=r"latin.csv:2: is not UTF-8 \(byte 11, 0xf6\)"):
        read_data_file_rows(tmp_path / "latin.csv")
    text = "- &a {city: [Oslo, Bergen]}\n" + "- *a\n" * 1_000
    assert len(read_data_file_rows(data(tmp_path, text, "a.yaml"))) == 1_001


pytest_plugins = ("pytester",)


def test_a_case_is_a_mapping_with_a_name(tmp_path: Path) -> None:
    """Named by its id, by its short values, or by its number."""
    path = tmp_path / "cases.csv"
    path.write_text("id,city\nr,Rome\n")
    (case,) = scenario.cases(path)
    assert (case.id, case["city"], dict(case), case.fields) == ("r", "Rome", {"id": "r", "city": "Rome"}, dict(case))
    with pytest.raises(KeyError, match="there are id, city"):
        case["town"]
    path.write_text("city,n\nRome,1\nParis,2\n")
    assert [each.id for each in scenario.cases(path)] == ["Rome-1", "Paris-2"]
    path.write_text("city\nRome\nRome\n")
    assert [each.id for each in scenario.cases(path)] == ["1", "2"]
    with pytest.raises(DataFileError):
        scenario.cases(tmp_path / "none.csv")


def test_under_pytest_each_is_a_test(pytester: pytest.Pytester) -> None:
    """The file lies beside the test, `-k` chooses, and a failure names its case."""
    folder = pytester.mkdir("tests")
    (folder / "cities.csv").write_text("id,city\nrome,Rome\nparis,Paris\n")
    (folder / "test_it.py").write_text(
        "import pytest\nfrom llmproxy import scenario\n"
        "class Agent(scenario.AgentAdapter):\n    async def call(self, input):\n        return 'It rains in Rome'\n"
        "@pytest.mark.parametrize('case', scenario.cases('cities.csv'))\n"
        "def test_weather(case):\n"
        "    def check(state):\n        assert state.field('city') in state.last_agent_message()\n"
        "    script = [scenario.user(f\"Weather in {case['city']}?\"), scenario.agent(), check, scenario.succeed()]\n"
        "    scenario.run_sync(f'weather {case.id}', 'd', [Agent()], script=script, fields=case.fields, verbose=False)\n"
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED tests/test_it.py::test_weather[[]paris[]]*"])
    table = ["test_weather: 2 cases, 1 not passed", "  failed  paris", "  passed  rome"]
    assert [line for line in result.outlines if line in table] == table
    text = (folder / "test_it.py").read_text()
    (folder / "test_it.py").write_text(text.replace("agent(), check, scenario.succeed()]", "agent(), scenario.fail()]"))
    fine = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    fine.assert_outcomes(passed=2)
    assert "test_weather: 2 cases, 0 not passed" in fine.outlines, "a test may want its scenario to fail"
    pytester.runpytest_inprocess("-q", "-k", "rome").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(("content", "words"), [
    (None, "cities.csv: is not there: it was looked for beside test_it.py (*) or in the working folder *"),
    (b"id,city\nrome,Rome\n,Oslo\n", "tests/cities.csv:3: this case has no `id`, and others have one"),
    (b"id,city\nmuc,M\xfcnchen\n", "tests/cities.csv:2: is not UTF-8 (byte 13, 0xfc)"),
])  # fmt: skip
def test_a_file_that_is_wrong_shows_the_line_that_asks(
    pytester: pytest.Pytester, content: bytes | None, words: str
) -> None:
    """And what is wrong, from where pytest stands; no line of ours."""
    folder = pytester.mkdir("tests")
    if content is not None:
        (folder / "cities.csv").write_bytes(content)
    (folder / "test_it.py").write_text("from llmproxy import scenario\nCASES = scenario.cases('cities.csv')\n")
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["tests/test_it.py:2: in <module>", f"E   *DataFileError: {words.replace('[', '[[]')}"])
    assert [line for line in result.outlines if "llmproxy/scenario/" in line] == []
