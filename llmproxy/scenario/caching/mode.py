"""What the cache does with a hit and with a miss, as the environment says at the moment of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from llmproxy.errors import MissError, SettingsError

MODE = "SCENARIO_CACHE_MODE"


class CacheMode(StrEnum):
    """What a hit and a miss do."""

    AUTO = "auto"
    """A hit is returned, a miss is made and kept."""
    REPLAY = "replay"
    """A hit is returned, a miss is an error."""
    RECORD = "record"
    """Everything is made and kept anew."""
    OFF = "off"
    """Everything is made, nothing is kept."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> CacheMode:
        """Read SCENARIO_CACHE_MODE. Raises SettingsError for a mode that there is not."""
        said = env.get(MODE, "")
        try:
            return cls(said.strip().lower() or cls.AUTO)
        except ValueError as error:
            modes = ", ".join(cls)
            raise SettingsError(f"{MODE}={said!r} is no mode of the cache.", hint=f"There are: {modes}.") from error


def missing(path: Path, key: str, name: str, cache_key: str, kept: Sequence[str]) -> MissError:
    """Return the error for a miss in replay; `kept` holds the cache key of each value of this name that there is."""
    if not kept:
        nearest = "Nothing of it was ever kept there."
    elif cache_key not in kept:
        nearest = f"It is kept for cache_key {', '.join(map(repr, sorted(set(kept))))}, and not for {cache_key!r}."
    else:
        nearest = f"It is kept for {kept.count(cache_key)} other inputs; `llmproxy cache list {name}` shows them."
    return MissError(
        f"{name or 'what was asked'} is not in the cache {path} (key {key[:17]}...), and {MODE}=replay. {nearest}",
        hint=f"{MODE}=auto lets it be called, and keeps the answer.",
    )
