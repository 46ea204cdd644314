"""Every cell of a matrix is a case with a name, and too many are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.load import load_suites

STEPS = 'steps: [{chat: "$model $prompt", totalToolCalls: 1}]'
BOTH = 'steps: [{chat: "${model}", response: {contains: $prompt}}]'
"""Both axes stand where nothing else can be meant."""


def ids(folder: Path, more: str, steps: str = STEPS) -> list[str]:
    path = folder / "suite.yaml"
    path.write_text(f"name: s\nscenarios:\n  - {{id: a, {more}, {steps}}}\n", encoding="utf-8")
    return [case.id for case in load_suites([path]).scenarios]


def refused(folder: Path, more: str, steps: str = "steps: [{chat: hi, totalToolCalls: 1}]") -> str:
    with pytest.raises(SuiteError) as caught:
        ids(folder, more, steps)
    return str(caught.value)


def test_every_cell_is_a_case(tmp_path: Path) -> None:
    """In the order of the axes, the last one fastest; the axes are variables."""
    assert ids(tmp_path, "matrix: {model: [m1, m2], prompt: [short, long]}") == [
        "a[m1,short]", "a[m1,long]", "a[m2,short]", "a[m2,long]",
    ]  # fmt: skip
    (case, *_) = load_suites([tmp_path / "suite.yaml"]).scenarios
    assert dict(case.values) == {"model": "m1", "prompt": "short"}


def test_each_set_of_parameters_has_all_cells(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,prompt\nx,hi\ny,ho\n")
    assert ids(tmp_path, "parametrize: rows.csv, matrix: {model: [1, 2]}") == ["a[x,1]", "a[x,2]", "a[y,1]", "a[y,2]"]


def test_values_that_name_nothing_are_numbered(tmp_path: Path) -> None:
    assert ids(tmp_path, "vars: {prompt: p}, matrix: {model: [{a: 1}, {a: 2}]}") == ["a[1]", "a[2]"]


@pytest.mark.parametrize(("more", "words"), [
    ("matrix: {model: m}", "`model` takes a list, not text"),
    ("matrix: {}", "matrix"),
    ("matrix: [m]", "matrix"),
])  # fmt: skip
def test_what_is_no_matrix(tmp_path: Path, more: str, words: str) -> None:
    told = refused(tmp_path, more)
    assert words in told
    assert told.count("suite.yaml:") == 1


def test_values_that_are_equal_in_python_alone_are_two_cells(tmp_path: Path) -> None:
    """1 is not true."""
    assert ids(tmp_path, "vars: {prompt: p}, matrix: {model: [1, true]}") == ["a[1]", "a[true]"]
    assert ids(tmp_path, "vars: {prompt: p}, matrix: {model: [null, 1.0, 'no']}") == ["a[null]", "a[1.0]", "a[no]"]


def test_a_set_beside_an_axis_is_written_as_the_axis_is(tmp_path: Path) -> None:
    """As YAML has it; what is long, or no plain value, by its number."""
    sets = "parametrize: [{prompt: true}, {prompt: null}]"
    assert ids(tmp_path, f"{sets}, matrix: {{model: [false, x]}}") == [
        "a[true,false]", "a[true,x]", "a[null,false]", "a[null,x]"
    ]  # fmt: skip
    sets = f"parametrize: [{{prompt: {'p' * 60}}}, {{prompt: {{deep: 1}}}}]"
    assert ids(tmp_path, f"{sets}, matrix: {{model: [m]}}") == ["a[1,m]", "a[2,m]"]


def test_an_axis_that_nothing_uses_is_a_doubt(tmp_path: Path) -> None:
    """Its cells are equal; one that a step or a mock names is used."""
    ids(
        tmp_path,
        "mock: {t: $tone}, matrix: {model: [a, b], tone: [a, b], size: [1, 2]}",
        'steps: [{chat: "${model}!", totalToolCalls: 1}]',
    )
    said = [str(doubt) for doubt in load_suites([tmp_path / "suite.yaml"]).warnings]
    assert [each.partition(": ")[2] for each in said] == [
        "no step of `a` uses the axis `size` (write $size where it is wanted)"
    ]


def test_a_broken_file_beside_a_matrix_is_told_alone(tmp_path: Path) -> None:
    """What its steps name may be in it."""
    (tmp_path / "rows.csv").write_text("id,prompt\n", encoding="utf-8")
    told = refused(tmp_path, "parametrize: rows.csv, matrix: {model: [a, b]}", STEPS)
    assert "rows.csv: has no rows" in told
    assert told.count("suite.yaml:") == 1


def test_a_million_cells_are_refused_at_once(tmp_path: Path) -> None:
    axis = "[" + ", ".join(map(str, range(1000))) + "]"
    told = refused(tmp_path, f"matrix: {{model: {axis}, prompt: {axis}}}")
    assert "the matrix has 1,000,000 cells (1000 x 1000); up to 1,000 are run" in told


@pytest.mark.parametrize(("more", "words"), [
    (f"matrix: {{model: {list(range(1000))}, prompt: [a, b]}}", "the matrix has 2,000 cells"),
    ("matrix: {model: [a, a], prompt: [b]}", 'the axis `model` has "a" twice'),
    ("matrix: {model: [], prompt: [b]}", "`model` takes at least one item, not an empty list"),
    ("parametrize: [{model: 1}], matrix: {model: [1], prompt: [b]}", "`model` is an axis of the matrix and a parameter as well"),
])  # fmt: skip
def test_an_axis_of_a_matrix_that_is_refused_is_known(tmp_path: Path, more: str, words: str) -> None:
    """One line says what is wrong: what names the axis is not wrong as well."""
    told = refused(tmp_path, more, BOTH)
    assert words in told
    assert told.count("suite.yaml:") == 1


@pytest.mark.parametrize("sets", ["5", "[5, {id: x}]"])
def test_a_set_that_is_none_is_not_dropped(tmp_path: Path, sets: str) -> None:
    """Beside a matrix too: its cells took the place of what stood there, and the case was never run."""
    assert "not a number 5" in refused(tmp_path, f"parametrize: {sets}, matrix: {{model: [1], prompt: [p]}}", BOTH)
