"""Two reports of one test beside each other, without what differs from run to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TIMES = (
    "at", "ms", "seconds", "total_seconds", "agent_seconds", "waited_seconds", "times", "run_id", "batch_id",
)  # fmt: skip


def bare(tree: Any, without: tuple[str, ...] = ()) -> Any:
    """Leave times and run ids out of a report, and members `without`."""
    left = (*TIMES, *without)
    if isinstance(tree, dict):
        return {name: bare(value, without) for name, value in tree.items() if name not in left}
    return [bare(each, without) for each in tree] if isinstance(tree, list) else tree


def differences(one: Any, other: Any, at: str = "$") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from differences(one[name], other[name], f"{at}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for n, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, its, f"{at}[{n}]")
    elif one != other:
        yield f"{at}: {one!r} {other!r}"
