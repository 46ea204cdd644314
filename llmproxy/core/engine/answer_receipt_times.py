"""Inference of when a client processed the ends of concurrent answers, from its later requests.

An answer that has reached a client is not yet processed: a busy client may process two ends in another order than they
arrived, or may have built its next request when the second one arrived. Recorded times do not show that; requests do:

    B's end, A's end, X cites "A's answer ... B's answer"       A was processed before B, if their ends are close
    A's end, B's end, X cites "A's answer", a later one both    B was processed after X was built: it waits for X

A request *cites* an answer if it holds the first line of its text, or the id of its tool call, and no earlier request
did. A wrong guess only costs a little time: `EndOrder` waits for X a short while.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from llmproxy.core.dialects.conversation import read_interaction_message
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction

CLOSE = 0.1
"""Seconds between two ends that a busy client may process in the other order."""
REACTION = 1.0
"""Maximum seconds between an end and the request that it causes."""
LONGEST = 200
"""Characters of an answer that are searched for in requests."""
MOST, MOST_BYTES = 400, 16 << 20
"""Maximum calls that are read, and bytes of their requests (0.2 s); above that, no times are corrected."""


class RecordedCall(NamedTuple):
    id: int
    """Id of the recording."""
    began: float
    """Time when it was forwarded to its upstream, Unix seconds."""
    ended: float
    """Time when its client processed the last of its answer, as far as known."""
    party: str = ""
    key: str = ""
    answer: int = 0
    """Equal for equal answers."""
    grace: float = 0.0
    """Maximum seconds that its end waits for requests built before the client processed it; 0 if unknown."""
    late: bool = False
    """Whether it was processed later than it arrived."""
    together: bool = False
    """Whether a client that does not wait for all was still busy with the previous end when this one arrived."""


Cites = Callable[[int, int], int]
"""Position in a call's request at which it cites another call's answer; -1 if it does not."""


class _RequestsTooLong(Exception):
    """The requests are too long to be read in full."""


def infer_receipt_times(calls: Sequence[RecordedCall], cites: Cites) -> list[RecordedCall]:
    """Return the calls with the times when their ends were processed, in the order of their begins."""
    try:
        return _infer_receipt_times(calls, cites)
    except _RequestsTooLong:
        return list(calls)


def _infer_receipt_times(calls: Sequence[RecordedCall], cites: Cites) -> list[RecordedCall]:
    made = sorted(calls, key=attrgetter("began", "id"))
    begins = [each.began for each in made]
    ended = sorted(range(len(made)), key=lambda n: made[n].ended)
    ends = [made[n].ended for n in ended]
    looked = set[int]()
    for n, asked in enumerate(list(made)):
        last = bisect_right(ends, asked.began)
        near = [m for m in ended[bisect_right(ends, asked.began - REACTION) : last] if m < n]
        if not any(made[b].began < made[a].ended for a, b in pairwise(near)):
            continue
        looked.update((n, *near))
        if len(looked) > MOST:
            raise _RequestsTooLong
        at = {m: cites(asked.id, made[m].id) for m in near}
        heard = [m for m in near if at[m] >= 0]
        _reorder_close_ends(made, heard, at, begins)
        _mark_joint_ends(made, n, heard, cites)
        for m in near:
            late = made[m]
            before = [made[each].ended for each in heard if late.began < made[each].ended < late.ended + CLOSE]
            if at[m] < 0 and before and not late.grace and _is_first_cited_later(made, n, m, heard, cites):
                grace = 0.25 + 3 * (asked.began - min(before))
                made[m] = late._replace(ended=asked.began + 1e-6, grace=grace, late=True)
    return made


def _is_first_cited_later(made: Sequence[RecordedCall], n: int, m: int, heard: Sequence[int], cites: Cites) -> bool:
    """Return whether the first request that cites answer `m` follows the n-th, and cites one of `heard`."""
    behind = (k for k in range(len(made)) if made[m].ended < made[k].began < made[n].began + 30 * REACTION)
    first = next((k for k in behind if cites(made[k].id, made[m].id) >= 0), -1)
    return first > n and any(cites(made[first].id, made[each].id) >= 0 for each in heard)


def _mark_joint_ends(made: list[RecordedCall], n: int, heard: Sequence[int], cites: Cites) -> None:
    """Mark ends that a slow client processed together: it sends requests when some of them are there, not all.

    Its next request cites both. Another request that cites one of them also cites a later end of the same group.
    """
    by_end = sorted(heard, key=lambda m: made[m].ended)
    slow = made[n].began - made[by_end[-1]].ended if by_end else 0.0
    close = [(a, b) for a, b in pairwise(by_end) if made[b].ended - made[a].ended < slow]
    rest = [m for m in range(n) if close and made[m].began < made[by_end[-1]].ended < made[m].ended and m not in heard]
    for a, b in close:
        later = (k for k in range(n + 1, len(made)) if cites(made[k].id, made[a].id) >= 0)
        if any(cites(made[k].id, made[m].id) >= 0 for k in later for m in rest):
            made[b] = made[b]._replace(together=True)


def _reorder_close_ends(
    made: list[RecordedCall], heard: Sequence[int], at: dict[int, int], begins: Sequence[float]
) -> None:
    """Order ends that are close by where a request cites them; not if a request was sent between them."""
    runs: list[list[int]] = []
    for m in heard:
        before = made[runs[-1][-1]].ended if runs else 0.0
        apart = bisect_right(begins, made[m].ended) - bisect_right(begins, before)
        if runs and made[m].ended - before < CLOSE and not apart:
            runs[-1].append(m)
        else:
            runs.append([m])
    for run in runs:
        times = [made[m].ended for m in run]
        for m, ended in zip(sorted(run, key=at.__getitem__), times, strict=True):
            made[m] = made[m]._replace(ended=ended, late=made[m].late or ended > made[m].ended)


def build_citation_finder(store: Store) -> Cites:
    """Return the function that finds where a recorded request cites a recorded answer; it reads each once."""
    requests: dict[int, bytes] = {}
    answers: dict[int, re.Pattern[bytes] | None] = {}
    size = 0

    def cites(asked: int, answered: int) -> int:
        nonlocal size
        for each in {asked, answered} - requests.keys():
            made = store.load(each)
            if (size := size + len(made.request.body)) > MOST_BYTES:
                raise _RequestsTooLong
            requests[each], answers[each] = made.request.body, _build_citation_pattern(made)
        words = answers[answered]
        return max((each.start() for each in words.finditer(requests[asked])), default=-1) if words else -1

    return cites


def _build_citation_pattern(made: Interaction) -> re.Pattern[bytes] | None:
    """Return a pattern that matches the beginning of an answer in JSON, or the id of its first tool call."""
    if (said := read_interaction_message(made)) is None:
        return None
    words = said.text.strip().partition("\n")[0].strip()[:LONGEST]
    words = words or next((call.id for call in said.tool_calls if call.id), "")
    ways = {re.escape(json.dumps(words, ensure_ascii=escaped)[1:-1]) for escaped in (True, False)}
    border = "" if len(words) == LONGEST else "(?![A-Za-z0-9])"  # "q1" is not cited by "q12"
    return re.compile(f"(?:{'|'.join(ways)}){border}".encode("utf-8", "surrogatepass")) if words else None
