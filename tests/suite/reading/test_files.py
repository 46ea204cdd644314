"""Files, folders and globs."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.suite.reading.files import find_files, found_in, show_path
from llmproxy.yaml_reader import Problems


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "suite.yaml",
        "b.suite.yaml",
        "a.yaml",
        "deep/x.suite.yml",
        ".hidden/suite.yaml",
        "node_modules/suite.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("name: s", encoding="utf-8")
    return tmp_path


def names(paths: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_a_folder_means_its_suites(folder: Path) -> None:
    """`suite.yaml` and `*.suite.yaml`, also deeper; hidden folders and packages are passed over."""
    problems = Problems()
    assert names(find_files([folder], problems), folder) == ["b.suite.yaml", "suite.yaml", "deep/x.suite.yml"]
    assert not list(problems)


def test_files_keep_their_order_and_come_once(folder: Path) -> None:
    """As typed, then as sorted; a file that two of them mean is read once."""
    made = find_files([folder / "suite.yaml", f"{folder}/*.yaml", folder / "deep" / ".." / "a.yaml"], Problems())
    assert [path.name for path in made] == ["suite.yaml", "a.yaml", "b.suite.yaml"]


def test_what_means_nothing_is_a_problem(folder: Path) -> None:
    """A path with a slip, an empty glob, a folder without a suite."""
    problems = Problems()
    (folder / "empty").mkdir()
    assert find_files([folder / "siute.yaml", f"{folder}/*.txt", folder / "empty"], problems) == []
    told = [str(problem) for problem in problems]
    assert len(told) == 3
    assert "there is no such file (did you mean `suite.yaml`?)" in told[0]
    assert "no suite in this folder" in told[2]
    assert "llmproxy test --init" in told[2]


def test_entries_are_relative_to_their_folder(folder: Path) -> None:
    """Names and globs; one that means nothing is a problem."""
    problems = Problems()
    assert names(found_in(folder, "a.yaml", None, problems), folder) == ["a.yaml"]
    assert names(found_in(folder, "**/*.yml", None, problems), folder) == ["deep/x.suite.yml"]
    assert not list(problems)
    assert found_in(folder, "c.yaml", None, problems) == found_in(folder, "*.json", None, problems) == []
    assert ["no file is called so" in str(problem) for problem in problems] == [True, False]


def test_a_folder_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    """Only what the suite says is one."""
    folder = tmp_path / "a[1]"
    folder.mkdir()
    (folder / "x.yaml").write_text("id: a", encoding="utf-8")
    assert len(found_in(folder, "*.yaml", None, Problems())) == 1


def test_paths_are_shown_as_they_are_typed(tmp_path: Path) -> None:
    """Relative below the working folder, else whole."""
    assert show_path(Path("tests/x.yaml")) == "tests/x.yaml"
    assert show_path(tmp_path / "x.yaml") == str(tmp_path / "x.yaml")
