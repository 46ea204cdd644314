"""What tells the sets of `parametrize` and the cells of a `matrix` apart in the names of cases.

A set by itself is named as Python writes its values (`True`, `None`): recordings bear these names. An axis, and a set beside one, as YAML
writes them (`true`, `null`). What is long, or no plain value, is named by its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmproxy.yaml_reader import Map

_SHORT = 40


def names_of_sets(sets: Sequence[Mapping[str, Any]], write: Callable[[object], str] = str) -> list[str]:
    """Return what tells sets of parameters apart: their ids, else their values if they are short, else their numbers."""
    made = []
    for each in sets:
        values = list(without_id(each).values())
        short = all(value is None or isinstance(value, (str, int, float)) for value in values)
        text = str(each["id"]) if "id" in each else "-".join(map(write, values)) if short else ""
        made.append(text if len(text) <= _SHORT or "id" in each else "")
    taken = [text for each, text in zip(sets, made, strict=True) if "id" not in each]
    numbered = not all(taken) or len(set(taken)) < len(taken)
    return [
        text if "id" in each or not numbered else str(i + 1)
        for i, (each, text) in enumerate(zip(sets, made, strict=True))
    ]


def names_of_values(values: Sequence[object]) -> list[str]:
    """Return a name for each value of an axis: the value itself where all are short and different."""
    texts = [write_name(each) for each in values]
    good = all(text and len(text) <= _SHORT for text in texts) and len(set(texts)) == len(texts)
    return texts if good else [str(number) for number in range(1, len(texts) + 1)]


def write_name(value: object) -> str:
    """Return a value as YAML writes it; empty for what is no name (a list, a mapping)."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, str | int | float) else ""


def without_id(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the variables of a set of parameters; its `id` names it."""
    if not isinstance(parameters, Map):
        return {name: value for name, value in parameters.items() if name != "id"}
    made = parameters.twin()
    made.pop("id", None)
    return made
