"""`dataclasses.dataclass` whose methods are made when the first of them is called.

    from llmproxy.late_dataclass import dataclass        the same fields, options and behaviour; `replace`, `fields`, copies, pickles

Python writes the text of `__init__`, `__repr__`, `__eq__` and their like for each class and compiles it: 0.4 to 1.2 ms of processor, 110 ms for
the 121 classes of ours that come with `llmproxy start`, of which it makes instances of 41. It is for modules that a start imports and most
of whose classes it makes nothing of: there a class costs a fifth, and one that is used after all a third more. Measured by processor time:
the shim's start 0.285 to 0.240 s, importing the server 0.495 to 0.460.

The methods are Python's own: the class is made a second time, by the real decorator, and they are taken from it. A class that says more than
fields (a base with fields, an order, a method of those itself) is left to the real decorator at once.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> object:
        """Make a dataclass of `cls`, as `dataclasses.dataclass` does."""
        return _make(cls, options) if cls is not None else lambda cls: _make(cls, options)


__all__ = ["dataclass"]

_KNOWN = {"frozen", "slots", "kw_only", "repr", "eq"}
_OWN = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"}


def _make(cls: type, options: dict[str, bool]) -> type:
    own = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    if options.keys() - _KNOWN or _OWN & own.keys() or any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
        return dataclasses.dataclass(**options)(cls)
    plain = {"init": False, "repr": False, "eq": False, "frozen": False}
    made: Any = dataclasses.dataclass(**{**options, **plain})(cls)
    eq, frozen = options.get("eq", True), options.get("frozen", False)
    made.__dataclass_params__.frozen = frozen  # what inherits from it is checked by that
    names = ["__init__", *["__repr__"] * options.get("repr", True), *["__eq__"] * eq, *["__hash__"] * (eq and frozen)]
    if eq and not frozen:
        made.__hash__ = None
    if frozen:
        _freeze(made)

    def build() -> None:
        """Make the methods; twice at the same time does no harm."""
        whole = type(cls)(cls.__name__, cls.__bases__, own | {"__qualname__": cls.__qualname__})
        whole = dataclasses.dataclass(**{**options, "slots": False})(whole)
        for name in names:
            setattr(made, name, vars(whole)[name])

    for name in names:
        setattr(made, name, _first(made, name, build))
    return made  # type: ignore[no-any-return]


def _first(made: type, name: str, build: Callable[[], None]) -> Callable[..., object]:
    """Return what stands for a method until it is called."""

    def method(self: object, /, *given: object, **named: object) -> object:
        build()
        return getattr(made, name)(self, *given, **named)

    method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
    return method


def _freeze(made: Any) -> None:  # noqa: ANN401 (any class)
    """Refuse to set and to delete what a frozen dataclass refuses; with slots it can be copied all the same."""
    fields = frozenset(each.name for each in dataclasses.fields(made))

    def set_(self: object, name: str, value: object) -> None:
        if type(self) is made or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete(self: object, name: str) -> None:
        if type(self) is made or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__, made.__delattr__ = set_, delete
    if "__slots__" in vars(made):
        made.__getstate__, made.__setstate__ = _state, _set_state


def _state(self: Any) -> list[object]:  # noqa: ANN401 (any dataclass)
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:  # noqa: ANN401 (as above)
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
