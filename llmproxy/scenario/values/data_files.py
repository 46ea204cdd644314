"""Cases from a data file: one row, one case.

    cases.csv, .tsv     texts, always; the first line names the columns (``;`` separates if it has no comma)
    cases.jsonl         an object a line, with its types
    cases.json, .yaml   a list of mappings, with their types

The column `id` names a case, and so its recording: either every row has one, or none has.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import format_count
from llmproxy.errors import SettingsError
from llmproxy.file_io import build_dict_without_duplicates, read_bounded_bytes
from llmproxy.yaml_reader import SUITE, Problems, YamlList, YamlMapping, convert_yaml_maps_to_dicts, read_documents

ID = "id"
_BETWEEN = re.compile(r"[\s,]*")
MAX_BYTES = 50_000_000
"""Maximum bytes of a file: a hundred thousand cases, but no database dump by mistake."""


class DataFileError(SettingsError):
    """An invalid data file; `line` is the place, 0 for the whole file."""

    def __init__(self, file: str, line: int, problem: str, hint: str = "") -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {problem}", hint=hint)
        self.line, self.problem = line, problem


@dataclass(frozen=True, slots=True)
class DataFileRow:
    values: dict[str, Any]
    line: int


def read_data_file_rows(path: str | Path) -> list[DataFileRow]:
    """Return the rows of a file. Raises DataFileError: missing, empty, or invalid."""
    path = Path(path)
    if (read := KINDS.get(path.suffix.lower())) is None:
        raise DataFileError(
            str(path), 0, f"data is read from {', '.join(KINDS)}, not from {path.suffix or 'a file without ending'}"
        )
    try:
        content = read_bounded_bytes(path, MAX_BYTES)
    except OSError as error:
        raise DataFileError(str(path), 0, f"cannot be read: {error.strerror or error}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        odd = f"is not UTF-8 (byte {error.start}, 0x{content[error.start]:02x})"
        raise DataFileError(str(path), line, odd, "Save it as UTF-8.") from error
    if not (found := read(text, str(path))):
        raise DataFileError(str(path), 0, "has no rows, so there is nothing to run")
    _check_ids(found, str(path))
    return found


def _read_csv(text: str, file: str) -> list[DataFileRow]:
    head = text.partition("\n")[0]
    separator = "\t" if file.lower().endswith(".tsv") else ";" if ";" in head and "," not in head else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    found: list[DataFileRow] = []
    columns: list[str] = []
    line = 1
    try:
        for cells in reader:
            if cells and not columns:
                columns = _read_csv_header(cells, file, line)
            elif cells:
                if len(cells) != len(columns):
                    have, want = format_count(len(cells), "cell"), format_count(len(columns), "column")
                    raise DataFileError(file, line, f"has {have}, and there are {want}")
                found.append(DataFileRow(dict(zip(columns, cells, strict=True)), line))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataFileError(file, line, f"is no CSV: {error}") from error
    return found


def _read_csv_header(cells: Sequence[str], file: str, line: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    if "" in names:
        raise DataFileError(file, line, f"column {names.index('') + 1} has no name")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise DataFileError(file, line, f"two columns are called {twice!r}")
    return names


def _read_jsonl(text: str, file: str) -> list[DataFileRow]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line, object_pairs_hook=build_dict_without_duplicates)
            except (ValueError, RecursionError) as error:
                raise DataFileError(file, number, _describe_json_error(error)) from error
            found.append(_check_row_mapping(value, file, number))
    return found


def _describe_json_error(error: ValueError | RecursionError) -> str:
    """Describe the error without its line, which is printed before it: the parser of JSONL sees only one line."""
    if isinstance(error, json.JSONDecodeError):
        return f"is no JSON: {error.msg} (column {error.colno})"
    return f"is no JSON: {'it is nested too deeply' if isinstance(error, RecursionError) else error}"


def _read_json(text: str, file: str) -> list[DataFileRow]:
    try:
        whole = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        raise DataFileError(file, getattr(error, "lineno", 0), _describe_json_error(error)) from error
    if not isinstance(whole, list):
        raise DataFileError(file, 0, f"is to be a list of mappings, and is a {type(whole).__name__}")
    found, read = [], json.JSONDecoder(object_pairs_hook=build_dict_without_duplicates).raw_decode
    at = text.find("[") + 1
    line = 1 + text.count("\n", 0, at)
    for _ in whole:
        begin = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] # it fits everywhere
        line += text.count("\n", at, begin)
        try:
            value, at = read(text, begin)
        except ValueError as error:  # a member stands twice: all else is told of the whole
            raise DataFileError(file, line, _describe_json_error(error)) from error
        found.append(_check_row_mapping(value, file, line))
        line += text.count("\n", begin, at)
    return found


def _read_yaml(text: str, file: str) -> list[DataFileRow]:
    problems = Problems()
    documents = read_documents(text, file, problems, limits=SUITE._replace(size=MAX_BYTES))
    for problem in problems:
        raise DataFileError(file, problem.place.line if problem.place else 0, problem.message, problem.hint)
    if len(documents) > 1:
        raise DataFileError(file, documents[1][1].line, "a second document begins here, and a file of data has one")
    value = documents[0][0]
    if not isinstance(value, YamlList):
        kind = "mapping" if isinstance(value, YamlMapping) else "single value"
        raise DataFileError(file, 0, f"is to be a list of mappings, and is a {kind}")
    return [
        _check_row_mapping(convert_yaml_maps_to_dicts(each), file, at.line)
        for each, at in zip(value, value.items_at, strict=True)
    ]


def _check_row_mapping(value: object, file: str, number: int) -> DataFileRow:
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value):
        raise DataFileError(
            file, number, f"a row is a mapping of names to values, not {json.dumps(value, default=str)[:60]}"
        )
    return DataFileRow(value, number)


def _check_ids(rows: Sequence[DataFileRow], file: str) -> None:
    seen: dict[str, int] = {}
    if not any(ID in row.values for row in rows):
        return
    for row in rows:
        name = row.values.get(ID)
        if name is None or not str(name).strip():
            hint = "Give it one, or leave the column out."
            raise DataFileError(file, row.line, "this case has no `id`, and others have one", hint)
        if isinstance(name, dict | list):
            odd = f"the `id` of a case is a text or a number, not {json.dumps(name)[:60]}"
            raise DataFileError(file, row.line, odd)
        if (first := seen.get(str(name))) is not None:
            raise DataFileError(file, row.line, f"the id {str(name)!r} stands here twice, first in line {first}")
        seen[str(name)] = row.line


KINDS: dict[str, Callable[[str, str], list[DataFileRow]]] = {
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_jsonl),
    ".json": _read_json,
    **dict.fromkeys((".yaml", ".yml"), _read_yaml),
}
LONGEST_NAME = 40
"""Characters of a case's name that is made of its values."""


