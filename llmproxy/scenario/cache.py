"""``@scenario.cache``: returns a function's stored result when it is called again with the same arguments.

The first result goes through the file too, so that a first and a second run see the same types. Values are stored as
text (`cache_store`): JSON as it is; tuples, enums, dataclasses and pydantic objects as data and their class's path.
Nothing is unpickled, and no code of a class runs when its object is restored; only classes are looked up that this
process has imported, or that belong to a known SDK.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import importlib
import inspect
import json
import operator
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any, cast, overload
from uuid import UUID

from pydantic import BaseModel

from llmproxy.scenario.cache_store import (
    CacheSlot,
    CacheStore,
    FunctionCacheMode,
    get_cached_or_compute,
    get_cached_or_compute_sync,
)
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput
from llmproxy.scenario.values.run_ids_and_options import context_scenario

_HERE = f"{Path(__file__).parent}{os.sep}"


class FunctionCacheWarning(UserWarning):
    """A call could not be cached, or a stored value not be used."""


class NotCacheable(Exception): ...


_TYPE = "$type"
_KNOWN = frozenset(
    {"anthropic", "cohere", "google", "groq", "langchain_core", "litellm", "llmproxy", "mistralai", "openai"}
    | {"pydantic_ai", "together"}
)  # fmt: skip
"""Packages with classes of answers: imported if a stored value needs one."""


def serialize_cached_value(value: object) -> str:
    """Return a value's text. Raises NotCacheable: it would not be restored, or it contains a credential."""
    from llmproxy.core.secrets.redact import Redactor  # many patterns to compile

    try:
        tree = _CachedValueWriter().write(value, _format_kind(value))
        text = json.dumps(tree, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise NotCacheable(f"{_format_kind(value)}: {str(error) or type(error).__name__}") from error
    if Redactor(os.environ).text(text) != text:
        raise NotCacheable("it holds what looks like a credential, and none is ever kept")
    return text


def deserialize_cached_value(text: str) -> Any:
    """Return a text's value. Raises ValueError: no JSON; NotCacheable: not one of ours, or its class changed."""
    tree = json.loads(text)
    try:
        return _restore_value(tree)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NotCacheable(f"what is kept is not understood ({error!r})") from error


class _CachedValueWriter:
    """Serialises a restorable value as JSON, or raises NotCacheable. `where` is its path for errors."""

    def write(self, value: Any, where: str) -> object:
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is str:
            return self.write_text(value)
        if type(value) is list:
            return [self.write(each, f"{where}[{n}]") for n, each in enumerate(value)]
        if type(value) is tuple:
            return {_TYPE: "tuple", "is": self.write(list(value), where)}
        if type(value) is dict and all(type(name) is str for name in value):
            members = self.write_members(value, where)
            return {_TYPE: "dict", "is": members} if _TYPE in value else members
        if isinstance(value, Enum) and type(value).__members__.get(value.name) is value:  # no combination of flags
            return {_TYPE: self.write_class(value, where), "is": value.name}
        return self.write_object(value, where)

    def write_text(self, text: str) -> str:
        return text

    def write_members(self, members: Mapping[str, object], where: str) -> dict[str, object]:
        return {name: self.write(each, f"{where}.{name}") for name, each in members.items()}

    def write_class(self, value: object, where: str) -> str:
        path = class_path(type(value))
        if find_class_by_path(path) is not type(value):
            raise NotCacheable(f"{where}: {path} is another class")
        return path

    def write_object(self, value: Any, where: str) -> object:
        """Write a pydantic object or a dataclass; private attributes of an SDK's are ignored."""
        if (members := _find_members(value)) is None:
            raise NotCacheable(f"{where} is a {_format_kind(value)}: neither JSON nor a pydantic or dataclass object")
        tree = {_TYPE: self.write_class(value, where), "is": self.write_members(members, where)}
        if isinstance(value, BaseModel):
            tree["gone"] = sorted(type(value).model_fields.keys() - members.keys())  # litellm deletes what is not said
            tree["extra"] = self.write_members(value.model_extra or {}, where)
            tree["set"] = sorted(value.model_fields_set)
        return tree


def _find_members(value: Any) -> dict[str, Any] | None:
    """Return the fields of a pydantic object or dataclass without other state; None for any other."""
    if isinstance(value, BaseModel):
        defaults = {name: each.get_default() for name, each in type(value).__private_attributes__.items()}
        changed = [name for name, each in (value.__pydantic_private__ or {}).items() if each != defaults[name]]
        if changed and type(value).__module__.partition(".")[0] not in _KNOWN:
            raise NotCacheable(f"{_format_kind(value)}: its private attributes are set ({', '.join(changed)})")
        return {name: each for name, each in vars(value).items() if name in type(value).model_fields}
    if not is_dataclass(value) or isinstance(value, (list, dict, tuple, set, str, int, float, type)):
        return None
    names = [each.name for each in fields(value)]
    if more := set(getattr(value, "__dict__", ())) - set(names):
        raise NotCacheable(f"{_format_kind(value)}: it has more than its fields ({', '.join(sorted(more))})")
    return {name: getattr(value, name, None) for name in names}


def _restore_value(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_restore_value(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    tag = tree.get(_TYPE)
    if tag is None or tag == "dict":
        return _restore_members(tree if tag is None else tree["is"])
    if tag == "tuple":
        return tuple(_restore_value(tree["is"]))
    kind: Any = find_class_by_path(tag)
    return kind[tree["is"]] if issubclass(kind, Enum) else _read_object(kind, tree)


def _restore_members(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _restore_value(each) for name, each in members.items()}


def _read_object(kind: Any, tree: Mapping[str, Any]) -> object:
    """Return an object with the fields that are kept; fields that a model did not have then get their default."""
    made, members = object.__new__(kind), _restore_members(tree["is"])
    if issubclass(kind, BaseModel):
        known = {name: each for name, each in kind.model_fields.items() if name not in tree["gone"]}
        new = {name: each for name, each in known.items() if name not in members and not each.is_required()}
        members |= {name: each.get_default(call_default_factory=True) for name, each in new.items()}
        private = {name: each.get_default() for name, each in kind.__private_attributes__.items()}
        extra = _restore_members(tree["extra"]) if kind.model_config.get("extra") == "allow" else None
        state = {"__pydantic_private__": private or None, "__pydantic_extra__": extra}
        BaseModel.__setstate__(made, state | {"__pydantic_fields_set__": set(tree["set"])})
    else:
        known = {each.name: each for each in fields(kind)}
    if unlike := members.keys() ^ known.keys():
        raise NotCacheable(f"the fields of {tree[_TYPE]} have changed: {', '.join(sorted(unlike))}")
    for name, each in members.items():
        object.__setattr__(made, name, each)
    return made


def class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class_by_path(path: str) -> type:
    """Return the class at a path; of modules that are not imported, known SDKs only. Raises NotCacheable."""
    module_name, _, names = path.partition(":")
    module: object = sys.modules.get(module_name)
    if module is None:
        parts = module_name.split(".")
        if parts[0] not in _KNOWN or "__main__" in parts or not all(part.isidentifier() for part in parts):
            raise NotCacheable(f"the module {module_name} is not imported; import it before the call")
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise NotCacheable(f"the module {module_name} cannot be imported ({error})") from error
    found: object = module
    for name in names.split("."):
        found = vars(found).get(name) if found is module or isinstance(found, type) else None
    if not isinstance(found, type) or not (issubclass(found, Enum | BaseModel) or is_dataclass(found)):
        raise NotCacheable(f"there is no class of values at {path}")
    return found


def _find_under_its_name(kind: type) -> object:
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def _format_kind(value: object) -> str:
    return class_path(type(value)).removeprefix("builtins:")


_REPR = (dt.date, dt.time, dt.timedelta, dt.tzinfo, Decimal, UUID, PurePath, complex, range, bytes, str, int, float)
"""Types whose `repr` identifies the value; of the last three only subclasses get here."""
_OWN_REPR = (dt.datetime, *(each for each in _REPR if each is not dt.tzinfo))
"""Of these a subclass may have a `repr` that leaves the value out."""
_SECRET_NAMES = frozenset(
    {"accesstoken", "authorization", "authtoken", "bearertoken", "clientsecret", "idtoken", "passwd", "password"}
    | {"privatekey", "refreshtoken", "secretkey"}
)  # fmt: skip
"""Names, without dashes, whose value is a credential; also all that end in ``api_key``."""
_CREDENTIAL = {_TYPE: "credential"}
_OF_INPUT = ("messages", "new_messages", "judgment_context", "scenario_state")
_OF_STATE = ("description", "messages", "current_turn", "config")


class _KeyWriter(_CachedValueWriter):
    """Serialises a call for its key: different values differently, all credentials alike."""

    def __init__(self) -> None:
        from llmproxy.core.secrets.redact import Redactor  # many patterns to compile

        self.write_text = Redactor().text  # type: ignore[method-assign]

    def write_members(self, members: Mapping[str, object], where: str) -> dict[str, object]:
        return {name: self.write_member(name, each, f"{where}.{name}") for name, each in members.items()}

    def write_member(self, name: str, value: object, where: str) -> object:
        """Write what stands under a name; ``key``, ``token``, ``secret`` are too usual to mean a credential here."""
        plain = name.lower().replace("_", "").replace("-", "")
        secret = plain in _SECRET_NAMES or plain.endswith("apikey")
        return _CREDENTIAL if secret and isinstance(value, str | None) else self.write(value, where)

    def write_class(self, value: object, where: str) -> str:  # noqa: ARG002 - any class tells values apart
        return class_path(type(value))

    def write_object(self, value: Any, where: str) -> object:
        """Write a value outside JSON. Raises NotCacheable for one without a value: a client, an open file."""
        kind = class_path(type(value))
        if isinstance(value, Mapping) and all(type(name) is str for name in value):
            return {_TYPE: kind, "is": self.write_members(value, where)}
        if isinstance(value, Mapping):
            pairs = [[self.write(name, where), self.write(each, f"{where}[{name!r}]")] for name, each in value.items()]
            return {_TYPE: kind, "pairs": sorted(pairs, key=json.dumps)}
        if isinstance(value, (list, tuple)):
            return {_TYPE: kind, "is": self.write(list(value), where)}
        if isinstance(value, (set, frozenset)):
            return {_TYPE: kind, "is": sorted((self.write(each, where) for each in value), key=json.dumps)}
        if isinstance(value, _REPR):
            base = next((each for each in _OWN_REPR if isinstance(value, each)), type(value))
            return {_TYPE: kind, "is": self.write_text(base.__repr__(value))}
        if isinstance(value, type) and _find_under_its_name(value) is not value:
            raise NotCacheable(
                f"{where} is the class {class_path(value)}, and the module has no such class of this name"
            )
        if isinstance(value, type) or (isinstance(value, FunctionType) and "<" not in value.__qualname__):
            return {_TYPE: kind, "is": f"{value.__module__}:{value.__qualname__}"}
        if hasattr(type(value), "get_secret_value"):  # pydantic's; a mock of any kind has it too, but not its type
            return _CREDENTIAL
        if (members := _find_key_members(value)) is None:
            raise NotCacheable(f"{where} is a {_format_kind(value)}, which has no value that a key could be made of")
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {_TYPE: kind, "is": self.write_members({**members, **extra}, where)}


def _find_key_members(value: object) -> Mapping[str, object] | None:
    """Return the members of an object that affect an answer: of our own, without ids and verbosity."""
    if isinstance(value, ScenarioConfig):
        model = value.default_model
        return {"default_model": ModelConfig(model=model) if isinstance(model, str) else model}
    if isinstance(value, ScenarioState):
        return {name: getattr(value, name) for name in _OF_STATE}
    if isinstance(value, AgentInput):
        asked = value.judgment_request
        said = {name: getattr(value, name) for name in _OF_INPUT}
        return said | {"judgment_request": asked is not None, "criteria": asked and asked.criteria}
    return _find_members(value)


@dataclass(frozen=True)
class CachedFunction:
    function: Callable[..., Any]
    ignore: frozenset[str] = frozenset()
    state: tuple[str, ...] = ()
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Refuse unknown names, which would have no effect. Raises TypeError: no function; ValueError."""
        if not inspect.isroutine(self.function):
            raise TypeError(f"scenario.cache decorates functions and methods, not {self.function!r}")
        parameters = self._signature.parameters
        unknown = self.ignore - set(parameters)
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            said = f"scenario.cache(ignore={sorted(unknown)!r}): {self.name} has no such parameter"
            raise ValueError(f"{said}; it has: {', '.join(parameters) or 'none'}")
        if self.state and not self._is_method:
            raise ValueError(f"scenario.cache(state={list(self.state)!r}): {self.name} is no method with a `self`")

    @property
    def name(self) -> str:
        """Its module and qualified name. A lambda's name is ambiguous, so its code is added."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        if "<lambda>" not in name:
            return name
        code = self.function.__code__
        told = repr((code.co_code, code.co_names, _list_code_constants(code)))
        return f"{name}:{hashlib.sha256(told.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"

    def call_key(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, cache_key: str, sample: int = 1) -> str:
        """Return the key of function, arguments, class, own `state`. Raises TypeError, NotCacheable, AttributeError."""
        parameters = self._signature.parameters
        counted = {name: each for name, each in kwargs.items() if name in parameters or name not in self.ignore}
        bound = self._signature.bind(*args, **counted)
        bound.apply_defaults()
        given, writer = bound.arguments, _KeyWriter()
        about: dict[str, Any] = {"cache_key": cache_key, "sample": sample, "function": self.name}
        if self._is_method:
            owner = given.pop("self")
            about["class"] = class_path(owner if isinstance(owner, type) else type(owner))
            about["state"] = {
                path: writer.write_member(path.rpartition(".")[2], operator.attrgetter(path)(owner), f"self.{path}")
                for path in self.state
            }
        try:
            about["arguments"] = {
                name: writer.write_member(name, each, f"argument {name!r}")
                for name, each in given.items()
                if name not in self.ignore
            }
        except RecursionError:
            raise NotCacheable("an argument is nested too deeply, or contains itself") from None
        return "call:" + hashlib.sha256(json.dumps(about, sort_keys=True).encode("ascii")).hexdigest()

    def find_slot(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CacheSlot | None:
        running, configured = context_scenario.get(), ScenarioConfig.default_config
        config, sample = (configured, 1) if running is None else (running.config, running.options.sample)
        cache_key = config.cache_key if config else None
        store = CacheStore.from_environment() if cache_key else None
        if store is None or not cache_key:
            return None
        try:
            key = self.call_key(args, kwargs, cache_key=cache_key, sample=sample)
        except NotCacheable as error:
            self.warn_once(error, f"{self.name} is not cached: {error}. Leave it out: scenario.cache(ignore=[...])")
            return None
        return _ResultSlot(store, key, self.name, cache_key, sample, self)

    def warn_once(self, why: object, text: str) -> None:
        if str(why) not in self._warned:
            self._warned.add(str(why))
            warnings.warn(text, FunctionCacheWarning, skip_file_prefixes=(_HERE,))

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def _is_method(self) -> bool:
        return next(iter(self._signature.parameters), "") == "self"


def _list_code_constants(code: object) -> Collection[object]:
    """Return the constants of a code object; of nested code recursively, whose `repr` has an address."""
    return [_list_code_constants(each) if hasattr(each, "co_code") else each for each in getattr(code, "co_consts", ())]


@dataclass(frozen=True)
class _ResultSlot(CacheSlot):
    of: CachedFunction

    def encode(self, made: Any) -> str | None:
        try:
            return serialize_cached_value(made)
        except NotCacheable as error:
            self.of.warn_once(error, f"what {self.name} returned is not cached: {error}")
            return None

    def restore(self, text: str | None) -> tuple[Any] | None:
        try:
            return None if text is None else (deserialize_cached_value(text),)
        except NotCacheable as error:
            if self.store.mode is FunctionCacheMode.REPLAY:
                raise self.build_miss_error(f"Its kept value cannot be used: {error}.") from error
            self.of.warn_once(error, f"a kept value of {self.name} cannot be used, and it is called: {error}")
            return None
        except ValueError as error:
            raise self.store.build_corrupt_error(f"the value under {self.key} cannot be read ({error})") from error

    def record_hit(self) -> None:
        if (running := context_scenario.get()) is not None:
            running.from_cache.append(self.name)


@overload
def cache[**P, R](ignore: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def cache[**P, R](
    ignore: Sequence[str] = (), *, state: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def cache(ignore: Any = (), *, state: Sequence[str] = ()) -> Any:
    """Cache a function or method, sync or async, while a cache key is active; also as ``@scenario.cache``.

    `ignore`: parameters that do not count (`self` never does); `state`: fields of `self` that do (``["model"]``).
    """
    for name, given in (("ignore", ignore), ("state", state)):
        if isinstance(given, str):
            raise TypeError(f"scenario.cache({name}={given!r}): {name} takes a list of names, [{given!r}]")
    if not isinstance(ignore, (list, tuple, set, frozenset)):
        return _wrap_function(ignore, frozenset(), ())
    return lambda function: _wrap_function(function, frozenset(ignore), tuple(state))


scenario_cache = cache


def _wrap_function(function: Any, ignore: frozenset[str], state: tuple[str, ...]) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_wrap_function(function.__func__, ignore, state))
    cached = CachedFunction(function, ignore, state)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            slot, call_it = cached.find_slot(args, kwargs), functools.partial(function, *args, **kwargs)
            return await (call_it() if slot is None else get_cached_or_compute(slot, call_it))

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        slot, call_it = cached.find_slot(args, kwargs), functools.partial(function, *args, **kwargs)
        return call_it() if slot is None else get_cached_or_compute_sync(slot, call_it)

    return call


# -- names that programs written for LangWatch Scenario may know


class _JoblibMemoryStandIn:
    """Stands in for joblib's memory: it decorates, has a location, and can be cleared."""

    @property
    def location(self) -> str | None:
        store = CacheStore.from_environment()
        return None if store is None else str(store.path.parent)

    def cache[**P, R](self, function: Callable[P, R], ignore: Sequence[str] = (), **_other: object) -> Callable[P, R]:
        return cast("Callable[P, R]", _wrap_function(function, frozenset(ignore or ()), ()))

    def clear(self, warn: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002 (joblib's signature)
        if (store := CacheStore.from_environment()) is not None:
            store.clear()


memory = _JoblibMemoryStandIn()


def get_cache() -> _JoblibMemoryStandIn:
    return memory
