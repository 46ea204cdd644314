"""Runs side by side: `matrix: {model: [a, b], prompt: [short, long]}` makes a case of every cell, for every set of parameters.

An axis is a variable. A cell is named by its values, and so is its recording; values that are long or no plain values are named by
their number. With `parametrize`, each set has all cells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from llmproxy.suite.matchers.values import show
from llmproxy.suite.reading.names import names_of_sets, names_of_values, write_name
from llmproxy.yaml_reader import List, Map, Problems, place_of

MOST = 1_000
"""Cells of one scenario, all sets counted: each is a run that costs money, and a recording."""


def with_cells(raw: Map, problems: Problems) -> Map:
    """Return a scenario whose `parametrize` has a set for every cell of its `matrix`; as it is where it has none that is right."""
    matrix = raw.get("matrix")
    if matrix is None:
        return raw
    at = place_of(raw, "matrix", key=True) or raw.place
    axes = _axes(matrix, problems)
    sets = raw.get("parametrize")
    known = (
        [Map(at)]
        if sets is None
        else [each for each in sets if isinstance(each, Map)]
        if isinstance(sets, list)
        else []
    )
    if not known or (sets is not None and len(known) < len(sets)):
        return raw  # the schema says why
    if not axes:
        return _named_only(raw, matrix, known)
    names = [names_of_values(values) for _, values in axes]
    own = names_of_sets(known, write_name) if sets else [""]
    number = len(known) * math.prod(len(values) for values in names)
    if number > MOST:
        counts = " x ".join(str(len(values)) for values in names)
        sizes = f"{counts} x {len(known)} sets of parameters" if len(known) > 1 else counts
        problems.add(
            at,
            f"the matrix has {number:,} cells ({sizes}); up to {MOST:,} are run",
            "take fewer values, or make several scenarios that have some of them each",
        )
        return _named_only(raw, matrix, known)
    made, cells = raw.twin(), List(at)
    for name_of_set, given in zip(own, known, strict=True):
        if clash := next((name for name, _ in axes if name in given), None):
            problems.add(
                at, f"`{clash}` is an axis of the matrix and a parameter as well", "name one of them otherwise"
            )
            return _named_only(raw, matrix, known)
        for chosen in itertools.product(*(range(len(values)) for values in names)):
            cells.put(_cell(given, name_of_set, axes, names, chosen), given.place)
    made.put("parametrize", cells, at, at)
    return made


def _named_only(raw: Map, matrix: object, known: Sequence[Map]) -> Map:
    """Return a scenario that will not run, with every axis in its sets: what names one is not wrong as well."""
    at = place_of(raw, "matrix") or raw.place
    made, sets = raw.twin(), List(at)
    for given in known:
        cell = given.twin()
        for name, values in matrix.items() if isinstance(matrix, Map) else ():
            if name not in cell:
                cell.put(name, values[0] if isinstance(values, List) and values else None, at, at)
        sets.put(cell, given.place)
    made.put("parametrize", sets, at, at)
    return made


def _cell(
    given: Map, own: str, axes: Sequence[tuple[str, List]], names: Sequence[Sequence[str]], chosen: Sequence[int]
) -> Map:
    cell = given.twin()
    for (name, values), place in zip(axes, chosen, strict=True):
        cell.put(name, values[place], place_of(values, place) or given.place, place_of(values, place) or given.place)
    words = [of[place] for of, place in zip(names, chosen, strict=True)]
    cell.put("id", ",".join([own, *words] if own else words), given.place, given.place)
    return cell


def _axes(matrix: object, problems: Problems) -> list[tuple[str, List]]:
    """Return the axes; what is none is a problem."""
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
            text = show(values[twice], 40)
            problems.add(place_of(values, twice), f"the axis `{name}` has {text} twice", "`runs` repeats each cell")
    return found if len(found) == len(matrix) else []
