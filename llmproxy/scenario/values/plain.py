"""The base of the values that users build, copy and dump: dataclasses with the few pydantic methods that programs call on them.

pydantic itself takes longer to import than everything else here together, and these values need none of its validation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Self

__all__ = ["Plain", "dumped", "names_of"]


def dumped(value: object) -> Any:  # noqa: ANN401 (plain data)
    """Return the value as plain data: dataclasses and models as dicts, enums by their value, the rest as it is."""
    if isinstance(value, Plain):
        return value.model_dump()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: dumped(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [dumped(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: dumped(getattr(value, each.name)) for each in fields(value)}
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) and not isinstance(value, type) else value


def names_of(value: Any) -> list[str]:  # noqa: ANN401 (a dataclass)
    """Return the names of a dataclass's public fields."""
    return [each.name for each in fields(value) if not each.name.startswith("_")]


class Plain:
    """Gives a dataclass `model_dump`, `model_dump_json` and `model_copy`; fields that begin with ``_`` are private."""

    def model_dump(
        self,
        *,
        exclude: Collection[str] = (),
        exclude_none: bool = False,
        **_other: object,
    ) -> dict[str, Any]:
        """Return the public fields as plain data; further keywords that pydantic knows are taken and change nothing."""
        names = [name for name in names_of(self) if name not in exclude]
        found = {name: dumped(getattr(self, name)) for name in names}
        return {name: value for name, value in found.items() if not exclude_none or value is not None}

    def model_dump_json(self, *, indent: int | None = None, **how: Any) -> str:  # noqa: ANN401
        """Return the dump as JSON text; what JSON cannot say becomes a string."""
        return json.dumps(self.model_dump(**how), indent=indent, default=str, ensure_ascii=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a shallow copy with some fields changed; the object itself stays as it is."""
        import copy

        made = copy.copy(self)
        for name, value in (update or {}).items():
            object.__setattr__(made, name, value)
        return made
