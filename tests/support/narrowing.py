"""Return what a value is, to the test and to the type checker at once."""

from __future__ import annotations


def known[T](value: T | None) -> T:
    assert value is not None
    return value


def narrow[T](kind: type[T], value: object) -> T:
    """Return a value that must be of a kind; else it is shown."""
    assert isinstance(value, kind), value
    return value
