"""Folders of cassette files as one, of the parts of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmproxy.core.cassettes.folder import CassetteDir
from llmproxy.core.cassettes.formats import Source, open_source, review
from llmproxy.core.cassettes.formats.conflicts import places
from llmproxy.core.cassettes.formats.recorded import Recorded
from llmproxy.core.cassettes.formats.vcr_yaml import write_text
from llmproxy.core.cassettes.uniting import refuse_conflicts


@dataclass(frozen=True, slots=True)
class UnitedFolders:
    """What became of several folders."""

    written: Sequence[Path]
    unchanged: int


def unite_folders(folders: Sequence[Path], target: Path, now: Callable[[], float]) -> UnitedFolders:
    """Bring what several folders hold into the one at `target`, whose files say what was there before.

    Raises:
        MergeConflict: two of them answer one request differently.
        CassetteError: a file cannot be read.

    """
    into = CassetteDir(target, now=now)
    before = into.files() if target.is_dir() else {}
    found: dict[str, dict[bytes, Path]] = {}
    for folder in sorted(set(folders)):
        for name, path in CassetteDir(folder, now=now).files().items():
            found.setdefault(name, {}).setdefault(path.read_bytes(), path)
    ready: dict[Path, str] = {}
    conflicts: list[str] = []
    for name, sides in sorted(found.items()):
        old = before.get(name)
        base = None if old is None else old.read_bytes()
        changed = [Source(data, str(path)) for data, path in sorted(sides.items()) if data != base]
        if not changed:
            continue
        first = Path(changed[0].name)
        at = old or target / first.name
        if len(changed) == 1:
            review.read(changed[0]) if review.recognises(changed[0]) else open_source(first)
            ready[at] = changed[0].text
        elif text := _three_way(name, None if base is None else Source(base, str(old)), changed, conflicts):
            ready[at] = text
    refuse_conflicts(conflicts, "Take one of the files, or record what is missing: --mode auto; then merge again.")
    for at, text in ready.items():
        write_text(at, text)
    return UnitedFolders(list(ready), len(found) - len(ready))


def _three_way(name: str, base: Source | None, sides: Sequence[Source], conflicts: list[str]) -> str:
    """Return the text of a file that several changed; says in `conflicts` what nobody but a person can decide."""
    files = ", ".join(each.name for each in sides)
    if not all(review.recognises(each) for each in (*sides, *([base] if base else []))):
        conflicts.append(f"cassette {name}: {files} differ, and are not llmproxy's, whose parts can be told apart")
        return ""
    old = {} if base is None else dict(places(review.read(base)))
    new: dict[object, tuple[Recorded, str]] = {}
    gone: set[object] = set()
    heads = set[str]()
    for side in sides:
        there = dict(places(review.read(side)))
        gone |= {place for place in old if place not in there}
        slots: object = next((each.extra["slots"] for each in there.values() if "slots" in each.extra), [])
        heads.add(repr((review.fork_in(side), slots)))
        for place, each in there.items():
            if place in old and _answer_of(old[place]) == _answer_of(each):
                continue
            mine, whose = new.setdefault(place, (each, side.name))
            if _answer_of(mine) != _answer_of(each):
                conflicts.append(
                    f"cassette {name}: {each.method} {each.uri}: interaction {mine.number} of {whose}, {each.number} of {side.name}"
                )
    conflicts += [
        f"cassette {name}: {new[place][1]} changed what another file does not have any more"
        for place in gone & set(new)
    ]
    if len(heads) > 1:
        conflicts.append(f"cassette {name}: {files} say different things about whose child it is, or what varies in it")
    kept = [each for place, each in old.items() if place not in gone and place not in new] + [
        each for each, _ in new.values()
    ]
    kept.sort(key=_when)
    return review.dumps(
        _head_first(kept), name, review.fork_in(sides[0]), unfinished=any(review.is_open(each) for each in sides)
    )


def _answer_of(one: Recorded) -> tuple[int, bytes]:
    return one.status, one.response_body


def _when(one: Recorded) -> tuple[int, float, str, bytes]:
    sample, started = one.extra.get("sample", 1), one.extra.get("started_at", 0.0)
    return int(sample), float(started), one.uri, one.body


def _head_first(kept: Sequence[Recorded]) -> list[Recorded]:
    """Let the first say what the head of the file says, wherever it stood."""
    slots = next((each.extra["slots"] for each in kept if "slots" in each.extra), None)
    bare = [
        replace(each, extra={name: value for name, value in each.extra.items() if name != "slots"}) for each in kept
    ]
    if slots and bare:
        bare[0] = replace(bare[0], extra={**bare[0].extra, "slots": slots})
    return bare
