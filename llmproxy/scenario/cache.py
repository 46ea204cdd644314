"""``@scenario.cache``: keep what a function returned, and return it the next time it is called with the same arguments.

    cache key in effect -> key of the call -> kept? its value : call it, keep what it returned, return what was kept

In effect is the cache key of the scenario that runs here, outside of one that of `configure`. Without one, with SCENARIO_CACHE_DIR="",
and for calls and values that cannot be written down (one warning each), the function is simply called. The value of a first call takes
the way through the file too, so that a first and a second run see the same types.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

from llmproxy.scenario.caching.key import Function, NotKeyable
from llmproxy.scenario.caching.store import CacheStore
from llmproxy.scenario.caching.values import NotCacheable, NotRebuildable, decode, encode
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.values.run import context_scenario

_log = logging.getLogger(__name__)


class CacheWarning(UserWarning):
    """A call that should have been cached was not, or a kept value could not be used."""


@overload
def cache[**P, R](ignore: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def cache[**P, R](
    ignore: Sequence[str] = (), *, state: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def cache(ignore: Any = (), *, state: Sequence[str] = ()) -> Any:
    """Cache a function or method, sync or async, while a cache key is in effect.

    Args:
        ignore: parameters that do not count; `self` never does
        state: fields of `self` that count (``["model", "config.temperature"]``)

    Usable as ``@scenario.cache()`` and as ``@scenario.cache``.

    """
    if not isinstance(ignore, (list, tuple, set, frozenset)):
        if isinstance(ignore, str):
            raise TypeError(f"scenario.cache(ignore={ignore!r}): ignore takes a list of names, [{ignore!r}]")
        return _wrap_function(ignore, frozenset(), ())
    if isinstance(state, str):
        raise TypeError(f"scenario.cache(state={state!r}): state takes a list of names, [{state!r}]")
    return lambda function: _wrap_function(function, frozenset(ignore), tuple(state))


scenario_cache = cache


def _wrap_function(function: Any, ignore: frozenset[str], state: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever is cached
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_wrap_function(function.__func__, ignore, state))
    cached = _Cached(Function(function, ignore, state))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever is cached
            return await cached.acall(args, kwargs)

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever is cached
        return cached.call(args, kwargs)

    return call


@dataclass(frozen=True, slots=True)
class _Place:
    store: CacheStore
    key: str
    about: Mapping[str, Any]


@dataclass
class _Cached:
    """A function and what it was already warned about."""

    of: Function
    warned: set[str] = field(default_factory=set)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever is cached
        """Return what the function returns for these arguments, from the cache where it can be."""
        place = self._place(args, kwargs)
        if place is None:
            return self.of.function(*args, **kwargs)
        made = _Made()

        def make() -> str | None:
            made.value = self.of.function(*args, **kwargs)
            made.called = True
            return self._text(made.value)

        found = self._value(place, place.store.remember_sync(place.key, make, place.about), made)
        return self.of.function(*args, **kwargs) if found is _AGAIN else found

    async def acall(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever is cached
        """Return what the async function returns for these arguments, from the cache where it can be."""
        place = self._place(args, kwargs)
        if place is None:
            return await self.of.function(*args, **kwargs)
        made = _Made()

        async def make() -> str | None:
            made.value = await self.of.function(*args, **kwargs)
            made.called = True
            return self._text(made.value)

        found = self._value(place, await place.store.remember(place.key, make, place.about), made)
        return await self.of.function(*args, **kwargs) if found is _AGAIN else found

    def _place(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Place | None:
        """Return where this call is kept; None if it is not."""
        cache_key, sample = _in_effect()
        store = CacheStore.here() if cache_key else None
        if store is None or not cache_key:
            return None
        try:
            key = self.of.key(args, kwargs, cache_key=cache_key, sample=sample)
        except NotKeyable as error:
            self._warn(error.kind, f"{self.of.name} is not cached: {error}. Leave it out: scenario.cache(ignore=[...])")
            return None
        return _Place(store, key, {"name": self.of.name, "cache_key": cache_key, "sample": sample})

    def _text(self, value: object) -> str | None:
        try:
            return encode(value)
        except NotCacheable as error:
            self._warn(str(error), f"what {self.of.name} returned is not cached: {error}")
            return None

    def _value(self, place: _Place, text: str | None, made: _Made) -> object:
        """Return the value of a kept text; the function's own, where it could not be kept or cannot be rebuilt; _AGAIN to call it."""
        if text is None:
            return made.value
        try:
            value = decode(text)
        except NotRebuildable as error:
            self._warn(str(error), f"a kept value of {self.of.name} cannot be used, and it is called: {error}")
            return made.value if made.called else _AGAIN
        except ValueError as error:
            raise place.store.damage_error(f"the value under {place.key} cannot be read ({error})") from error
        if not made.called:
            self._note_hit()
        return value

    def _note_hit(self) -> None:
        """Say that the cache answered: the wire saw nothing of this call, and what it was asked about it cannot know."""
        _log.debug("%s answered from the cache", self.of.name)
        running = context_scenario.get()
        if running is not None:
            running.from_cache.append(self.of.name)

    def _warn(self, why: str, text: str) -> None:
        with self.guard:
            if why in self.warned:
                return
            self.warned.add(why)
        warnings.warn(text, CacheWarning, stacklevel=5)


class _Made:
    """What a call of the function came to."""

    called = False
    value: Any = None


_AGAIN = object()


def _in_effect() -> tuple[str | None, int]:
    """Return the cache key that is in effect here, and the sample."""
    running = context_scenario.get()
    if running is not None:
        return running.config.cache_key, running.options.sample
    configured = ScenarioConfig.default_config
    return (configured.cache_key if configured else None), 1


# -- names that programs written for LangWatch Scenario may know


class _Memory:
    """Stands where joblib's memory stood: it decorates, it says where it is, it can be cleared."""

    @property
    def location(self) -> str | None:
        """The folder of the cache, None if it is off."""
        store = CacheStore.here()
        return None if store is None else str(store.path.parent)

    def cache[**P, R](self, function: Callable[P, R], ignore: Sequence[str] = (), **_other: object) -> Callable[P, R]:
        """Cache a function, as `scenario.cache(ignore=...)` does."""
        return cast("Callable[P, R]", _wrap_function(function, frozenset(ignore or ()), ()))

    def clear(self, warn: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002 (joblib's signature)
        """Forget everything."""
        store = CacheStore.here()
        if store is not None:
            store.clear()


memory = _Memory()


def get_cache() -> _Memory:
    """Return `memory`."""
    return memory
