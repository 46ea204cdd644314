"""The base of the values that users build, copy and dump: dataclasses with the few pydantic methods that programs call on them.

pydantic itself takes longer to import than everything else here together, and these values need none of its validation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Self


def to_plain(value: object) -> Any:  # noqa: ANN401 (plain data)
    """Return the value as plain data: dataclasses and models as dicts, enums by their value, the rest as it is."""
    if isinstance(value, Plain):
        return value.model_dump()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) and not isinstance(value, type) else value


def names_of(value: Any) -> list[str]:  # noqa: ANN401 (a dataclass)
    """Return the names of a dataclass's public fields."""
    return [each.name for each in fields(value) if not each.name.startswith("_")]


class Plain:
    """Gives a dataclass `model_dump`, `model_dump_json`, `model_copy` and `model_validate`; fields that begin with ``_`` are private."""

    def model_dump(
        self,
        *,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        exclude_none: bool = False,
        exclude_defaults: bool = False,
        exclude_unset: bool = False,
        **_other: object,
    ) -> dict[str, Any]:
        """Return the public fields as plain data; further keywords that pydantic knows are taken and change nothing.

        Nobody remembers which fields were set: `exclude_unset` leaves out what has its default, as `exclude_defaults` does.
        """
        names = [name for name in names_of(self) if name not in exclude and (include is None or name in include)]
        if exclude_defaults or exclude_unset:
            usual = _defaults(type(self))
            names = [name for name in names if name not in usual or getattr(self, name) != usual[name]]
        found = {name: to_plain(getattr(self, name)) for name in names}
        return {name: value for name, value in found.items() if not exclude_none or value is not None}

    def model_dump_json(self, *, indent: int | None = None, **how: Any) -> str:  # noqa: ANN401 - as pydantic takes it
        """Return the dump as JSON text; what JSON cannot say becomes a string."""
        return json.dumps(self.model_dump(**how), indent=indent, default=str, ensure_ascii=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; the object itself stays as it is. `deep` copies what it holds too, private fields not."""
        import copy

        made = copy.copy(self)
        if deep:
            for name in names_of(self):
                object.__setattr__(made, name, copy.deepcopy(getattr(self, name)))
        for name, value in (update or {}).items():
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def model_validate(cls, obj: Any, **_other: object) -> Self:  # noqa: ANN401 (what somebody read)
        """Make one of a mapping or of an object of this class; members that are no field are left out, types are not checked.

        Raises:
            ValueError: it is neither, or a field without a default is missing.

        """
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise ValueError(f"{cls.__name__}: a mapping is wanted, not {type(obj).__name__}.")  # noqa: TRY004 (as pydantic's)
        usual, known = _defaults(cls), names_of(cls)
        if missing := [name for name in known if name not in usual and name not in obj]:
            raise ValueError(f"{cls.__name__}: missing {', '.join(missing)}.")
        return cls(**{name: obj[name] for name in known if name in obj})


def _defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of a dataclass's public fields, by name; those without one are left out."""
    found: dict[str, Any] = {}
    for each in fields(kind):
        if each.name.startswith("_"):
            continue
        if each.default is not MISSING:
            found[each.name] = each.default
        elif each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
    return found
