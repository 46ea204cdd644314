"""Shards of a test: the assignment of scenarios, ``3/10`` + {id: weight} -> {id: part}, and the merging of their JSON
reports into the events of the whole test.

The heaviest first, each to the lightest shard so far; equal ones in the order of their ids: nothing depends on what
differs between machines (clock, order of files, Python's hash). A scenario with all its repeats is in one shard, so its
row is copied, not added. Missing shards are reported, with exit code 3.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import name_some
from llmproxy.errors import Exit, SettingsError
from llmproxy.file_io import read_bounded_bytes, read_bounded_text
from llmproxy.report.events import Completed, Event, Selected, Status, Step
from llmproxy.report.json_report import FORMAT
from llmproxy.report.run_tree import MOST_SHARDS, EventsGroupedByRun, Run, deserialize_event, to_plain

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str, flag: str = "--shard") -> Shard:
    """Parse ``3/10``. Raises SettingsError naming `flag`."""
    if (found := _SHARD.fullmatch(text.strip())) is None:
        raise SettingsError(f"{flag} is {text!r}; it is a part and how many there are, such as 3/10.")
    shard = Shard(int(found[1]), int(found[2]))
    if not 1 <= shard.of <= MOST_SHARDS:
        raise SettingsError(f"{flag} is {text!r}: there can be 1 to {MOST_SHARDS:,} parts.")
    if not 1 <= shard.number <= shard.of:
        counted = f"they are counted 1/{shard.of} to {shard.of}/{shard.of}"
        raise SettingsError(f"{flag} is {text!r}: there is no part {shard.number} of {shard.of}; {counted}.")
    return shard


def read_test_times_from_report(path: Path, flag: str = "--shard-times") -> dict[str, int]:
    """Return the durations of scenarios or tests in milliseconds from a JSON report. Raises SettingsError."""
    try:
        return {str(name): max(int(ms), 0) for name, ms in json.loads(read_bounded_text(path))["times"].items()}
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "llmproxy test --report json=FILE writes one, pytest --scenario-report json=FILE as well."
        why = "is no JSON report of a test that says how long its parts took."
        raise SettingsError(f"{flag} {path} {why}", hint=hint) from error


def weigh_tests_for_shards(runs: Mapping[str, int], times: Mapping[str, int]) -> dict[str, int]:
    """Return each item's weight: its time if known, else its runs times the usual time of a run, if any is known."""
    known = sorted(times[name] // max(many, 1) for name, many in runs.items() if times.get(name))
    usual = max(known[(len(known) - 1) // 2], 1) if known else 1
    return {name: times.get(name) or usual * max(many, 1) for name, many in runs.items()}


def assign_items_to_shards(weighed: Mapping[str, int], of: int) -> dict[str, int]:
    load, held = [0] * of, [0] * of
    found: dict[str, int] = {}
    for name in sorted(weighed, key=lambda each: (-weighed[each], each)):
        at = min(range(of), key=lambda n: (load[n], held[n], n))
        load[at] += weighed[name]
        held[at] += 1
        found[name] = at + 1
    return {name: found[name] for name in weighed}


def shard_split_to_json(shard: Shard, parts: Mapping[str, int], by: str, **more: Any) -> dict[str, Any]:
    """Return a shard report's description of the split: all items in order with shards; `by`: ``test``, ``pytest``."""
    cut = {"items": list(parts), "parts": list(parts.values())}
    return {"number": shard.number, "of": shard.of, "by": by, **cut, **more}


_LISTED = 5
_ORDERS: Mapping[str, tuple[int, ...]] = {
    "test": (Exit.USAGE, Exit.ENVIRONMENT, Exit.MISS, Exit.FAILED, Exit.NOTHING),
    "pytest": (3, 4, 1, 5),
}
"""Exit codes by priority; pytest has its own."""
_INTERRUPTED: Mapping[str, int] = {"test": Exit.INTERRUPTED, "pytest": 2}
_TIMES = frozenset(
    {"at", "ms", "seconds", "total_seconds", "agent_seconds", "waited_seconds", "times", "run_id", "latency_ms"}
)
"""Members of a report that differ between any two runs of a shard."""
_HEAD = 4096

Advise = Callable[[Sequence[str], Mapping[str, Any], bool], str]
"""Unrecorded scenarios, split, whether others of their runs are recorded -> note with the command that records them."""


@dataclass(frozen=True, slots=True)
class ShardReport:
    path: Path
    run_tree: EventsGroupedByRun
    shard: Mapping[str, Any]
    """In the form of `sharding.shard_split_to_json`."""

    @property
    def number(self) -> int:
        return int(self.shard["number"])

    def get_item_name_of_run(self, run: Run) -> str:
        return str(self.shard.get("runs", {}).get(run.started.run_id, run.started.scenario))

    def to_plain(self) -> list[Any]:
        runs = [[run.started, *run.parts, run.finished] for run in self.run_tree.runs.values()]
        return [[[to_plain(each) for each in run] for run in runs], to_plain(self.run_tree.completed)]


def detect_json_or_jsonl_report(path: Path) -> str:
    """Return the kind of a report: ``json`` or ``jsonl``; empty for anything else. Raises OSError."""
    if path.suffix.lower() not in (".json", ".jsonl"):
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b'{"event"'):
        return "jsonl"
    return "json" if head.startswith(b"{") and b'"format"' in head and b'"exit_code"' in head else ""


def read_shard_report(path: Path, kind: str) -> ShardReport:
    """Return a shard's report. Raises SettingsError: no report, another version, or a whole test's; OSError."""
    run_tree = EventsGroupedByRun()
    try:
        lines = read_bounded_text(path).splitlines() if kind == "jsonl" else ()
        document = None if kind == "jsonl" else json.loads(read_bounded_bytes(path))
        for tree in map(json.loads, lines) if kind == "jsonl" else _split_document_into_events(document):
            run_tree.add_event(deserialize_event(tree))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "llmproxy test --shard 1/2 --report json=FILE writes one"
        hint = f"{what}; all parts of a test and `merge` need one version."
        why = str(error) or type(error).__name__
        raise SettingsError(f"{path} is no report that this version reads: {why}.", hint=hint) from error
    if run_tree.selected is None:
        why = "its test ended before it knew what to run, so it holds nothing."
        raise SettingsError(f"{path}: {why}", hint="Run this part again.")
    if run_tree.selected.shard is None:
        hint = "Parts are made by llmproxy test --shard 1/10, or pytest --llmproxy-shard 1/10."
        raise SettingsError(f"{path} is the report of a whole test, not of a part of one.", hint=hint)
    return ShardReport(path, run_tree, run_tree.selected.shard)


def _split_document_into_events(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the events from which `json_report.build_json_report` made a document."""
    if tree["format"] != FORMAT:
        raise ValueError(f"it is of format {tree['format']}, this version reads {FORMAT}")
    runs = [run for scenario in tree["scenarios"] for run in scenario["runs"]]
    if tree["at"] is not None:
        said = {name: tree.get(name) for name in ("title", "mode", "at", "shard")}
        yield {"event": "selected", **said, "scenarios": len(tree["scenarios"]), "runs": len(runs)}
    for run in runs:
        yield from (run["started"], *run["parts"], *([run["finished"]] if run["finished"] else []))
    if tree["exit_code"] is not None:
        said = {name: tree[name] for name in ("exit_code", "seconds", "notes")}
        more = {"part_notes": tree.get("part_notes", []), "times": tree.get("times", {})}
        yield {"event": "completed", **said, **more, "scenarios": tree["summary"]}


@dataclass(frozen=True, slots=True)
class MergedReport:
    events: Sequence[Event]
    exit_code: int
    missing: Sequence[str]


def merge_shard_reports(parts: Sequence[ShardReport], advise: Advise | None = None) -> MergedReport:
    """Merge shards. Raises SettingsError: of several tests, or the same shard with different results."""
    _check_same_split(parts)
    _require_equal("title", [(part, part.run_tree.title) for part in parts])
    begun = [(part, part.run_tree.selected) for part in parts if part.run_tree.runs]
    _require_equal("mode", [(part, selected.mode) for part, selected in begun if selected])
    kept = _drop_duplicate_parts(parts)
    gone = [*_describe_missing_parts(kept), *filter(None, map(_describe_interruption, kept))]
    order = {name: n for n, name in enumerate(kept[0].shard["items"])}
    placed = [(part, run) for part in kept for run in part.run_tree.runs.values()]  # parts come by their number
    placed.sort(key=lambda each: order.get(each[0].get_item_name_of_run(each[1]), len(order)))
    runs = [run for _, run in placed]
    completed = _merge_completed_events(kept, runs, advise, gone)
    events = [_merge_into_one_selected_event(kept), *_list_run_events(runs), completed]
    return MergedReport(events, completed.exit_code, gone)


def _merge_into_one_selected_event(parts: Sequence[ShardReport]) -> Selected:
    begun = [part.run_tree.selected for part in parts if part.run_tree.selected]
    modes = [part.run_tree.selected.mode for part in parts if part.run_tree.runs and part.run_tree.selected]
    return Selected(
        title=begun[0].title,
        mode=modes[0] if modes else begun[0].mode,
        at=min(each.at for each in begun),
        scenarios=sum(each.scenarios for each in begun),
        runs=sum(each.runs for each in begun),
    )


def _list_run_events(runs: Sequence[Run]) -> Iterator[Event]:
    for run in runs:
        yield run.started
        alone = run.finished is None or run.finished.replayed is not True
        for part in run.parts:  # numbers of a store that only this part has say nothing any more; `recordings` do
            yield replace(part, interactions=()) if alone and isinstance(part, Step) else part
        if run.finished is not None:
            yield run.finished


def _merge_completed_events(
    parts: Sequence[ShardReport], runs: Sequence[Run], advise: Advise | None, gone: Sequence[str]
) -> Completed:
    shard = parts[0].shard
    ended = [part.run_tree.completed for part in parts if part.run_tree.completed]
    order = {name: n for n, name in enumerate(shard["items"])}
    times = {name: ms for each in ended for name, ms in each.times.items()}
    code = int(Exit.ENVIRONMENT) if gone else combine_exit_codes([each.exit_code for each in ended], shard["by"])
    own = []
    missed = [run for run in runs if run.finished and run.finished.unrecorded]
    if advise and missed:
        lost = dict.fromkeys(run.started.scenario for run in missed)
        own.append(advise(list(lost), shard, sum(run.started.scenario in lost for run in runs) > len(missed)))
    if code == Exit.NOTHING and runs:
        skipped = sum(run.status is Status.SKIPPED for run in runs)
        own.append(f"nothing ran: {skipped} of {len(runs)} runs were skipped")
    shared = dict.fromkeys(note for each in ended for note in each.notes if note not in each.part_notes)
    return Completed(
        exit_code=code,
        seconds=sum(each.seconds for each in ended),
        notes=(*shared, *own, *gone),
        part_notes=tuple(own),
        scenarios=_merge_rows(parts, runs, order),
        times={name: times[name] for name in sorted(times, key=lambda each: (order.get(each, len(order)), each))},
    )


# -- are they parts of one test, and all of them?


def _check_same_split(parts: Sequence[ShardReport]) -> None:
    """Check that all shards belong to one split of one test. Raises SettingsError naming two that do not."""
    first, mine = parts[0].path, parts[0].shard
    for part in parts[1:]:
        name, shard = part.path, part.shard
        for what, text in (("of", f"{mine['of']} and {shard['of']} parts"), ("by", f"{mine['by']} and {shard['by']}")):
            if mine[what] != shard[what]:
                raise SettingsError(f"{first} and {name} are not parts of one test: of {text}.")
        cuts = [dict(zip(each["items"], each["parts"], strict=True)) for each in (mine, shard)]
        if cuts[0] == cuts[1]:
            continue
        if other := sorted(set(mine["items"]) ^ set(shard["items"])):
            which = first if other[0] in mine["items"] else name
            raise SettingsError(f"{first} and {name} are of other suites: only {which} has {other[0]}.")
        why = "were cut differently, so that scenarios ran twice or not at all."
        hint = "Every part needs the same suites, --runs and --shard-times."
        raise SettingsError(f"{first} and {name} {why}", hint=hint)


def _require_equal(what: str, values: Sequence[tuple[ShardReport, str]]) -> None:
    for part, value in values[1:]:
        first, mine = values[0]
        if value != mine:
            both = f"{first.path} and {part.path}"
            raise SettingsError(f"{both} are not parts of one test: {what} {mine!r} and {value!r}.")


def _drop_duplicate_parts(parts: Sequence[ShardReport]) -> list[ShardReport]:
    """Return each shard once, by number. Raises SettingsError for duplicates with different results."""

    def rank(part: ShardReport) -> tuple[int, float, str]:
        begun_at = part.run_tree.selected.at if part.run_tree.selected else 0.0
        return part.number, begun_at, json.dumps(part.to_plain(), sort_keys=True)

    kept: dict[int, tuple[ShardReport, Any]] = {}
    for part in sorted(parts, key=rank):
        result = _remove_times(part.to_plain())
        before, known = kept.setdefault(part.number, (part, result))
        if known != result:
            both = f"{before.path} and {part.path} are both part {part.number}"
            raise SettingsError(f"{both}, with different results.", hint="Leave out the one that does not count.")
    return [part for _, (part, _) in sorted(kept.items())]


def _remove_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _remove_times(value) for name, value in tree.items() if name not in _TIMES}
    return [_remove_times(each) for each in tree] if isinstance(tree, list | tuple) else tree


def _describe_missing_parts(parts: Sequence[ShardReport]) -> Iterator[str]:
    shard, there = parts[0].shard, {part.number for part in parts}
    for number in range(1, int(shard["of"]) + 1):
        if number in there:
            continue
        items = [name for name, part in zip(shard["items"], shard["parts"], strict=True) if part == number]
        what = f"nothing is known of {name_some(items, shown=_LISTED)}" if items else "it had nothing to run"
        yield f"part {number}/{shard['of']} is missing: {what}"


def _describe_interruption(part: ShardReport) -> str:
    if (ended := part.run_tree.completed) is not None and ended.exit_code != _INTERRUPTED[part.shard["by"]]:
        return ""
    how = "did not end" if ended is None else "was interrupted"
    return f"part {part.number}/{part.shard['of']} {how}: what it did not run is not known"


def combine_exit_codes(codes: Sequence[int], by: str = "test") -> int:
    """Return the whole test's exit code: an unknown one is no success; "nothing to run" only if all shards say so."""
    ran = [code for code in codes if code != Exit.NOTHING] or list(codes)
    strange = next((code for code in ran if code not in _ORDERS[by] and code != Exit.OK), int(Exit.OK))
    return next((int(code) for code in _ORDERS[by] if code in ran), strange)


def _merge_rows(parts: Sequence[ShardReport], runs: Sequence[Run], order: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """Return the rows of all scenarios in order, under their names in the whole test."""
    run_tree = EventsGroupedByRun(runs={run.started.run_id: run for run in runs})
    names = Counter(each.id for each in run_tree.scenarios())
    numbers = {id(each.runs[0]): n for n, each in enumerate(run_tree.scenarios(), 1)}
    found: list[tuple[int, Mapping[str, Any]]] = []
    for part in parts:
        there = part.run_tree.scenarios()
        alone = Counter(each.id for each in there)
        own = {
            f"{each.id} [{n}: {each.runs[0].started.place}]" if alone[each.id] > 1 else each.id: each
            for n, each in enumerate(there, 1)
        }
        for row in part.run_tree.completed.scenarios if part.run_tree.completed else ():
            name = str(row.get("scenario"))
            if (each := own.get(name)) is None:
                found.append((order.get(name, len(order)), row))
                continue
            first = each.runs[0]
            if names[each.id] > 1 and part.shard["by"] == "pytest":
                name = f"{each.id} [{numbers.get(id(first), 0)}: {first.started.place}]"
            found.append((order.get(part.get_item_name_of_run(first), len(order)), {**row, "scenario": name}))
    return [row for _, row in sorted(found, key=lambda each: each[0])]
