"""Values as texts, and back: JSON as it is, objects as data plus the path of their class. No pickle, and no code from a file.

    None, bool, int, float, str, list, dict of str -> JSON        tuple, enum, dataclass, pydantic object -> {"$type": ..., ...}
    anything else -> NotCacheable                                 a text that holds a credential -> NotCacheable

What comes back must be what went in, type by type: the encoder decodes its own text and compares, so that a value which would come
back different is not kept at all. Rebuilding takes only classes that this process has imported already, or those of a known SDK
(`KNOWN`), and of those only dataclasses, enums and pydantic models: a path like ``os:system`` is refused before anything runs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

KNOWN = frozenset(
    {
        "anthropic",
        "cohere",
        "google",
        "groq",
        "langchain_core",
        "litellm",
        "llmproxy",
        "mistralai",
        "openai",
        "pydantic_ai",
        "together",
    }
)
"""Packages whose classes answers are made of: imported where a kept answer needs one and the program has not done it yet."""

_TAG = "$type"
_PLAIN = (bool, int, float, str)
_BUILDS = ("name", "alias")
"""Ways of writing a pydantic object's fields down, tried in order."""


class NotCacheable(Exception):
    """This value cannot be kept, for the reason that it says."""


class NotRebuildable(Exception):
    """This text names a class that must not, or cannot, be rebuilt here."""


