"""What is typed as text is taken as it is: typer reads each word by a schema of pydantic's, even one that was not typed.

Importing pydantic and making a schema for each of some forty options took 0.1 s of processor of every command, of `run` and the proxy that it
starts twice. Of what is not plain text (a number, a path, a date) typer still makes its schema, where such a word was typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_TEXT = (str, list[str])
"""Kinds of parameters whose words need no reading."""
_READ = (bool, int, float)
"""Kinds of which a value that is one already, a default, needs none either."""


def take_as_typed(command: Any) -> None:  # noqa: ANN401 (typer 0.29 carries its own click: no name fits both)
    """Have the parameters of a command, and of those below it, taken without a schema where they need none."""
    made = command.get_params

    def get_params(ctx: Any) -> list[Any]:  # noqa: ANN401 (as above)
        parameters: list[Any] = made(ctx)  # with the option --help, which is made there
        _take_words(parameters)
        return parameters

    command.get_params = get_params
    for each in getattr(command, "commands", {}).values():
        take_as_typed(each)


def _take_words(parameters: Iterable[Any]) -> None:
    """Do it for these parameters. Typer before 0.29 has no schemas: nothing is changed there."""
    for each in parameters:
        if hasattr(each, "get_runtime_param") and not isinstance(each.get_runtime_param, _Words):
            each.get_runtime_param = _Words(each)


class _Words:
    """Stands for what gets one parameter's schema from typer, and for the schema as long as none is needed."""

    def __init__(self, parameter: Any) -> None:  # noqa: ANN401 (as above)
        self._of_typer = parameter.get_runtime_param
        described = parameter.type_descriptor
        self._text = described.annotation in _TEXT and described.parameter_info.parser is None
        self._kind = described.annotation if described.annotation in _READ else None

    def __call__(self) -> _Words:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 (as above)
        """Return the value as the command's function is to get it."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if self._text and many and isinstance(value, (list, tuple)) and all(map(_is_plain, value)):
            return list(value)
        if (self._text and not many and _is_plain(value)) or type(value) is self._kind:
            return value
        if self._kind is float and type(value) is int:  # a default that is written without a point
            return float(value)
        return self._of_typer().coerce(value, param=param, ctx=ctx)


def _is_plain(value: object) -> bool:
    """Whether this is text without half characters, which typer refuses."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
