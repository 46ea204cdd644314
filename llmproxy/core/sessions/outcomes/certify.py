"""What a run that is to prove something must be: why it ends with exit code 4, as one pure function.

--fail-on-miss   nothing was refused because it was not recorded, and the command did use the proxy
--strict         the same, and every recording was used, and every hit was exact
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmproxy.amounts import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    requests: int
    """That were served, missed or struck: one that was refused certifies nothing."""
    refused: int = 0
    misses: int
    unused: int | None = 0
    """Recordings that nobody asked for; None if that is not known."""
    bound: int = 0
    """Hits whose recording was made under other circumstances."""


def find_doubts(came: Came, *, fail_on_miss: bool, strict: bool, must_be_used: bool = True) -> tuple[str, ...]:
    """Return why the run proves nothing, in words; empty if it does, or need not.

    `must_be_used`: a run without any request is none (a proxy of its own may serve nobody, a command's may not).
    """
    if not (fail_on_miss or strict):
        return ()
    return tuple(_doubts(came, strict=strict, must_be_used=must_be_used or strict))


def _doubts(came: Came, *, strict: bool, must_be_used: bool) -> Iterator[str]:
    if must_be_used and not came.requests:
        yield "no request came but what was refused" if came.refused else "no request came"
    if came.misses:
        yield format_count(came.misses, "miss", "misses")
    if not strict:
        return
    if came.unused is None:
        yield "nothing is known of unused recordings"
    elif came.unused:
        yield f"{format_count(came.unused, 'recording')} unused"
    if came.bound:
        yield f"{format_count(came.bound, 'hit was', 'hits were')} bound, not exact"
