"""Names in a suite such as `$parent.title`, and their values in one run of a scenario.

A text that *is* one reference keeps the type of the value (an id stays a number); inside other text it is converted to
text. A declared name without a value so far, or without the field, is a `StepError`: nothing is ever sent to an agent
unresolved. A bare `$word` that is not declared is no reference: prices and shell text are full of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from llmproxy.did_you_mean import suggest_name
from llmproxy.errors import Exit, LLMProxyError

BUILT_IN = {
    "userId": "the user that the scenario runs as",
    "runIndex": "number of the run, from 1",
    "scenarioId": "id of the scenario",
    "conversation": "`$conversation.name`: the agent's id of a named conversation",
    "last": "`$last.response`: what the agent said last",
}

_PATH = r"(?:\.[A-Za-z_]\w*|\[\d+\])*"
_TOKEN = re.compile(rf"\$\$|\$\{{(?P<braced>[^}}\n]*)\}}|\$(?P<name>[A-Za-z_]\w*)(?P<path>{_PATH})", re.ASCII)
_INSIDE = re.compile(rf"(?P<name>[A-Za-z_]\w*)(?P<path>{_PATH})", re.ASCII)
_ENV = re.compile(r"env:([A-Za-z_]\w*)", re.ASCII)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]", re.ASCII)
_RUN_VARIABLE = re.compile(r"[A-Za-z_][\w.\[\]-]{0,99}")


class StepError(LLMProxyError):
    """A step cannot be executed or evaluated (no value, no such field): never a pass, never a failure."""

    code = "llmproxy_step"
    exit_code = Exit.ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Reference:
    text: str
    name: str = ""
    path: tuple[str | int, ...] = ()
    env: str = ""
    """Name of an environment variable; `name` is empty then."""
    braced: bool = False
    """Whether it has braces, which make it a reference beyond doubt."""

    @property
    def is_unambiguous(self) -> bool:
        """Whether it can only be a reference; a bare ``$word`` may be plain text."""
        return self.braced or bool(self.path)

    @property
    def is_malformed(self) -> bool:
        return not self.name and not self.env


def find_variable_references(text: str) -> Iterator[Reference]:
    for found in _TOKEN.finditer(text):
        if found[0] != "$$":
            yield _build_reference(found)


def parse_variable_ref(text: object) -> Reference | None:
    found = _TOKEN.fullmatch(text) if isinstance(text, str) else None
    return None if found is None or found[0] == "$$" else _build_reference(found)


def strip_dollar(text: str) -> str:
    return text.removeprefix("$")


def _build_reference(found: re.Match[str]) -> Reference:
    if found["braced"] is None:
        return Reference(found[0], name=found["name"], path=_parse_path(found["path"]))
    if env := _ENV.fullmatch(found["braced"]):
        return Reference(found[0], env=env[1], braced=True)
    if inside := _INSIDE.fullmatch(found["braced"]):
        return Reference(found[0], name=inside["name"], path=_parse_path(inside["path"]), braced=True)
    return Reference(found[0], braced=True)


def _parse_path(path: str) -> tuple[str | int, ...]:
    return tuple(step[1] or int(step[2]) for step in _STEP.finditer(path))


def get_required_path_value(value: object, path: Iterable[str | int], shown: str) -> object:
    """Return the value at `path`. Raises StepError: no such field; `shown` is the reference as written."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            if step not in value:
                raise StepError(f"{shown}: there is no field `{step}`", hint=suggest_name(step, map(str, value)))
            value = value[step]
        elif isinstance(step, int) and isinstance(value, (list, tuple)):
            if step >= len(value):
                raise StepError(f"{shown}: the list has {len(value)} items, numbered from 0")
            value = value[step]
        else:
            kind = "a list" if isinstance(step, int) else "an object"
            raise StepError(
                f"{shown}: {step!r} asks for a member of {kind}, and this is {type(value).__name__} {value!r:.60}"
            )
    return value


@dataclass(frozen=True, slots=True)
class _CapturedRow:
    values: Mapping[str, Any]
    primary: str


