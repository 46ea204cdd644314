"""Cases of a suite from a file of data."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.load import LoadedSuites, load_suites
from llmproxy.suite.selection import SelectionOptions, select_cases

SUITE = """
name: s
scenarios:
  - id: weather
    name: Weather in $city
    parametrize: {file}
    steps: [{{chat: "Weather in $city?", response: {{contains: $city}}}}]
"""


def suite(folder: Path, text: str, name: str = "cities.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(file=name), encoding="utf-8")
    return path


def loaded(folder: Path, text: str, name: str = "cities.csv") -> LoadedSuites:
    return load_suites([suite(folder, text, name)])


def refused(folder: Path, text: str, name: str = "cities.csv") -> str:
    with pytest.raises(SuiteError) as caught:
        loaded(folder, text, name)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(("name", "text"), [
    ("cities.csv", "id,city\nr,Rome\np,Paris\n"),
    ("cities.jsonl", '{"id": "r", "city": "Rome"}\n{"id": "p", "city": "Paris"}\n'),
    ("cities.yaml", "- {id: r, city: Rome}\n- {id: p, city: Paris}\n"),
])  # fmt: skip
def test_each_row_is_a_case(tmp_path: Path, name: str, text: str) -> None:
    """With an id to select by, its values, and its line; the file is watched."""
    found = loaded(tmp_path, text, name)
    assert [case.id for case in found.scenarios] == ["weather[r]", "weather[p]"]
    assert "Paris" in found.scenarios[1].title
    assert [case.id for case in select_cases(found.scenarios, SelectionOptions(ids=("weather[p]",)))] == ["weather[p]"]
    assert (tmp_path / name) in found.files
    assert not found.warnings


@pytest.mark.parametrize(("text", "words"), [
    ("", "suite.yaml:6:18: cities.csv: has no rows"),
    ("id,city\n", "has no rows"),
    ("id,city\nr,Rome\n,Paris\n", "cities.csv:3:1: this case has no `id`"),
    ("id,city\nr,Rome\nr,Paris\n", "stands here twice"),
])  # fmt: skip
def test_bad_data_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    said = refused(tmp_path, text)
    assert words in said
    assert "`parametrize`" not in said
    assert "nothing is called" not in said  # what its steps name is in the file


@pytest.mark.parametrize("file", ["cities.jsonl", "cities.json", "cities.yaml"])
def test_a_row_that_lacks_what_its_steps_take(tmp_path: Path, file: str) -> None:
    """`notContains: $city` would hold for a text that nobody wrote; null says that there is none, and a variable may stand in."""
    rows = {
        "cities.jsonl": '{{"id": "r", "city": "Rome"}}\n{{"id": "p"{}}}\n',
        "cities.json": '[{{"id": "r", "city": "Rome"}},\n{{"id": "p"{}}}]\n',
        "cities.yaml": "- {{id: r, city: Rome}}\n- {{id: p{}}}\n",
    }[file]
    assert f"{file}:2:1: this case has no `city`, and others have one, for $city" in refused(
        tmp_path, rows.format(""), file
    )
    null = ", city: null" if file == "cities.yaml" else ', "city": null'
    assert len(loaded(tmp_path, rows.format(null), file).scenarios) == 2
    path = suite(tmp_path, rows.format(""), file)
    path.write_text(path.read_text("utf-8").replace("name: s\n", "name: s\nvars: {city: Bern}\n"), "utf-8")
    assert len(load_suites([path]).scenarios) == 2


@pytest.mark.parametrize("steps", [
    '[{chat: "Weather in $city?", response: {notContains: x}}]',
    "[{chat: hi, response: {notContains: $city}}]",
    '[{chat: hi, response: {judge: {criteria: ["does not name $city"]}}}]',
    '[{chat: hi}, {judge: "does not name $city"}]',
    '[{simulate: {goal: "ask for $city", maxTurns: 1}}]',
])  # fmt: skip
def test_a_column_that_no_row_has(tmp_path: Path, steps: str) -> None:
    """Steps that take it would send and judge a text that nobody wrote: an error, and no warning."""
    path = suite(tmp_path, "id,town\nr,Rome\np,Paris\n")
    path.write_text(
        f"name: s\nscenarios:\n  - {{id: weather, parametrize: cities.csv, steps: {steps}}}\n", encoding="utf-8"
    )
    with pytest.raises(SuiteError, match=r"\$city: nothing is called \$city"):
        load_suites([path])


def test_dollar_signs_of_the_data_are_data(tmp_path: Path) -> None:
    """A price in a cell is no name that is missing."""
    assert len(loaded(tmp_path, "id,city\nr,Rome for $dollars\n").scenarios) == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = suite(tmp_path, "id,city\nr,Rome\n")
    (tmp_path / "cities.csv").unlink()
    with pytest.raises(SuiteError, match=r"suite.yaml:6:18: cities.csv: cannot be read"):
        load_suites([path])


def test_a_column_that_nobody_uses_is_a_doubt(tmp_path: Path) -> None:
    """Probably a slip; notes are allowed to stand there."""
    (doubt,) = loaded(tmp_path, "id,city,contry\nr,Rome,IT\n").warnings
    assert "no step of `weather` uses the column `contry`" in str(doubt)


@pytest.mark.slow
def test_ten_thousand_cases_are_read_in_seconds(tmp_path: Path) -> None:
    """Steps are followed once for rows of one shape."""
    text = "id,city\n" + "".join(f"c{n},City {n}\n" for n in range(10_000))
    began = time.process_time()
    assert len(loaded(tmp_path, text).scenarios) == 10_000
    assert time.process_time() - began < 20
