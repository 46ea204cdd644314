"""Which part has which scenario: the same on every machine, and about equally much in each; the parts put together."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.report.events import Completed, Event, Finished, Selected, Started, Status
from llmproxy.report.report_kinds import create_report_event_handler
from llmproxy.report.run_tree import check_shard_split_json
from llmproxy.report.sharding import (
    MergedReport,
    Shard,
    ShardReport,
    assign_items_to_shards,
    combine_exit_codes,
    detect_json_or_jsonl_report,
    merge_shard_reports,
    parse_shard,
    read_shard_report,
    read_test_times_from_report,
    shard_split_to_json,
    weigh_tests_for_shards,
)
from tests.report import samples, whole as made
from tests.support.narrowing import narrow

NAMES = [f"s{n}" for n in range(60)]


def test_every_scenario_is_in_one_part_whatever_order_they_come_in() -> None:
    """The order of files on a disk differs from machine to machine; the parts do not."""
    times = {name: 100 + 37 * n % 900 for n, name in enumerate(NAMES)}
    parts = assign_items_to_shards(weigh_tests_for_shards(dict.fromkeys(NAMES, 1), times), 10)
    for seed in range(5):
        mixed = random.Random(seed).sample(NAMES, len(NAMES))
        again = assign_items_to_shards(weigh_tests_for_shards(dict.fromkeys(mixed, 1), times), 10)
        assert again == parts
        assert list(again) == mixed
    assert set(parts.values()) == set(range(1, 11))


def test_parts_are_cut_like_this() -> None:
    """Written down, so that a change of the rule is seen: machines of two versions would cut differently."""
    weighed = weigh_tests_for_shards(
        {"d": 1, "c": 1, "b": 3, "a": 1, "new": 2}, {"a": 4000, "b": 900, "c": 1000, "d": 1000}
    )
    assert weighed == {"d": 1000, "c": 1000, "b": 900, "a": 4000, "new": 2000}
    assert assign_items_to_shards(weighed, 3) == {"d": 3, "c": 3, "b": 2, "a": 1, "new": 2}


def test_parts_take_equally_long_where_times_are_known() -> None:
    """The heaviest part is at most one scenario heavier than the lightest."""
    times = {name: 10 + n * n for n, name in enumerate(NAMES)}
    parts = assign_items_to_shards(times, 7)
    loads = [sum(times[name] for name in NAMES if parts[name] == n) for n in range(1, 8)]
    assert max(loads) - min(loads) <= max(times.values())
    assert max(loads) < 1.1 * min(loads)


def test_without_times_scenarios_weigh_what_they_repeat() -> None:
    """Ten runs of one are as much as one run of ten."""
    runs = {"many": 10, **dict.fromkeys(NAMES[:10], 1)}
    parts = assign_items_to_shards(weigh_tests_for_shards(runs, {}), 2)
    assert [name for name in runs if parts[name] == parts["many"]] == ["many"]


def test_more_parts_than_scenarios_leave_some_empty() -> None:
    assert assign_items_to_shards({"a": 1, "b": 1}, 5) == {"a": 1, "b": 2}
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
    assert read_test_times_from_report(good) == {"a": 12, "b": 0}
    for text in ("{}", "[]", "no", '{"times": 3}', '{"times": {"a": "x"}}'):
        bad.write_text(text)
        with pytest.raises(SettingsError, match="no JSON report of a test"):
            read_test_times_from_report(bad)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_test_times_from_report(tmp_path / "none.json")


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


KINDS = ("json", "jsonl", "html", "junit")
MERGED = ("json", "jsonl")


def as_parts(every: list[list[Event]]) -> list[ShardReport]:
    found = []
    for n, events in enumerate(every):
        story = samples.story(events)
        assert story.selected
        assert story.selected.shard
        found.append(ShardReport(Path(f"{n}.json"), story, story.selected.shard))
    return found


def write(folder: Path, name: str, events: list[Event] | MergedReport) -> dict[str, Path]:
    found = {}
    for kind in KINDS:
        path = folder / f"{name}.{kind if kind != 'junit' else 'xml'}"
        samples.feed(
            create_report_event_handler(f"{kind}={path}"), events.events if isinstance(events, MergedReport) else events
        )
        found[kind] = path
    return found


@pytest.mark.parametrize("kind", MERGED)
def test_ten_parts_are_one_test_byte_for_byte(kind: str, tmp_path: Path) -> None:
    """In any order, one of them twice, another one run twice: tokens, costs and repeats included, in every kind of report."""
    whole = {each: path.read_bytes() for each, path in write(tmp_path, "whole", made.whole_test(made.NAMES)).items()}
    every = made.parts()
    files = [write(tmp_path, f"part{n}", events)[kind] for n, events in enumerate(every)]
    files.append(write(tmp_path, "again", made.later(every[4], 60.0))[kind])
    assert [detect_json_or_jsonl_report(path) for path in files] == [kind] * 11
    for seed in range(3):
        mixed = [*random.Random(seed).sample(files, len(files)), files[2]]
        done = merge_shard_reports([read_shard_report(path, kind) for path in mixed])
        assert {each: path.read_bytes() for each, path in write(tmp_path, "merged", done).items()} == whole
        assert (done.exit_code, list(done.missing)) == (1, [])


@pytest.mark.parametrize("how", ["absent", "killed", "interrupted"])
def test_a_part_that_did_not_come_is_said_and_ends_with_3(how: str) -> None:
    """With what it had to run; the rest is told as it is."""
    every = made.parts(5)
    if how == "absent":
        lost = every.pop(2)
    else:
        lost = every[2][:-1]
        every[2] = lost if how == "killed" else [*lost, Completed(exit_code=130, seconds=1.0)]
    done = merge_shard_reports(as_parts(every))
    name = next(event.scenario for event in lost if isinstance(event, Started))
    said = f"part 3/5 is missing: nothing is known of {name}" if how == "absent" else "part 3/5 "
    assert (done.exit_code, len(done.missing)) == (3, 1)
    assert done.missing[0].startswith(said)
    ended = narrow(Completed, done.events[-1])
    assert (ended.exit_code, ended.notes[-1]) == (3, done.missing[0])


def test_a_part_that_came_twice_with_other_results_is_not_resolved() -> None:
    """Which of them counts is nobody's to guess."""
    every = made.parts(4)
    other: list[Event] = [
        replace(event, status=Status.FAILED) if isinstance(event, Finished) else event for event in every[1]
    ]
    with pytest.raises(SettingsError, match=r"[14]\.json and [14]\.json are both part 2, with different results"):
        merge_shard_reports(as_parts([*every, other]))


