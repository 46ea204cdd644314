"""Every public name of a package of scenarios: its own, the members of its classes, the parameters of its functions and constructors.

    python tests/scenario/surface.py scenario     # in an environment with langwatch-scenario==1.6.0: a line for each name

`surface.tsv` has these names and what plays each: a case of `today.py`, or why it is not here (`tests/scenario/test_surface.py`).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

WHOLE = (".voice", ".evaluators", "._tracing")
"""Modules there of which a class is one row: nothing of it is here."""
VARIOUS = {"args", "kwargs", "data", "extra_params", "values"}


def surface(package: str) -> list[str]:
    """Return its names: `run`, `run(name)`, `ScenarioState`, `ScenarioState.turns`; `BaseModel.copy` for what all values of pydantic have."""
    found = importlib.import_module(package)
    return sorted({each for name in dir(found) if not name.startswith("_") for each in _of(name, getattr(found, name))})


def _of(name: str, value: Any) -> Iterator[str]:
    yield name
    if inspect.ismodule(value) or any(part in str(getattr(value, "__module__", "")) for part in WHOLE):
        return
    if inspect.isclass(value):
        yield from _members(name, value)
    if callable(value):
        yield from (f"{name}({each})" for each in _parameters(value))


def _members(name: str, value: type) -> Iterator[str]:
    fields = [*getattr(value, "model_fields", ()), *getattr(value, "__dataclass_fields__", ())]
    base = next((each for each in value.__mro__ if each.__name__ == "BaseModel"), object)
    for member in {*dir(value), *fields}:
        if not member.startswith("_"):
            yield f"{'BaseModel' if hasattr(base, member) else name}.{member}"


def _parameters(value: Any) -> list[str]:
    try:
        return [each for each in inspect.signature(value).parameters if each not in VARIOUS]
    except (TypeError, ValueError):
        return []


if __name__ == "__main__":
    print("\n".join(surface(sys.argv[1])))