class CaseVariables:
    def __init__(
        self,
        values: Mapping[str, object] | None = None,
        *,
        declared: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a run. Texts in `values` may reference earlier ones; `declared` are names that steps will capture."""
        self._env: Mapping[str, str] = os.environ if env is None else env
        self._declared = {strip_dollar(name) for name in declared}
        self._values: dict[str, object] = {}
        self._conversations: dict[str, object] = {}
        self._noted: list[dict[str, str]] = []
        for name, value in (values or {}).items():
            self._values[name] = self.resolve_value(value)

    @property
    def known_names(self) -> frozenset[str]:
        return frozenset(self._declared | self._values.keys() | BUILT_IN.keys())

    def capture_row(self, name: str, row: Mapping[str, Any], *, primary: str = "id", overwrite: bool = False) -> None:
        """Bind a row to a name; `$name` alone is its column `primary`. Raises StepError: it is set; no `overwrite`."""
        if (bare := strip_dollar(name)) in BUILT_IN:
            raise StepError(f"${bare} is built in and cannot be captured")
        if bare in self._values and not overwrite:
            raise StepError(
                f"${bare} has a value already", hint="choose another name, or write `overwrite: true` beside `as`"
            )
        self._declared.add(bare)
        self._values[bare] = _CapturedRow(dict(row), primary)

    def record_ids_for_proxy(self, name: str, entity: str, row: Mapping[str, Any], primary: str) -> None:
        """Note the ids of a row: they differ in each run, and the proxy must know them to bind them."""
        for column, value in row.items():
            is_id = column == primary or column.endswith(("_id", "Id"))
            if is_id and isinstance(value, (str, int, UUID)) and not isinstance(value, bool) and value != "":
                self._noted.append({"name": f"{strip_dollar(name)}.{entity}.{column}", "value": str(value)})

    def pop_noted_ids(self) -> list[dict[str, str]]:
        """Return the ids noted since the last call, as run variables."""
        noted, self._noted = self._noted, []
        return [each for each in noted if _RUN_VARIABLE.fullmatch(each["name"])]

    def record_answer(self, response: str) -> None:
        self._values["last"] = {"response": response}

    def record_conversation_id(self, name: str, conversation: str) -> None:
        self._conversations[name] = conversation
        self._values["conversation"] = self._conversations

    def is_reference(self, reference: Reference) -> bool:
        return reference.is_unambiguous or bool(reference.env) or reference.name in self.known_names

    def lookup_value(self, reference: str | Reference) -> Any:
        """Return the typed value of a reference. Raises StepError: unknown, or without a value."""
        found = parse_variable_ref(reference) if isinstance(reference, str) else reference
        if found is None or found.is_malformed:
            raise StepError(f"{reference!s} is no reference", hint="write $name, $name.field or ${name.field}")
        if found.env:
            if found.env not in self._env:
                raise StepError(
                    f"{found.text}: the environment has no variable {found.env}", hint=f"set it: export {found.env}=..."
                )
            return self._env[found.env]
        if found.name not in self._values:
            raise self._build_missing_error(found)
        value = self._values[found.name]
        if isinstance(value, _CapturedRow):
            return get_required_path_value(value.values, found.path or (value.primary,), found.text)
        if found.name in {"conversation", "last"} and not found.path:
            raise StepError(f"{found.text} names no value by itself", hint=BUILT_IN[found.name])
        return get_required_path_value(value, found.path, found.text)

    def interpolate_text(self, text: str) -> str:
        """Return the text with references replaced, ``$$`` as a dollar sign. Raises StepError: no value."""

        def format_reference_value(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            reference = _build_reference(found)
            return _format_value(self.lookup_value(reference)) if self.is_reference(reference) else found[0]

        return _TOKEN.sub(format_reference_value, text)

    def resolve_value(self, value: object) -> Any:
        """Return a YAML value with all references in it resolved, nested ones too. Raises StepError: one has no value.

        A text that is one reference becomes the value itself; so does ``{ref: $name.field}``.
        """
        if isinstance(value, str):
            if (reference := parse_variable_ref(value)) is not None and self.is_reference(reference):
                return self.lookup_value(reference)
            return self.interpolate_text(value) if "$" in value else value
        if isinstance(value, Mapping):
            if value.keys() == {"ref"} and isinstance(value["ref"], str):
                return self.lookup_value(value["ref"])
            return {key: self.resolve_value(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.resolve_value(each) for each in value]
        return value

    def _build_missing_error(self, found: Reference) -> StepError:
        if found.name in self._declared:
            return StepError(
                f"{found.text}: ${found.name} has no value yet", hint="the step that captures it has not run"
            )
        if found.name == "last":
            return StepError(f"{found.text}: the agent has said nothing yet")
        if found.name == "conversation":
            return StepError(f"{found.text}: no named conversation has begun yet")
        return StepError(
            f"{found.text}: nothing is called ${found.name}", hint=suggest_name(found.name, self.known_names)
        )


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if value is None or isinstance(value, (bool, dict, list)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
