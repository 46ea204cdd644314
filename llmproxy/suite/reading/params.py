"""Sets of parameters from a file: `parametrize: cities.csv`, relative to the suite's file.

Errors name the file and line of the data. A column that no step uses is probably a mistake, and reported as a warning;
so is a file whose cases would be named by their number, because an inserted row would shift every later recording.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.scenario.values.data_files import ID, LONGEST_NAME, RowError, name_rows, read_rows
from llmproxy.suite.matchers.json_values import quote
from llmproxy.suite.reading.shared_parts import show_path
from llmproxy.yaml_reader import List, Map, Problems, YamlPlace, place_of


def name_axis_values(values: Sequence[object]) -> list[str]:
    """Return a name for each value of an axis: the value itself if all are short and different."""
    texts = [format_short_value(each) for each in values]
    good = all(text and len(text) <= LONGEST_NAME for text in texts) and len(set(texts)) == len(texts)
    return texts if good else [str(number) for number in range(1, len(texts) + 1)]


def format_short_value(value: object) -> str:
    """Return a value in YAML form; empty for lists and mappings."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, str | int | float) else ""


def drop_id(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the variables of a set of parameters without its `id`, which is its name."""
    if not isinstance(parameters, Map):
        return {name: value for name, value in parameters.items() if name != "id"}
    made = parameters.copy_with_places()
    made.pop("id", None)
    return made


MOST = 1_000
"""Maximum cells of one scenario over all sets: each is a run that costs money, and a recording."""


def convert_matrix_to_parametrize(raw: Map, problems: Problems) -> Map | None:
    """Return a scenario whose `parametrize` has a set for each cell of its `matrix`; None if it is invalid."""
    matrix = raw.get("matrix")
    if matrix is None:
        return raw
    at = place_of(raw, "matrix", key=True) or raw.place
    axes = _read_axes(matrix, problems)
    sets = raw.get("parametrize")
    known = [Map(at)] if sets is None else sets
    if not axes or not isinstance(known, list) or not known or not all(isinstance(each, Map) for each in known):
        return None  # the schema says why
    names = [name_axis_values(values) for _, values in axes]
    own = name_rows(known, format_short_value) if sets else [""]
    number = len(known) * math.prod(len(values) for values in names)
    if number > MOST:
        counts = " x ".join(str(len(values)) for values in names)
        sizes = f"{counts} x {len(known)} sets of parameters" if len(known) > 1 else counts
        message = f"the matrix has {number:,} cells ({sizes}); up to {MOST:,} are run"
        problems.add(at, message, "take fewer values, or make several scenarios that have some of them each")
        return None
    made, cells = raw.copy_with_places(), List(at)
    for name_of_set, given in zip(own, known, strict=True):
        if clash := next((name for name, _ in axes if name in given), None):
            message = f"`{clash}` is an axis of the matrix and a parameter as well"
            problems.add(at, message, "name one of them otherwise")
            return None
        for chosen in itertools.product(*(range(len(values)) for values in names)):
            cell = given.copy_with_places()
            for (name, values), place in zip(axes, chosen, strict=True):
                value_at = place_of(values, place) or given.place
                cell.put(name, values[place], value_at, value_at)
            words = [of[place] for of, place in zip(names, chosen, strict=True)]
            cell.put("id", ",".join([name_of_set, *words] if name_of_set else words), given.place, given.place)
            cells.put(cell, given.place)
    made.put("parametrize", cells, at, at)
    return made


def _read_axes(matrix: object, problems: Problems) -> list[tuple[str, List]]:
    if not isinstance(matrix, Map):
        return []  # the schema says so
    found = []
    for name, values in matrix.items():
        if not isinstance(values, List) or not values:
            continue  # and here
        first: dict[tuple[type, str], int] = {}
        twice = next(
            (i for i, value in enumerate(values) if first.setdefault((type(value), repr(value)), i) != i), None
        )
        if twice is None:
            found.append((name, values))
        else:
            text = quote(values[twice], 40)
            problems.add(place_of(values, twice), f"the axis `{name}` has {text} twice", "`runs` repeats each cell")
    return found if len(found) == len(matrix) else []


_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")


def copy_with_inlined_params(
    raw: Map, path: Path, variables: object, problems: Problems, doubts: Problems
) -> tuple[Map, Path | None]:
    """Return a scenario with the rows of its `parametrize` file, and that file; else unchanged."""
    said = raw.get("parametrize")
    if not isinstance(said, str):
        return raw, None
    at, file = place_of(raw, "parametrize") or raw.place, path.parent / said
    made, rows = raw.copy_with_places(), List(at)
    del made["parametrize"]
    try:
        found = read_rows(file)
    except RowError as error:
        place = YamlPlace(show_path(file), error.line, 1) if error.line else at
        problems.add(place, error.problem if error.line else f"{said}: {error.problem}", error.hint)
        return made, file
    for each in found:
        line = YamlPlace(show_path(file), each.line, 1)
        row = Map(line)
        for name, value in each.values.items():
            row.put(name, value, line, line)
        rows.put(row, line)
    made.put("parametrize", rows, place_of(raw, "parametrize", key=True) or at, at)
    columns = dict.fromkeys((name for name in found[0].values if name != ID), YamlPlace(show_path(file), 1, 1))
    _warn_of_unused_names(made, columns, "column", variables, doubts)
    return made, file


def pick_one_per_shape(sets: list[Map]) -> list[Map]:
    """Return one set of each kind: equal columns with values of equal shapes are equivalent for checks."""
    found: dict[object, Map] = {}
    for number, each in enumerate(sets):
        text = "".join(str(value) for value in each.values())
        found.setdefault(number if "$" in text else _get_type_structure(each), each)
    return list(found.values())


def warn_of_unused_axes(scenario: Mapping[str, Any], variables: object, doubts: Problems) -> None:
    """Warn of an axis that the scenario does not use: its cells are equal."""
    matrix = scenario.get("matrix")
    at = place_of(scenario, "matrix")
    axes = {name: place_of(matrix, name, key=True) or at for name in matrix} if isinstance(matrix, Map) else {}
    _warn_of_unused_names(scenario, axes, "axis", variables, doubts)


def _warn_of_unused_names(
    scenario: Mapping[str, Any], names: Mapping[str, YamlPlace | None], what: str, variables: object, doubts: Problems
) -> None:
    """Doubt names, each with its place, that no step and no variable refers to."""
    text = repr({name: value for name, value in scenario.items() if name not in ("parametrize", "matrix")})
    used = {*_NAMED.findall(text + repr(variables))}
    for name, place in names.items():
        if name not in used:
            said = f"no step of `{scenario.get('id')}` uses the {what} `{name}`"
            doubts.add(place, said, f"write ${name} where it is wanted")


def _get_type_structure(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, _get_type_structure(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_get_type_structure, value))
    return type(value)
