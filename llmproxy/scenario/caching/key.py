"""The key of a call: what the function is and what it is called with, and nothing that a re-run changes.

    cache_key, sample, module + qualified name, bound arguments (defaults, keywords), declared state -> ``call:`` + sha256

`self` is not an argument: of the object count its class and the fields that `state` names. Of an :class:`AgentInput` count the
conversation and who is asked, not the thread id; of a configuration the default model, not how verbose it is. What looks like a
credential counts as "a credential", whichever it is, so a new key finds the old answers and no digest tells one. An argument that has
no value of its own (a client, an open file, a function made on the spot) is no reason to guess: the call is then not cached (`NotKeyable`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from llmproxy.scenario.caching.values import class_path
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput

if TYPE_CHECKING:
    from llmproxy.core.secrets.redact import Redactor

_TEXTUAL = (
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    Decimal,
    Fraction,
    UUID,
    PurePath,
    complex,
    range,
)
"""Values that their `repr` tells completely."""
_SECRET_NAMES = frozenset(
    {
        "accesstoken",
        "authorization",
        "authtoken",
        "bearertoken",
        "clientsecret",
        "idtoken",
        "passwd",
        "password",
        "privatekey",
        "refreshtoken",
        "secretkey",
    }
)
"""Names, without their dashes, whose value is a credential whatever it looks like; with everything that ends in ``api_key``."""
_ITSELF = "self"


class NotKeyable(Exception):
    """A call whose arguments cannot be written down."""

    def __init__(self, where: str, kind: str) -> None:
        """Say which argument it is, and of which class its value."""
        super().__init__(f"{where} is a {kind}, which has no value that a key could be made of")
        self.where = where
        self.kind = kind


@dataclass(frozen=True)
class Function:
    function: Callable[..., Any]
    ignore: frozenset[str] = frozenset()
    state: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that the function does not have: a name with a mistake in it would silently do nothing.

        Raises:
            TypeError: it is no function, or `ignore` and `state` are no lists of names.
            ValueError: they name what there is not.

        """
        if not inspect.isroutine(self.function):
            raise TypeError(f"scenario.cache decorates functions and methods, not {self.function!r}")
        parameters = self._signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        if (unknown := self.ignore - set(parameters)) and not takes_any:
            there = ", ".join(parameters) or "none"
            raise ValueError(
                f"scenario.cache(ignore={sorted(unknown)!r}): {self.name} has no such parameter; it has: {there}"
            )
        if self.state and not self._has_self:
            raise ValueError(f"scenario.cache(state={list(self.state)!r}): {self.name} is no method with a `self`")

    @property
    def name(self) -> str:
        """Its module and qualified name. A lambda's name says nothing, so its code joins it."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        return f"{name}:{_code_digest(self.function)}" if "<lambda>" in name else name

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, cache_key: str, sample: int = 1) -> str:
        """Return the key of a call.

        Raises:
            TypeError: the function does not take these arguments.
            NotKeyable: one of them cannot be written down.
            AttributeError: `self` lacks a field of `state`.

        """
        from llmproxy.core.secrets.redact import Redactor  # late: its tables take longer than all of this to import

        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        generation = {"cache_key": cache_key, "sample": sample, "function": self.name}
        text = _dump_json({**generation, **self._describe_call(dict(bound.arguments), _Writer(None))})
        if Redactor().text(text) != text:  # something in it may be a credential, which is rare
            text = _dump_json({**generation, **self._describe_call(dict(bound.arguments), _Writer(Redactor()))})
        return "call:" + hashlib.sha256(text.encode("ascii")).hexdigest()

    def _describe_call(self, given: dict[str, Any], writer: _Writer) -> dict[str, object]:
        owner = self._of_self(given.pop(next(iter(given))), writer) if self._has_self else {}
        return {**owner, "arguments": self._describe_arguments(given, writer)}

    def _of_self(self, owner: object, writer: _Writer) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in self.state:
            value = owner
            for name in path.split("."):
                value = getattr(value, name)
            found[path] = writer.member(path.rpartition(".")[2], value, f"self.{path}")
        return {"class": class_path(owner if isinstance(owner, type) else type(owner)), "state": found}

    def _describe_arguments(self, given: Mapping[str, Any], writer: _Writer) -> dict[str, object]:
        written: dict[str, object] = {}
        for name, value in given.items():
            if name in self.ignore:
                continue
            if self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                value = {key: each for key, each in value.items() if key not in self.ignore}  # noqa: PLW2901 - the value without them is the value
            written[name] = writer.member(name, value, f"argument {name!r}")
        return written

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def _has_self(self) -> bool:
        return next(iter(self._signature.parameters), "") == _ITSELF


class _Writer:
    """Writes values down as JSON: different ones differently, secrets all alike."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._inside: set[int] = set()

    def member(self, name: str, value: object, where: str) -> object:
        """Write what stands under a name, which may tell that it is a secret."""
        if isinstance(value, str | None) and _is_secret(name):
            return {"$": "credential"}
        return self.tree(value, where)

    def tree(self, value: object, where: str) -> object:
        """Write any value. Raises NotKeyable."""
        if value is None or type(value) in (bool, int):
            return value
        if type(value) is str:
            return self._text(value)
        if type(value) is float:
            return {"$": "float", "is": repr(value)}
        if id(value) in self._inside:
            raise NotKeyable(where, f"{_kind(value)} that contains itself")
        self._inside.add(id(value))
        try:
            return self._container(value, where)
        except RecursionError:
            raise NotKeyable(where, f"{_kind(value)} that is nested too deeply") from None
        finally:
            self._inside.discard(id(value))

    def _text(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.text(text)

    def _container(self, value: object, where: str) -> object:
        if isinstance(value, Enum):
            return {"$": "enum", "of": _kind(value), "is": value.name}
        if isinstance(value, (AgentInput, ScenarioState, ScenarioConfig)):
            return {"$": _kind(value), "is": self._members(_semantic(value), where)}
        if isinstance(value, (list, tuple)):
            items = [self.tree(each, f"{where}[{n}]") for n, each in enumerate(value)]
            return items if type(value) is list else {"$": _kind(value), "is": items}
        if isinstance(value, Mapping):
            return self._mapping(value, where)
        if isinstance(value, (set, frozenset)):
            return {"$": "set", "is": sorted((self.tree(each, where) for each in value), key=_dump_json)}
        if isinstance(value, (bytes, bytearray)):
            return {"$": "bytes", "is": bytes(value).hex()}
        if isinstance(value, (bool, int, float, str, *_TEXTUAL)):
            return {"$": _kind(value), "is": self._text(repr(value))}
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> object:  # noqa: ANN401 - whatever is cached
        if isinstance(value, type):
            return {"$": "class", "is": class_path(value)}
        if isinstance(value, ModuleType):
            return {"$": "module", "is": value.__name__}
        if isinstance(value, FunctionType) and "<" not in value.__qualname__:
            return {"$": "function", "is": f"{value.__module__}:{value.__qualname__}"}
        pydantic = sys.modules.get("pydantic")
        if pydantic is not None and isinstance(value, (pydantic.SecretStr, pydantic.SecretBytes)):
            return {"$": "credential"}
        if pydantic is not None and isinstance(value, pydantic.BaseModel):
            members = {**vars(value), **(value.__pydantic_extra__ or {})}
            public = {name: each for name, each in members.items() if not name.startswith("_")}
            return {"$": _kind(value), "is": self._members(public, where)}
        if is_dataclass(value):
            members = {each.name: getattr(value, each.name, None) for each in fields(value)}
            return {"$": _kind(value), "is": self._members(members, where)}
        raise NotKeyable(where, _kind(value))

    def _members(self, members: Mapping[str, object], where: str) -> dict[str, object]:
        return {name: self.member(name, each, f"{where}.{name}") for name, each in members.items()}

    def _mapping(self, value: Mapping[Any, object], where: str) -> object:
        if all(type(key) is str for key in value):
            inside = {key: self.member(key, each, f"{where}[{key!r}]") for key, each in value.items()}
            plain = type(value) is dict and "$" not in inside
            return inside if plain else {"$": _kind(value), "is": inside}
        pairs = [[self.tree(key, where), self.tree(each, f"{where}[{key!r}]")] for key, each in value.items()]
        return {"$": _kind(value), "pairs": sorted(pairs, key=_dump_json)}


def _semantic(value: AgentInput | ScenarioState | ScenarioConfig) -> dict[str, object]:
    """Return what of our own values makes a difference to an answer."""
    if isinstance(value, ScenarioConfig):
        model = value.default_model
        return {"default_model": ModelConfig(model=model) if isinstance(model, str) else model}
    if isinstance(value, ScenarioState):
        return {
            "description": value.description,
            "messages": value.messages,
            "current_turn": value.current_turn,
            "config": value.config,
        }
    asked = value.judgment_request
    return {
        "messages": value.messages,
        "new_messages": value.new_messages,
        "judgment_request": value.judgment_request is not None,
        "judgment_context": value.judgment_context,
        "scenario_state": value.scenario_state,
        **({"judgment_criteria": asked.criteria} if asked is not None and asked.criteria is not None else {}),
    }


def _is_secret(name: str) -> bool:
    """Tell whether a name is that of a credential. ``key``, ``token`` and ``secret`` are not: too many inputs are called so."""
    plain = name.lower().replace("_", "").replace("-", "")
    return plain in _SECRET_NAMES or plain.endswith("apikey")


def _dump_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _kind(value: object) -> str:
    return class_path(type(value)).removeprefix("builtins:")


def _code_digest(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    told = repr((getattr(code, "co_code", b""), getattr(code, "co_names", ()), _constants(code)))
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _constants(code: object) -> Collection[object]:
    """Return the constants of a code object; of code inside code its own, whose `repr` would name an address."""
    return [_constants(each) if hasattr(each, "co_code") else each for each in getattr(code, "co_consts", ())]