def encode(value: object) -> str:
    """Return the text of a value. Raises NotCacheable if `decode` would not give back the same."""
    try:
        text = json.dumps(_tree(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        back = decode(text)
    except NotCacheable:
        raise
    except (ValueError, TypeError, RecursionError, NotRebuildable) as error:
        raise NotCacheable(f"{_kind(value)}: {str(error) or type(error).__name__}") from error
    if not _same(value, back):
        raise NotCacheable(f"{_kind(value)}: it would not come back as it is")
    if _holds_credential(text):
        raise NotCacheable("it holds what looks like a credential, and none is ever kept")
    return text


def decode(text: str) -> Any:  # noqa: ANN401 - whatever is cached
    """Return the value of a text.

    Raises:
        ValueError: it is none of `encode`'s.
        NotRebuildable: it names a class that is not imported here and belongs to no known SDK, or that is no class of values.

    """
    return _value(json.loads(text))


# -- writing


def _tree(value: object) -> object:
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_tree(each) for each in value]
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise NotCacheable("a dict whose keys are not all texts")
        made = {key: _tree(each) for key, each in value.items()}
        return {_TAG: "dict", "items": made} if _TAG in value else made
    if type(value) is tuple:
        return {_TAG: "tuple", "items": [_tree(each) for each in value]}
    if isinstance(value, Enum):
        return {_TAG: "enum", "class": _locatable(value), "name": value.name}
    if _is_model(value):
        return _model_tree(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _dataclass_tree(value)
    raise NotCacheable(f"{_kind(value)}: neither JSON nor a pydantic or dataclass object")


def _dataclass_tree(value: Any) -> object:  # noqa: ANN401 - whatever is cached
    names = [each.name for each in fields(value)]
    if extra := set(getattr(value, "__dict__", ())) - set(names):
        raise NotCacheable(f"{_kind(value)}: it has more than its fields ({', '.join(sorted(extra))})")
    there = {name: _tree(getattr(value, name, None)) for name in names}
    return {_TAG: "dataclass", "class": _locatable(value), "fields": there}


def _model_tree(value: Any) -> object:  # noqa: ANN401 - whatever is cached
    from pydantic import BaseModel

    for build in _BUILDS:
        try:
            data = BaseModel.model_dump(value, mode="json", by_alias=build == "alias", warnings=False)
            tree = {
                _TAG: "pydantic",
                "class": _locatable(value),
                "by": build,
                "data": data,
                "set": sorted(value.model_fields_set),
            }
            if _same(value, _model(type(value), tree)):
                return tree
        except (ValueError, TypeError, NotRebuildable):
            continue
    raise NotCacheable(f"{_kind(value)}: its data does not make the same object again")


def _locatable(value: object) -> str:
    path = class_path(type(value))
    try:
        if found_class(path) is type(value):
            return path
    except NotRebuildable as error:
        raise NotCacheable(f"{_kind(value)}: {error}") from error
    raise NotCacheable(f"{_kind(value)}: {path} is another class")


# -- reading


def _value(tree: Any) -> Any:  # noqa: ANN401 - whatever is cached
    if isinstance(tree, list):
        return [_value(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    tag = tree.get(_TAG)
    if tag is None:
        return {key: _value(each) for key, each in tree.items()}
    if tag == "dict":
        return {key: _value(each) for key, each in _part(tree, "items", dict).items()}
    if tag == "tuple":
        return tuple(_value(each) for each in _part(tree, "items", list))
    kind = found_class(_part(tree, "class", str))
    if tag == "enum" and issubclass(kind, Enum):
        return _member(kind, _part(tree, "name", str))
    if tag == "dataclass" and is_dataclass(kind):
        return _dataclass(kind, _part(tree, "fields", dict))
    if tag == "pydantic" and _is_model_class(kind):
        return _model(kind, tree)
    raise NotRebuildable(f"{tree['class']} is no {tag} here")


def _part[T](tree: Mapping[str, object], name: str, kind: type[T]) -> T:
    found = tree.get(name)
    if not isinstance(found, kind):
        raise ValueError(f"{_TAG} {tree.get(_TAG)!r} without its {name!r}")  # noqa: TRY004 (what is wrong is the text)
    return found


def _member(kind: type[Enum], name: str) -> Enum:
    try:
        return kind[name]
    except KeyError as error:
        raise NotRebuildable(f"{class_path(kind)} has no member {name}") from error


def _dataclass(kind: type, there: Mapping[str, object]) -> object:
    """Return an object with these fields. Nothing of the class runs: what it would compute is in the fields already."""
    names = {each.name for each in fields(cast("Any", kind))}
    if unlike := set(there) ^ names:
        raise NotRebuildable(f"the fields of {class_path(kind)} have changed: {', '.join(sorted(unlike))}")
    made: object = object.__new__(kind)
    for name, tree in there.items():
        object.__setattr__(made, name, _value(tree))
    return made


def _model(kind: Any, tree: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever is cached
    from pydantic import BaseModel

    data, by_name = _part(tree, "data", dict), tree.get("by") == "name"
    validate = cast("Any", BaseModel.model_validate).__func__  # what SDKs override means something else
    try:
        made = validate(kind, data, by_alias=not by_name, by_name=by_name)
    except Exception as error:  # the class's own validators and constructor may raise anything
        raise NotRebuildable(f"{class_path(kind)} does not take the data that is kept: {error}") from error
    object.__setattr__(made, "__pydantic_fields_set__", set(_part(tree, "set", list)))
    return made


# -- classes


def class_path(kind: type) -> str:
    """Return the path of a class, ``module:qualified.name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def found_class(path: str) -> type:
    """Return the class at a path. Raises NotRebuildable for one that is not there, and imports nothing but known SDKs."""
    module_name, _, names = path.partition(":")
    module = sys.modules.get(module_name) or _import_value(module_name)
    found: object = module
    for name in names.split("."):
        found = vars(found).get(name) if found is module or isinstance(found, type) else None
    if not isinstance(found, type) or not (issubclass(found, Enum) or is_dataclass(found) or _is_model_class(found)):
        raise NotRebuildable(f"there is no class of values at {path}")
    return found


def _import_value(name: str) -> object:
    parts = name.split(".")
    if parts[0] not in KNOWN or "__main__" in parts or not all(part.isidentifier() for part in parts):
        raise NotRebuildable(f"the module {name} is not imported; import it before the call")
    if parts[0] == "litellm":
        os.environ.setdefault(
            "LITELLM_LOCAL_MODEL_COST_MAP", "True"
        )  # else its import loads a price list from the network
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NotRebuildable(f"the module {name} cannot be imported ({error})") from error


def _is_model(value: object) -> bool:
    return _is_model_class(type(value))


def _is_model_class(kind: type) -> bool:
    """Tell whether it is a pydantic model; nobody has one who has not imported pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


# -- comparing, and what must not be kept


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever is cached
    """Tell whether two values are equal, type by type; of models the private attributes do not count."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(value, other[key]) for key, value in one.items())
    if _is_model(one):
        return _same(_public(one), _public(other)) and _same(one.__pydantic_extra__, other.__pydantic_extra__)
    if is_dataclass(one) and not isinstance(one, type):
        names = [each.name for each in fields(one)]
        return all(_same(getattr(one, name, None), getattr(other, name, None)) for name in names)
    return bool(one == other)


def _public(model: object) -> dict[str, object]:
    """Return a model's fields; litellm hangs the time that a call took beside them."""
    return {name: value for name, value in vars(model).items() if not name.startswith("_")}


def _holds_credential(text: str) -> bool:
    from llmproxy.core.secrets.redact import Redactor  # late: many patterns to compile

    return Redactor().text(text) != text


def _kind(value: object) -> str:
    return class_path(type(value)).removeprefix("builtins:")
