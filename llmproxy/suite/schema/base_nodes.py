"""Base of the models of a suite: nodes that know their place in the file, and refuse unknown keys.

Validation gets a `Problems` as its context and continues after an error, so that one reading of a file finds all of
them; `collect_validation_errors` adds pydantic's own errors in the same wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.matchers.registry import get_type_name, quote
from llmproxy.yaml_reader import Problems, YamlMapping, YamlPlace, find_yaml_place_of_path, get_yaml_place


def build_value_error(message: str, hint: str = "") -> PydanticCustomError:
    """Return a validator's error with our message, at the place that pydantic adds."""
    return PydanticCustomError("suite", "{message}", {"message": message, "hint": hint})


def build_type_error(message: str, hint: str = "") -> PydanticCustomError:
    """Return a validator's error for a wrong kind; `message` follows the key's name: ``takes a text``."""
    return PydanticCustomError("suite_kind", "{message}", {"message": message, "hint": hint})


def add_problem(info: ValidationInfo, place: YamlPlace | None, message: str, hint: str = "") -> None:
    """Add a problem and continue; without a collector, raise."""
    if not isinstance(info.context, Problems):
        raise build_value_error(message, hint)
    info.context.add(place, message, hint)


class SuiteModelBase(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, use_attribute_docstrings=True, protected_namespaces=()
    )
    _source: YamlMapping | None = PrivateAttr(default=None)
    hints: ClassVar[Mapping[str, str]] = {}
    """Unknown but common keys -> the right key."""

    nullable: ClassVar[frozenset[str]] = frozenset()
    """Keys that may be null: a value to compare with, or an explicit "none"."""

    @classmethod
    def known_keys(cls) -> tuple[str, ...]:
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:  # noqa: ARG003 (for those who override it)
        return data

    @model_validator(mode="wrap")
    @classmethod
    def _validate_mapping(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(data, cls):
            return data
        taken, known = cls.prepare_value(data, info), cls.known_keys()
        if not isinstance(taken, Mapping):
            raise build_type_error(f"takes a mapping of {', '.join(known)}; not {describe_value(data)}")
        unknown = [key for key in taken if key not in known]
        for key in unknown:
            hint = cls.hints.get(str(key)) or suggest_name(str(key), known)
            add_problem(info, get_yaml_place(taken, key, key=True), f"unknown key `{key}`", hint)
        for key, field in zip(known, cls.model_fields.values(), strict=True):
            if key in taken and taken[key] is None and key not in cls.nullable and not field.is_required():
                place = get_yaml_place(taken, key, key=True)
                add_problem(info, place, f"`{key}` has no value", "give it one, or remove the key")
                unknown.append(key)
        made = handler({key: value for key, value in taken.items() if key not in unknown})
        if isinstance(data, YamlMapping):
            made._source = data  # noqa: SLF001 (its own)
        return made

    @property
    def place(self) -> YamlPlace | None:
        return get_yaml_place(self._source)

    def at(self, *path: object) -> YamlPlace | None:
        return find_yaml_place_of_path(self._source, path) if self._source is not None else None

    @property
    def given_values(self) -> dict[str, Any]:
        fields = type(self).model_fields.items()
        return {field.alias or name: getattr(self, name) for name, field in fields if name in self.model_fields_set}

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self.given_values)


def describe_value(value: object) -> str:
    return get_type_name(value) if value is None else f"{get_type_name(value)} {quote(value, 60)}"


def collect_validation_errors(
    error: ValidationError, root: object, problems: Problems, at: YamlPlace | None = None
) -> None:
    """Add pydantic's errors to `problems`, with places in `root`; `at` is the place of a root without one."""
    for each in error.errors(include_url=False):
        if each["type"] == "too_short" and len(each["input"]) >= each["ctx"]["min_length"]:
            continue  # pydantic counts the items that are right; what is wrong with the others is told
        place = find_yaml_place_of_path(root, each["loc"]) or at
        message, hint = _describe_refusal(each)
        problems.add(place, message, hint)


def _describe_refusal(error: ErrorDetails) -> tuple[str, str]:
    names = [str(step) for step in error["loc"] if isinstance(step, str) and not step.startswith("(")]
    where = f"`{names[-1]}`" if names else ""
    context = error.get("ctx") or {}
    if error["type"] in ("suite", "suite_kind"):
        named = where and error["type"] == "suite_kind"
        return f"{where} {context['message']}" if named else str(context["message"]), str(context["hint"])
    if error["type"] == "missing":
        return f"{where} is missing", ""
    least = context.get("min_length", 1)
    wanted = {
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "a mapping",
        "mapping_type": "a mapping",
        "literal_error": f"one of {context.get('expected', '')}",
        "too_short": "at least one item" if least == 1 else f"at least {least} items",
    }.get(error["type"])
    if wanted:
        short = error["type"] == "too_short" and not error["input"]
        given = "an empty list" if short else describe_value(error["input"])
        return f"{where} takes {wanted}, not {given}", "begin each item with `- `" if wanted == "a list" else ""
    return f"{where}: {error['msg']}", ""