@pytest.mark.parametrize(("change", "said"), [
    ({"of": 9}, "of 10 and 9 parts"),
    ({"by": "pytest"}, "of test and pytest"),
    ({"items": ["x"], "parts": [1]}, "are of other suites: only"),
    ({"parts": [1] * 23}, "were cut differently"),
])  # fmt: skip
def test_what_are_no_parts_of_one_test_is_refused(change: dict[str, Any], said: str) -> None:
    """Reports of other suites, another number of parts, other times."""
    parts = as_parts(made.parts())
    parts[3] = replace(parts[3], shard={**parts[3].shard, **change})
    with pytest.raises(SettingsError, match=said):
        merge_shard_reports(parts)


def test_another_mode_is_another_test() -> None:
    """A part that recorded and one that replayed prove nothing together; an empty one has no mode."""
    parts = as_parts(made.parts())
    assert parts[3].run_tree.selected
    parts[3].run_tree.selected = replace(parts[3].run_tree.selected, mode="record")
    with pytest.raises(SettingsError, match="mode 'replay' and 'record'"):
        merge_shard_reports(parts)
    parts = as_parts(made.parts(40))
    assert parts[39].run_tree.selected
    parts[39].run_tree.selected = replace(parts[39].run_tree.selected, mode="auto")
    assert merge_shard_reports(parts).exit_code == 1


def test_numbers_of_a_store_that_one_part_had_alone_are_left_out() -> None:
    """What was recorded has another number wherever it goes; in replay all parts had the same recordings."""
    every = made.parts(2)
    every[0] = [replace(event, replayed=False) if isinstance(event, Finished) else event for event in every[0]]
    done = merge_shard_reports(as_parts(every))
    steps = {getattr(event, "interactions", None) for event in done.events if type(event).__name__ == "Step"}
    assert steps == {(), (1, 2)}


@pytest.mark.parametrize("some", [False, True])
def test_what_is_not_recorded_is_advised_for_the_whole(*, some: bool) -> None:
    """The notes of the parts count their own scenarios; other runs of one may be recorded."""
    lost = ("s00-1", "s01-1") if some else ("s00-1", "s00-2", "s00-3", "s01-1")
    every = made.parts(2)
    for events in every:
        for n, event in enumerate(events):
            if isinstance(event, Finished) and event.run_id in lost:
                events[n] = replace(event, unrecorded=True)
            if isinstance(event, Completed):
                events[n] = replace(event, exit_code=4, notes=("for s00: x", *event.notes), part_notes=("for s00: x",))
    done = merge_shard_reports(
        as_parts(every), lambda *asked: f"{list(asked[0])} of {len(asked[1]['items'])} {asked[2]}"
    )
    ended = narrow(Completed, done.events[-1])
    assert ended.notes == ("one at a time", f"['s00', 's01'] of 23 {some}")


