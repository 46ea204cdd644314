"""No window of the length that was said ever sees more calls go, whatever the moments at which they come."""

from __future__ import annotations

import random

import pytest

from llmproxy.core.providers.hosts import Pace


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_go_at_once_and_the_next_waits_for_the_first() -> None:
    """A window that slides: who asks later waits for a later moment."""
    clock = Clock()
    pace = Pace({"openai": "2/min"}, clock)
    assert [pace.take("openai") for _ in range(5)] == [0.0, 0.0, 60.0, 60.0, 120.0]
    clock.now = 190.0
    assert pace.take("openai") == 30.0
    clock.now = 1000.0
    assert [pace.take("openai") for _ in range(3)] == [0.0, 0.0, 60.0]


@pytest.mark.parametrize("seed", range(20))
def test_no_window_has_more(seed: int) -> None:
    """Also for calls that come in bursts."""
    chance, clock = random.Random(seed), Clock()
    many = chance.randrange(1, 6)
    pace, gone = Pace({"*": f"{many}/s"}, clock), []
    for _ in range(200):
        clock.now += chance.choice((0.0, 0.0, 0.1, 0.9, 3.0))
        gone.append(clock.now + pace.take("openai"))
    assert gone == sorted(gone)
    assert all(later - first >= 1.0 - 1e-9 for first, later in zip(gone, gone[many:], strict=False))
    assert gone[-1] > gone[0]


def test_each_provider_is_counted_for_itself() -> None:
    """A name wins over what is said of all, which holds for models."""
    pace = Pace({"*": "1/min", "openai": "2/min", "api.example.com": "1/h"}, Clock())
    assert [pace.take("openai") for _ in range(2)] == [0.0, 0.0]
    assert [pace.take("anthropic") for _ in range(2)] == [0.0, 60.0]
    assert [pace.take("http:api.example.com", model=False) for _ in range(2)] == [0.0, 3600.0]
    assert [pace.take("http:other.example", model=False) for _ in range(2)] == [0.0, 0.0]


def test_who_counts_after_another_lets_a_window_pass() -> None:
    """What the one before had let go is not known: all of it, at the latest moment."""
    assert Pace({"openai": "3/min"}, Clock(), since=100.0).take("openai") == 60.0
