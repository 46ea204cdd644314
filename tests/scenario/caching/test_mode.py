"""Modes of the cache, and what a miss in replay says."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.caching.mode import CacheMode, missing


@pytest.mark.parametrize(
    ("said", "mode"),
    [({}, "auto"), ({"SCENARIO_CACHE_MODE": ""}, "auto"), ({"SCENARIO_CACHE_MODE": " Replay "}, "replay")],
)
def test_the_mode_is_read_from_the_environment(said: dict[str, str], mode: str) -> None:
    """Auto unless something else is said."""
    assert CacheMode.of(said) == mode


def test_an_unknown_mode_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(SettingsError, match=r"'reply' is no mode(.|\n)*auto, replay, record, off"):
        CacheMode.of({"SCENARIO_CACHE_MODE": "reply"})


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ([], "Nothing of it was ever kept"),
        (["v1", "v1"], "kept for cache_key 'v1', and not for 'v2'"),
        (["v2", "v1", "v2"], "kept for 2 other inputs; `llmproxy cache list agent.ask`"),
    ],
)
def test_a_miss_says_what_is_nearest(kept: list[str], says: str) -> None:
    """Nothing, another generation, or other inputs; and how to go on."""
    text = str(missing(Path("cache.db"), "call:0123456789abcdef", "agent.ask", "v2", kept))
    assert says in text
    assert "SCENARIO_CACHE_MODE=auto" in text
