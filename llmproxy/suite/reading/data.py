"""Sets of parameters from a file: `parametrize: cities.csv`, relative to the file that says so.

What is wrong is told with the file and line of the data. A column that no step names is probably a slip, and told as a doubt; so is a file
whose cases would be named by their number, because an inserted row would move every recording after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmproxy.scenario.values.rows import ID, Row, RowError, rows_of
from llmproxy.suite.matchers.variables import BUILT_IN
from llmproxy.suite.reading.files import show_path
from llmproxy.suite.reading.flow import captures
from llmproxy.yaml_reader import List, Map, Problems, YamlPlace, place_of

_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")


def with_rows(raw: Map, path: Path, variables: object, problems: Problems, doubts: Problems) -> tuple[Map, Path | None]:
    """Return a scenario with the rows of the file that its `parametrize` names, and that file; else as it is."""
    said = raw.get("parametrize")
    if not isinstance(said, str):
        return raw, None
    at, file = place_of(raw, "parametrize") or raw.place, path.parent / said
    made, rows = raw.twin(), List(at)
    try:
        found = rows_of(file)
    except RowError as error:
        problems.add(
            YamlPlace(show_path(file), error.line, 1) if error.line else at, _explain_row(error, said), error.hint
        )
        found = []
    for each in [_map(row, file) for row in found] or [_every_name(made, at)]:
        rows.put(each, each.place)
    del made["parametrize"]
    made.put("parametrize", rows, place_of(raw, "parametrize", key=True) or at, at)
    if found:
        _doubt(made, found[0], variables, YamlPlace(show_path(file), 1, 1), doubts)
    return made, file


def distinct(sets: list[Map]) -> list[Map]:
    """Return one set of each kind: those that name the same columns with values of the same shape are read alike by the steps."""
    found: dict[object, Map] = {}
    for number, each in enumerate(sets):
        text = "".join(str(value) for value in each.values())
        found.setdefault(number if "$" in text else tuple((name, _shape(value)) for name, value in each.items()), each)
    return list(found.values())


def _explain_row(error: RowError, said: str) -> str:
    return error.problem if error.line else f"{said}: {error.problem}"


def _map(row: Row, file: Path) -> Map:
    place = YamlPlace(show_path(file), row.line, 1)
    made = Map(place)
    for name, value in row.values.items():
        made.put(name, value, place, place)
    return made


def _every_name(scenario: Map, at: YamlPlace) -> Map:
    """Return a set with whatever a scenario names: one that will not run, because its file is wrong, has nothing wrong beside that."""
    made, matrix = Map(at), scenario.get("matrix")
    known = {*captures(scenario), *BUILT_IN, *(matrix if isinstance(matrix, Map) else ())}
    for name in sorted({*_NAMED.findall(repr(dict(scenario)))} - known):
        made.put(name, "", at, at)
    return made


def unused_axes(scenario: Mapping[str, Any], variables: object, doubts: Problems) -> None:
    """Doubt an axis that nothing of the scenario names: its cells are equal."""
    matrix = scenario.get("matrix")
    used = _find_used(scenario, variables)
    for name in matrix if isinstance(matrix, Map) else ():
        if name not in used:
            at = place_of(matrix, name, key=True) or place_of(scenario, "matrix")
            doubts.add(
                at, f"no step of `{scenario.get('id')}` uses the axis `{name}`", f"write ${name} where it is wanted"
            )


def _find_used(scenario: Mapping[str, Any], variables: object) -> set[str]:
    text = repr({name: value for name, value in scenario.items() if name not in ("parametrize", "matrix")})
    return {*_NAMED.findall(text + repr(variables))}


def _doubt(scenario: Mapping[str, Any], row: Row, variables: object, at: YamlPlace, doubts: Problems) -> None:
    used = _find_used(scenario, variables)
    for name in row.values:
        if name != ID and name not in used:
            doubts.add(
                at, f"no step of `{scenario.get('id')}` uses the column `{name}`", f"write ${name} where it is wanted"
            )


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, _shape(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_shape, value))
    return type(value)
