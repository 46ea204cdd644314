"""What a run must be under --fail-on-miss and --strict."""

from __future__ import annotations

import pytest

from llmproxy.core.sessions.outcomes.certify import Came, find_doubts

GOOD = Came(requests=3, misses=0, unused=0, bound=0)


@pytest.mark.parametrize(
    ("came", "fail_on_miss", "strict"),
    [
        (GOOD, (), ()),
        (Came(requests=0, misses=0), ("no request came",), ("no request came",)),
        (Came(requests=0, refused=1, misses=0), *[("no request came but what was refused",)] * 2),
        (Came(requests=3, misses=1), ("1 miss",), ("1 miss",)),
        (Came(requests=3, misses=2, bound=1), ("2 misses",), ("2 misses", "1 hit was bound, not exact")),
        (Came(requests=3, misses=0, unused=1), (), ("1 recording unused",)),
        (Came(requests=3, misses=0, unused=None), (), ("nothing is known of unused recordings",)),
    ],
)
def test_each_doubt_is_named(came: Came, fail_on_miss: tuple[str, ...], strict: tuple[str, ...]) -> None:
    """--fail-on-miss wants use and no miss; --strict also every recording used, and exact hits only."""
    assert find_doubts(came, fail_on_miss=True, strict=False) == fail_on_miss
    assert find_doubts(came, fail_on_miss=False, strict=True) == strict
    assert find_doubts(came, fail_on_miss=True, strict=True) == strict


def test_without_either_nothing_is_doubted() -> None:
    """Who has not asked for a proof gets none."""
    assert find_doubts(Came(requests=0, misses=9, unused=9, bound=9), fail_on_miss=False, strict=False) == ()


def test_a_proxy_that_served_nobody_failed_no_miss() -> None:
    """`start --fail-on-miss` may serve nobody; `start --strict` may not."""
    idle = Came(requests=0, misses=0)
    assert find_doubts(idle, fail_on_miss=True, strict=False, must_be_used=False) == ()
    assert find_doubts(idle, fail_on_miss=False, strict=True, must_be_used=False) == ("no request came",)
