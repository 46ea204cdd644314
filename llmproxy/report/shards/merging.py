"""What the parts of a test told -> what the whole test would have told in one go.

    Part, Part, ... (in any order, some of them twice) -> Selected, runs in the order of their scenarios, Completed

Nothing is added up that each part says of its own: a scenario with all its repeats is in one part, so its row (rate, interval, tokens, cost)
is taken as it is. What is missing is said, and makes the end 3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmproxy.errors import Exit, SettingsError
from llmproxy.report.events import Completed, Event, Selected, Status, Step
from llmproxy.report.shards.reading import PartReport
from llmproxy.report.story import Run, Story, plain

_LISTED = 5
"""Scenarios of a missing part that are named."""
_ORDERS: Mapping[str, tuple[int, ...]] = {
    "test": (Exit.USAGE, Exit.ENVIRONMENT, Exit.MISS, Exit.FAILED, Exit.NOTHING),
    "pytest": (3, 4, 1, 5),
}
"""Exit codes, the one that says most first; pytest has its own."""
_INTERRUPTED: Mapping[str, int] = {"test": Exit.INTERRUPTED, "pytest": 2}
_TIMES = frozenset(
    {"at", "ms", "seconds", "total_seconds", "agent_seconds", "waited_seconds", "times", "run_id", "latency_ms"}
)
"""Members of a report that two runs of one part never have in common."""
_COUNTED = ("nothing is recorded for ", "nothing ran: ")
"""Beginnings of notes that count the scenarios of a part: the whole test has its own."""

Advise = Callable[[Sequence[str], Mapping[str, Any]], str]
"""Scenarios of which nothing is recorded, how the test was cut -> the note that says what records them."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The whole test."""

    events: Sequence[Event]
    exit_code: int
    missing: Sequence[str]
    """What did not come, in words; nothing if all is there."""


def merge(parts: Sequence[PartReport], advise: Advise | None = None) -> Merged:
    """Put parts together.

    Raises:
        SettingsError: they are not parts of one test, or one came twice with different results.

    """
    check_cut([(str(part.path), part.shard) for part in parts])
    _same("title", [(part, part.story.title) for part in parts])
    _same("mode", [(part, part.story.selected.mode) for part in parts if part.story.runs and part.story.selected])
    kept = once(
        [
            (
                part.number,
                str(part.path),
                _bare(part),
                (_begin_time(part), json.dumps(_tree(part), sort_keys=True)),
                part,
            )
            for part in parts
        ]
    )
    shard = kept[0].shard
    gone = missing(shard, {part.number for part in kept}) + [
        text for part in kept if (text := ended_late(part.shard, _code(part)))
    ]
    order = {name: n for n, name in enumerate(shard["items"])}
    runs = sorted(
        ((order.get(part.item(run), len(order)), part, run) for part in kept for run in part.story.runs.values()),
        key=lambda each: (each[0], each[1].number),
    )
    events = list(_events(kept, [run for _, _, run in runs], advise, gone))
    ended = events[-1]
    assert isinstance(ended, Completed)  # noqa: S101 - made a line above
    return Merged(events, ended.exit_code, gone)


def _events(
    parts: Sequence[PartReport], runs: Sequence[Run], advise: Advise | None, gone: Sequence[str]
) -> Iterator[Event]:
    shard, begun = parts[0].shard, [part.story.selected for part in parts if part.story.selected]
    ended = [part.story.completed for part in parts if part.story.completed]
    yield Selected(
        title=begun[0].title,
        mode=next(
            (part.story.selected.mode for part in parts if part.story.runs and part.story.selected), begun[0].mode
        ),
        at=min(each.at for each in begun),
        scenarios=sum(each.scenarios for each in begun),
        runs=sum(each.runs for each in begun),
    )
    story = Story()
    for run in runs:
        story.runs[run.started.run_id] = run
        yield run.started
        alone = run.finished is None or run.finished.replayed is not True
        for part in run.parts:  # numbers of a store that only this part has say nothing any more; `recordings` do
            yield replace(part, interactions=()) if alone and isinstance(part, Step) else part
        if run.finished is not None:
            yield run.finished
    order = {name: n for n, name in enumerate(shard["items"])}
    rows = _rows(parts, story, order)
    times = {name: ms for each in ended for name, ms in each.times.items()}
    code = int(Exit.ENVIRONMENT) if gone else fold([each.exit_code for each in ended], shard["by"])
    unrecorded = [run.started.scenario for run in runs if run.finished and run.finished.unrecorded]
    skipped = sum(run.status is Status.SKIPPED for run in runs), len(runs)
    yield Completed(
        exit_code=code,
        seconds=sum(each.seconds for each in ended),
        notes=tuple(whole_notes([each.notes for each in ended], unrecorded, skipped, shard, advise, code, gone)),
        scenarios=rows,
        times={name: times[name] for name in sorted(times, key=lambda each: (order.get(each, len(order)), each))},
    )


# -- are they parts of one test, and all of them?


