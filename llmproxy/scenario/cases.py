"""Cases from a file of data, for tests that are written in Python.

    @pytest.mark.parametrize("case", scenario.cases("cities.csv"))     # -k paris chooses one
    async def test_weather(case):
        result = await scenario.run(name=f"weather[{case.id}]", description=f"User asks about {case['city']}", fields=case.fields, ...)

Under pytest each test has its recording, so each case has one; elsewhere the name of the run is what tells them apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmproxy.scenario.values.rows import RowError, rows_of

_SHORT = 40


class Case(Mapping[str, Any]):
    """One row: a mapping of columns to values, with an id that pytest shows."""

    def __init__(self, id: str, values: Mapping[str, Any]) -> None:  # noqa: A002 (the column's name)
        self.id = self.__name__ = id  # pytest names a parameter by its __name__
        self.fields = dict(values)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (the user's)
        if name not in self.fields:
            raise KeyError(f"{name!r} is no column of this case; there are {', '.join(self.fields)}")
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __repr__(self) -> str:
        return self.id


def cases(path: str | Path) -> list[Case]:
    """Return the cases of a file (csv, tsv, jsonl, json, yaml), which lies beside the calling file or in the working folder.

    The column `id` names a case; without one, its short values do, else its number.

    Raises:
        SettingsError: the file is not there, has no rows, or is wrong somewhere; the text says in which line.

    """
    __tracebackhide__ = True  # pytest shows the line that asks, and none of ours
    asking = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 (whose file that is)
    try:
        rows = rows_of(_find_file(Path(path), asking))
    except RowError as error:
        raise error.with_traceback(None) from None
    names = [_name(row.values) for row in rows]
    numbered = not all(names) or len(set(names)) < len(names)
    return [
        Case(str(n) if numbered else name, row.values) for n, (row, name) in enumerate(zip(rows, names, strict=True), 1)
    ]


def _find_file(path: Path, asking: str | None) -> Path:
    beside = Path(asking).parent / path if asking else path
    if beside.exists():
        return beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    if not path.exists() and not path.is_absolute():
        where = f"beside {Path(asking).name} ({beside.parent}) or " if asking else ""
        raise RowError(str(path), 0, f"is not there: it was looked for {where}in the working folder {Path.cwd()}")
    return path


def _name(values: Mapping[str, Any]) -> str:
    if "id" in values:
        return str(values["id"])
    text = "-".join(map(str, values.values()))
    return text if len(text) <= _SHORT and not any(isinstance(each, dict | list) for each in values.values()) else ""