class Case(Mapping[str, Any]):
    def __init__(self, id: str, values: Mapping[str, Any]) -> None:  # noqa: A002 (the column's name)
        self.id = self.__name__ = id  # pytest names a parameter by its __name__
        self.fields = dict(values)

    def __getitem__(self, name: str) -> Any:
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
    """Return the cases of a file (csv, tsv, jsonl, json, yaml), relative to the calling file or the working folder.

    The column `id` names a case; without one, its short values do, else its number.

    Raises SettingsError with the line: the file is missing, has no rows, or is invalid.
    """
    __tracebackhide__ = True  # pytest shows the line that asks, and none of ours
    asking = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 (whose file that is)
    try:
        rows = read_data_file_rows(_find_file(Path(path), asking))
    except DataFileError as error:
        raise error.with_traceback(None) from None
    names = name_data_cases([row.values for row in rows])
    return [Case(name, row.values) for row, name in zip(rows, names, strict=True)]


def _find_file(path: Path, asking: str | None) -> Path:
    beside = Path(asking).parent / path if asking else path
    if beside.exists():
        return beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    if not path.exists() and not path.is_absolute():
        where = f"beside {Path(asking).name} ({beside.parent}) or " if asking else ""
        raise DataFileError(str(path), 0, f"is not there: it was looked for {where}in the working folder {Path.cwd()}")
    return path


def name_data_cases(sets: Sequence[Mapping[str, Any]], write: Callable[[object], str] = str) -> list[str]:
    """Return what tells sets of values apart: ids, else their values if they are short, else numbers."""
    made = []
    for each in sets:
        short = all(value is None or isinstance(value, (str, int, float)) for value in each.values())
        text = str(each[ID]) if ID in each else "-".join(map(write, each.values())) if short else ""
        made.append(text if len(text) <= LONGEST_NAME or ID in each else "")
    taken = [text for each, text in zip(sets, made, strict=True) if ID not in each]
    numbered = not all(taken) or len(set(taken)) < len(taken)
    named = enumerate(zip(sets, made, strict=True), 1)
    return [text if ID in each or not numbered else str(number) for number, (each, text) in named]