def check_cut(cut: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """See that all parts were cut from one test, in the same way. Raises SettingsError naming two that were not."""
    first, mine = cut[0]
    for name, shard in cut[1:]:
        for what, text in (("of", f"{mine['of']} and {shard['of']} parts"), ("by", f"{mine['by']} and {shard['by']}")):
            if mine[what] != shard[what]:
                raise SettingsError(f"{first} and {name} are not parts of one test: of {text}.")
        if dict(zip(mine["items"], mine["parts"], strict=True)) == dict(
            zip(shard["items"], shard["parts"], strict=True)
        ):
            continue
        if other := sorted(set(mine["items"]) ^ set(shard["items"])):
            which = first if other[0] in mine["items"] else name
            raise SettingsError(f"{first} and {name} are of other suites: only {which} has {other[0]}.")
        raise SettingsError(
            f"{first} and {name} were cut differently, so that scenarios ran twice or not at all.",
            hint="Every part needs the same suites, --runs and --shard-times.",
        )


def missing(shard: Mapping[str, Any], there: set[int]) -> list[str]:
    """Say which parts did not come, and what they had to run."""
    found = []
    for number in range(1, int(shard["of"]) + 1):
        if number in there:
            continue
        items = [name for name, part in zip(shard["items"], shard["parts"], strict=True) if part == number]
        named = ", ".join(items[:_LISTED]) + (f" and {len(items) - _LISTED} more" if len(items) > _LISTED else "")
        found.append(
            f"part {number}/{shard['of']} is missing: "
            + (f"nothing is known of {named}" if items else "it had nothing to run")
        )
    return found


def once[T](parts: Sequence[tuple[int, str, object, tuple[float, str], T]]) -> list[T]:
    """Return each part once, by number: (number, name, what it says but for times, what orders equal ones, the part).

    Raises:
        SettingsError: one came twice, and not with the same results.

    """
    kept: dict[int, tuple[int, str, object, tuple[float, str], T]] = {}
    for each in sorted(parts, key=lambda part: (part[0], part[3])):
        before = kept.setdefault(each[0], each)
        if before[2] != each[2]:
            raise SettingsError(
                f"{before[1]} and {each[1]} are both part {each[0]}, with different results.",
                hint="Leave out the one that does not count.",
            )
    return [kept[number][4] for number in sorted(kept)]


def _same(what: str, values: Sequence[tuple[PartReport, str]]) -> None:
    for part, value in values[1:]:
        first, mine = values[0]
        if value != mine:
            raise SettingsError(
                f"{first.path} and {part.path} are not parts of one test: {what} {mine!r} and {value!r}."
            )


def _begin_time(part: PartReport) -> float:
    return part.story.selected.at if part.story.selected else 0.0


def ended_late(shard: Mapping[str, Any], exit_code: int | None) -> str:
    """Say that a part did not come to its end (None), or was interrupted; empty if it did."""
    if exit_code is not None and exit_code != _INTERRUPTED[shard["by"]]:
        return ""
    how = "did not end" if exit_code is None else "was interrupted"
    return f"part {shard['number']}/{shard['of']} {how}: what it did not run is not known"


def _code(part: PartReport) -> int | None:
    return part.story.completed.exit_code if part.story.completed else None


def _tree(part: PartReport) -> list[Any]:
    """Return everything that a part told, whatever file it stood in."""
    runs = [[run.started, *run.parts, run.finished] for run in part.story.runs.values()]
    ended = part.story.completed
    return [[[plain(each) for each in run] for run in runs], plain(ended)]


def _bare(part: PartReport) -> object:
    """Leave out what two runs of one part never have in common."""
    return _without(_tree(part), _TIMES)


def _without(tree: Any, names: frozenset[str]) -> Any:  # noqa: ANN401 - plain values
    if isinstance(tree, dict):
        return {name: _without(value, names) for name, value in tree.items() if name not in names}
    return [_without(each, names) for each in tree] if isinstance(tree, list | tuple) else tree


# -- the end


def fold(codes: Sequence[int], by: str = "test") -> int:
    """Return what a whole test ends with; that a part had nothing to run counts only where all had nothing. A code that nobody knows is no success."""
    ran = [code for code in codes if code != Exit.NOTHING] or list(codes)
    strange = next((code for code in ran if code not in _ORDERS[by] and code != Exit.OK), int(Exit.OK))
    return next((int(code) for code in _ORDERS[by] if code in ran), strange)


def whole_notes(
    notes: Sequence[Sequence[str]],
    unrecorded: Sequence[str],
    skipped: tuple[int, int],
    shard: Mapping[str, Any],
    advise: Advise | None,
    code: int,
    gone: Sequence[str],
) -> Iterator[str]:
    """Yield the notes of all parts, each once; those that count scenarios anew.

    `unrecorded`: scenarios of which nothing is recorded; `skipped`: how many runs were, of how many.
    """
    yield from dict.fromkeys(note for each in notes for note in each if not note.startswith(_COUNTED))
    if unrecorded and advise is not None:
        yield advise(list(dict.fromkeys(unrecorded)), shard)
    if code == Exit.NOTHING and skipped[1]:
        yield f"nothing ran: {skipped[0]} of {skipped[1]} runs were skipped"
    yield from gone


def _rows(parts: Sequence[PartReport], story: Story, order: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """Return the rows of all scenarios in order, under the names that they have in the whole."""
    names = Counter(each.id for each in story.scenarios())
    numbers = {id(each.runs[0]): n for n, each in enumerate(story.scenarios(), 1)}
    found: list[tuple[int, Mapping[str, Any]]] = []
    for part in parts:
        there = part.story.scenarios()
        alone = Counter(each.id for each in there)
        own = {
            f"{each.id} [{n}: {each.runs[0].started.place}]" if alone[each.id] > 1 else each.id: each
            for n, each in enumerate(there, 1)
        }
        for row in part.story.completed.scenarios if part.story.completed else ():
            name = str(row.get("scenario"))
            if (each := own.get(name)) is None:
                found.append((order.get(name, len(order)), row))
                continue
            first = each.runs[0]
            if names[each.id] > 1 and part.shard["by"] == "pytest":
                name = f"{each.id} [{numbers.get(id(first), 0)}: {first.started.place}]"
            found.append((order.get(part.item(first), len(order)), {**row, "scenario": name}))
    return [row for _, row in sorted(found, key=lambda each: each[0])]
