"""What two texts, or two bodies, share at their ends: galloping, then bisection, so that comparing slices is done in C."""

from __future__ import annotations

_FIRST = 64


def common_prefix[T: (str, bytes)](a: T, b: T) -> int:
    """Return how many characters (bytes) `a` and `b` share at the start."""
    limit = min(len(a), len(b))
    at, step = 0, _FIRST
    while at < limit and a[at : at + step] == b[at : at + step]:
        at += step
        step *= 2
    if at >= limit:
        return limit
    low, high = at, min(at + step, limit)  # a[:low] is shared, the first difference lies before high (or at the end)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix[T: (str, bytes)](a: T, b: T, limit: int) -> int:
    """Return how many characters (bytes), at most `limit`, `a` and `b` share at the end; `limit` is at most the shorter one's length."""
    low, high, step = 0, limit, _FIRST
    while low < limit:
        reach = min(low + step, limit)
        if a[len(a) - reach : len(a) - low] != b[len(b) - reach : len(b) - low]:
            high = reach - 1
            break
        low, step = reach, step * 2
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low