@pytest.mark.parametrize(
    ("codes", "by", "code"),
    [
        ((0, 0, 5), "test", 0), ((5, 5), "test", 5), ((1, 4, 0), "test", 4), ((3, 4), "test", 3), ((2, 3), "test", 2),
        ((0, 1, 5), "pytest", 1), ((0, 5), "pytest", 0), ((4, 1), "pytest", 4), ((5,), "pytest", 5),
        *(row for by in ("test", "pytest") for row in (((0, 0), by, 0), ((0, 77), by, 77), ((0, -9), by, -9), ((77, 1), by, 1))),
    ],
)  # fmt: skip
def test_the_end_is_that_of_the_whole(codes: tuple[int, ...], by: str, code: int) -> None:
    """One part whose scenarios were all skipped does not mean that nothing ran; a code that nobody knows is no success."""
    assert combine_exit_codes(codes, by) == code


def test_tests_of_pytest_run_scenarios_of_one_name() -> None:
    """They are told apart as in one run, and stand in the order of their tests."""
    every = made.parts(2)
    shard: dict[str, Any] = {"of": 2, "by": "pytest", "items": ["t::a", "t::b"], "parts": [2, 1]}
    parts = []
    for number, (events, test) in enumerate(zip(every, ("t::b", "t::a"), strict=True), 1):
        begun = next(event for event in events if isinstance(event, Started))
        one = replace(begun, scenario="weather", place=test, run_id=f"r{number}", suite="")
        done = Finished(run_id=one.run_id, scenario="weather", status=Status.PASSED)
        rows = [{"scenario": "weather", "status": "passed", "runs": 1}]
        told = {**shard, "number": number, "runs": {one.run_id: test}}
        selected = Selected(title="pytest", scenarios=1, runs=1, shard=told)
        story = samples.story([selected, one, done, Completed(exit_code=0, seconds=1.0, scenarios=rows)])
        parts.append(ShardReport(Path(f"{number}.json"), story, told))
    ended = narrow(Completed, merge_shard_reports(parts).events[-1])
    assert [each["scenario"] for each in ended.scenarios] == ["weather [1: t::a]", "weather [2: t::b]"]


def test_what_is_no_part_is_named(tmp_path: Path) -> None:
    """A whole test, a test that ended before it began, another version, another program's file: each is said, with its name."""
    whole = write(tmp_path, "whole", made.whole_test(made.NAMES))
    for kind in MERGED:
        with pytest.raises(SettingsError, match=rf"whole\.{kind} is the report of a whole test"):
            read_shard_report(whole[kind], kind)
    create_report_event_handler(f"json={tmp_path / 'begun.json'}")
    with pytest.raises(SettingsError, match="ended before it knew what to run"):
        read_shard_report(tmp_path / "begun.json", "json")
    part = write(tmp_path, "part", made.parts(2)[0])
    tree = json.loads(part["json"].read_text())
    for change in ({"format": 2}, {"scenarios": 3}, {"exit_code": 1, "notes": None}):
        part["json"].write_text(json.dumps({**tree, **change}))
        with pytest.raises(SettingsError, match=r"part\.json is no report that this version reads"):
            read_shard_report(part["json"], "json")


def test_files_that_are_no_reports_are_none(tmp_path: Path) -> None:
    """A folder of a build holds all sorts of things."""
    files = {"a.json": "{}", "b.html": "<!doctype html><p>x", "c.xml": "<x/>", "d.txt": '{"event"', "e.json": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert detect_json_or_jsonl_report(tmp_path / name) == "", name


@pytest.mark.parametrize("kind", MERGED)
def test_a_part_that_says_odd_things_of_itself_is_refused_in_words(tmp_path: Path, kind: str) -> None:
    """The file is named, whatever stands in it."""
    part = made.parts(2)[0]
    path = write(tmp_path, "part", part)[kind]
    data = path.read_bytes()
    for old, new in (
        (b'"number": 1', b'"number": "x"'),
        (b'"of": 2', b'"of": 1000000000000'),
        (b'"by": "test"', b'"by": 5'),
    ):
        spelled = next((each for each in (old, old.replace(b": ", b":")) if each in data), b"")
        assert spelled, (kind, old)
        path.write_bytes(data.replace(spelled, new))
        with pytest.raises(SettingsError, match=r"part\.\w+ is no"):
            read_shard_report(path, kind)
