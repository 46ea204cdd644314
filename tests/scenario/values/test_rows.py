"""Files of data: what they mean, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.scenario.values.rows import RowError, rows_of


def data(folder: Path, text: str, name: str = "cases.csv") -> Path:
    """Write a file."""
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
    assert [row.values for row in rows_of(data(tmp_path, text, name))] == want


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("a.csv", "", 0, "has no rows"),
        ("a.csv", "id,city\n", 0, "has no rows"),
        ("a.csv", "id,city\na,Rome\nb\n", 3, "has 1 cells, and there are 2 columns"),
        ("a.csv", "id,\na,b\n", 1, "column 2 has no name"),
        ("a.csv", "id,id\na,b\n", 1, "two columns are called 'id'"),
        ("a.csv", "id,city\na,Rome\n,Paris\n", 3, "this case has no `id`"),
        ("a.csv", "id,city\na,Rome\na,Paris\n", 3, "the id 'a' stands here twice, first in line 2"),
        ("a.csv", 'id,city\na,"Rome\n', 2, "is no CSV"),
        ("a.jsonl", '{"id": "a"}\n{"n": 1}\n', 2, "this case has no `id`"),
        ("a.jsonl", '{"n": 1}\nn: 2\n', 2, "is no JSON"),
        ("a.jsonl", "[1]\n", 1, "a row is a mapping"),
        ("a.yaml", "n: 1\n", 0, "is to be a list of mappings"),
        ("a.yaml", "- n: [1\n", 2, "is no YAML"),
        ("a.xlsx", "x", 0, "data is read from .csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(tmp_path: Path, name: str, text: str, line: int, words: str) -> None:
    """With the line."""
    with pytest.raises(RowError) as caught:
        rows_of(data(tmp_path, text, name))
    assert (caught.value.line, words in str(caught.value)) == (line, True)


def test_a_file_that_is_not_there_or_not_utf8(tmp_path: Path) -> None:
    """Both with what to do, or why."""
    with pytest.raises(RowError, match="No such file"):
        rows_of(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"id,city\na,K\xf6ln\n")
    with pytest.raises(RowError, match="not UTF-8"):
        rows_of(tmp_path / "latin.csv")
