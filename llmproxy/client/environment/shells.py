"""Variables as text that a shell, a dotenv reader or a program understands: ``eval "$(llmproxy env)"``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping


def _fish(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _powershell(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _dotenv(value: str) -> str:
    """Quote so that dotenv readers of Python, Node and Docker agree: single quotes are literal to all of them."""
    if "'" not in value:
        return f"'{value}'"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_SET: Mapping[str, Callable[[str, str], str]] = {
    "sh": lambda name, value: f"export {name}={shlex.quote(value)}",
    "fish": lambda name, value: f"set -gx {name} {_fish(value)};",
    "powershell": lambda name, value: f"$env:{name} = {_powershell(value)}",
    "dotenv": lambda name, value: f"{name}={_dotenv(value)}",
}
_UNSET: Mapping[str, Callable[[str], str]] = {
    "sh": lambda name: f"unset {name}",
    "fish": lambda name: f"set -e {name};",
    "powershell": lambda name: f"Remove-Item Env:{name} -ErrorAction SilentlyContinue",
}
FORMATS = (*_SET, "json")
"""Forms that :func:`render` knows."""


def render(values: Mapping[str, str], form: str) -> str:
    """Return assignments, one a line. ValueError for a form that nobody knows."""
    if form == "json":
        return json.dumps(dict(values), indent=2)
    write = _find_form(_SET, form)
    return "\n".join(write(name, value) for name, value in values.items())


def render_unset(names: Iterable[str], form: str) -> str:
    """Return what takes variables away again; ValueError for dotenv and for a form that nobody knows."""
    if form == "json":
        return json.dumps(dict.fromkeys(names), indent=2)
    write = _find_form(_UNSET, form)
    return "\n".join(write(name) for name in names)


def _find_form[T](table: Mapping[str, T], form: str) -> T:
    if form not in table:
        raise ValueError(f"{form!r} is not one of {', '.join([*table, 'json'])}")
    return table[form]
