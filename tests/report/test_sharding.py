"""Which part has which scenario: the same on every machine, and about equally much in each."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from llmproxy.errors import SettingsError
from llmproxy.report.run_tree import check_shard_split_json
from llmproxy.report.sharding import (
    Shard,
    parse_shard,
    read_test_times,
    shard_split_to_json,
    split_items,
    weigh_items,
)

NAMES = [f"s{n}" for n in range(60)]


def test_every_scenario_is_in_one_part_whatever_order_they_come_in() -> None:
    """The order of files on a disk differs from machine to machine; the parts do not."""
    times = {name: 100 + 37 * n % 900 for n, name in enumerate(NAMES)}
    parts = split_items(weigh_items(dict.fromkeys(NAMES, 1), times), 10)
    for seed in range(5):
        mixed = random.Random(seed).sample(NAMES, len(NAMES))
        again = split_items(weigh_items(dict.fromkeys(mixed, 1), times), 10)
        assert again == parts
        assert list(again) == mixed
    assert set(parts.values()) == set(range(1, 11))


def test_parts_are_cut_like_this() -> None:
    """Written down, so that a change of the rule is seen: machines of two versions would cut differently."""
    weighed = weigh_items({"d": 1, "c": 1, "b": 3, "a": 1, "new": 2}, {"a": 4000, "b": 900, "c": 1000, "d": 1000})
    assert weighed == {"d": 1000, "c": 1000, "b": 900, "a": 4000, "new": 2000}
    assert split_items(weighed, 3) == {"d": 3, "c": 3, "b": 2, "a": 1, "new": 2}


def test_parts_take_equally_long_where_times_are_known() -> None:
    """The heaviest part is at most one scenario heavier than the lightest."""
    times = {name: 10 + n * n for n, name in enumerate(NAMES)}
    parts = split_items(times, 7)
    loads = [sum(times[name] for name in NAMES if parts[name] == n) for n in range(1, 8)]
    assert max(loads) - min(loads) <= max(times.values())
    assert max(loads) < 1.1 * min(loads)


def test_without_times_scenarios_weigh_what_they_repeat() -> None:
    """Ten runs of one are as much as one run of ten."""
    runs = {"many": 10, **dict.fromkeys(NAMES[:10], 1)}
    parts = split_items(weigh_items(runs, {}), 2)
    assert [name for name in runs if parts[name] == parts["many"]] == ["many"]


def test_more_parts_than_scenarios_leave_some_empty() -> None:
    assert split_items({"a": 1, "b": 1}, 5) == {"a": 1, "b": 2}
    assert shard_split_to_json(Shard(4, 5), {"a": 1}, "test", more=1) == {
        "number": 4, "of": 5, "by": "test", "items": ["a"], "parts": [1], "more": 1,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["3", "", "a/b", "1/2/3", "-1/3", "1/-3", "1.5/3", "3 /10", "٣/١٠/"])
def test_what_is_no_part_is_refused(text: str) -> None:
    """With the option, what was typed, and how it is written."""
    with pytest.raises(SettingsError, match=r"--shard is .*such as 3/10"):
        parse_shard(text)


@pytest.mark.parametrize("text", ["0/10", "11/10", "1/0", "1/99999"])
def test_parts_that_there_cannot_be_are_refused(text: str) -> None:
    """A part that ran nothing because it was counted from 0 would look like a success."""
    with pytest.raises(SettingsError, match=r"--shard is .*(there is no part|there can be 1 to)"):
        parse_shard(text)
    assert parse_shard("10/10") == Shard(10, 10)


def test_times_come_from_a_json_report(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.json", tmp_path / "b.json"
    good.write_text(json.dumps({"times": {"a": 12, "b": 0}}))
    assert read_test_times(good) == {"a": 12, "b": 0}
    for text in ("{}", "[]", "no", '{"times": 3}', '{"times": {"a": "x"}}'):
        bad.write_text(text)
        with pytest.raises(SettingsError, match="no JSON report of a test"):
            read_test_times(bad)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_test_times(tmp_path / "none.json")


WHOLE = shard_split_to_json(Shard(1, 2), {"a": 1, "b": 2}, "test", runs={"r": "a"})
ODD: list[object] = [None, True, 0, 3, 10**12, 1.5, "1", "x", [], {}, ["a", "a"], [1, 3], [1], [True, 2], {"r": 1}]


def test_what_a_file_says_of_its_part_is_whole_or_none() -> None:
    """A part of a million million would be counted out one by one."""
    check_shard_split_json(WHOLE)
    check_shard_split_json({name: value for name, value in WHOLE.items() if name != "runs"})
    same: dict[str, list[object]] = {"number": [1], "of": [3], "runs": [{}]}
    for name in WHOLE:
        for odd in ODD:
            if not any(type(odd) is type(each) and odd == each for each in same.get(name, [])):
                with pytest.raises(TypeError, match="it does not say"):
                    check_shard_split_json({**WHOLE, name: odd})
    for odd in ODD:
        with pytest.raises(TypeError, match="it does not say"):
            check_shard_split_json(odd)
