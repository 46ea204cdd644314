"""What a session remembers of each question, in few bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

from llmproxy.core.sessions.compact import Counts, Ids


def walker(number: int) -> tuple[str, str]:
    """Return what stands for a question."""
    return ("agent", "user", "judge.2")[number % 3], f"v2:{number:064x}"


def test_counts_are_those_of_a_dictionary_however_long_ago_something_came() -> None:
    """Ten thousand arrivals of two thousand questions, of which fifty are recent; forgotten, taken over and cleared as well."""
    chance, counts, right = random.Random(4), Counts(recent=50), Counter[tuple[str, str]]()
    for _ in range(10_000):
        each = walker(int(2000 * chance.random() ** 2))
        right[each] += 1
        assert counts.add(each) == right[each]
        if chance.random() < 0.02:
            gone = walker(chance.randrange(2000))
            counts.discard(gone)
            del right[gone]
    everybody = [walker(number) for number in range(2000)]
    assert [counts.of(each) for each in everybody] == [right[each] for each in everybody]
    assert [each in counts for each in everybody] == [each in right for each in everybody]
    other = Counts(recent=50)
    for each in everybody[1990:]:
        other.add(each)
    other.update(counts)
    assert [each in other for each in everybody] == [right[each] > 0 or each in everybody[1990:] for each in everybody]
    assert counts
    counts.clear()
    assert not counts
    assert not any(each in counts for each in everybody)


def test_ids_are_those_of_a_set() -> None:
    """Side by side, far apart, and the largest that SQLite has."""
    chance = random.Random(4)
    right = (
        {chance.randrange(1, 3000) for _ in range(800)} | {chance.randrange(1 << 63) for _ in range(50)} | {2**63 - 1}
    )
    ids = Ids(right)
    assert ids == right
    assert (list(ids), len(ids), bool(ids), bool(Ids())) == (sorted(right), len(right), True, False)
    assert not [number for number in range(4000) if (number in ids) != (number in right)]
    assert None not in ids


def test_a_session_of_new_questions_grows_by_few_bytes() -> None:
    """Behind the last ones, which are kept as they came, a question and its recording take 40 bytes; they took 400."""
    counts, ids = Counts(recent=1000), Ids()
    for number in range(2_000):
        counts.add(walker(number))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000, 22_000):
            counts.add(walker(number))
            ids.add(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 20_000 < 40
