"""Merging of several stores into one, and of several folders of cassettes: recordings from several machines.

Merging never guesses: a recording that another store replaced is left out; of folders, the target is the common base.
Two answers to one request with the same occurrence are a conflict: all are shown, and nothing is written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.core.cassettes.anonymized_export import embed_notes_in_first_recording, read_replay_rules_in_file_head
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.cassettes.formats import Recorded, Source, read_file_of_recordings, review_yaml, write_text
from llmproxy.core.cassettes.formats.review_yaml import number_exchanges_of_same_request
from llmproxy.core.changes.accepted_change_model import AcceptedChange, merge_accepted_change_lists
from llmproxy.core.forks.fork_rows import CassetteNameTaken, find_fork, store_fork_row
from llmproxy.core.store.file.connect import WORDS, connect_to_sqlite_cassette_store, open_sqlite_store_reader
from llmproxy.core.store.file.migrations import list_applied_migrations
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import (
    Note,
    read_cassette_accepted_changes,
    read_cassette_replay_rules,
    write_cassette_replay_rules,
)
from llmproxy.core.store.reader import StoreReader
from llmproxy.core.store.row_conversion import to_sql
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteError, CassetteNotFound, SettingsError
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.sqlite_file import translate_errors

_HOLDER = "llmproxy merge"
_SHOWN = 20  # maximum conflicts that are shown
_VERSIONS = "SELECT DISTINCT substr(key, 1, instr(key, ':')), rules FROM interactions WHERE superseded_at IS NULL"


class MergeConflict(CassetteError):
    code = "llmproxy_merge_conflict"
    status = 409


def raise_conflicts(conflicts: Sequence[str], hint: str) -> None:
    if conflicts:
        more = f"\n  and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        listed = "\n".join(f"  {each}" for each in conflicts[:_SHOWN])
        many = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
        raise MergeConflict(f"{many}; nothing was written:\n{listed}{more}", hint=hint)


class StoreMergeSummary(NamedTuple):
    cassettes: int
    interactions: int
    stale: int  # recordings left out because another store had replaced them


def merge_stores_into_new_one(paths: Sequence[Path], target: Path, now: Callable[[], float]) -> StoreMergeSummary:
    """Write a new store with the live recordings of several. Raises MergeConflict: two of them answer one request
    differently; CassetteError: one cannot be read, or was written by another version than the others.
    """
    _check_versions(paths)
    with ExitStack() as stack:
        stores = {
            path: stack.enter_context(SqliteCassetteStore.open(path, writable=False, now=now))
            for path in sorted(set(paths))
        }
        names = sorted({info.name for store in stores.values() for info in store.cassettes() if info.live})
        _check_rules(stores)
        stale, conflicts = 0, list[str]()
        for name in names:
            _, aside, found = _collect_merged_recordings(stores, name)
            stale += aside
            conflicts += found
        raise_conflicts(
            conflicts, f"Delete the one that is wrong: llmproxy rm ID --store STORE; then merge again into {target}."
        )
        count = 0
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        try:
            with SqliteCassetteStore.open(part, writable=True, now=now) as made:
                for name in names:
                    kept, _, _ = _collect_merged_recordings(stores, name)
                    count += len(kept)
                    _write_cassette(made, stores, name, kept)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return StoreMergeSummary(len(names), count, stale)


def _check_versions(paths: Sequence[Path]) -> None:
    """Check that one version wrote all stores: older ones may have other keys. Raises CassetteError."""
    first: tuple[Path, tuple[str, ...]] | None = None
    for path in sorted(set(paths)):
        open_sqlite_store_reader(path).close()  # says what is wrong with it
        with (
            translate_errors(path, WORDS, writing=False),
            closing(connect_to_sqlite_cassette_store(path, "mode=ro")) as conn,
        ):
            has = list_applied_migrations(conn)
        first = first or (path, has)
        if has != first[1]:
            older, newer = sorted([first, (path, has)], key=lambda each: len(each[1]))
            raise CassetteError(
                f"{older[0]} and {newer[0]} were written by different versions: {older[1][-1]} and {newer[1][-1]}.",
                hint=f"Bring the older one up to date: llmproxy verify --rekey --store {older[0]}",
            )


def _check_rules(stores: Mapping[Path, StoreReader]) -> None:
    """Check that all stores have keys of the same rules. Raises CassetteError."""
    known = {path: set(store.query(_VERSIONS, ())) for path, store in stores.items()}
    filled = [(path, found) for path, found in known.items() if found]
    for path, found in filled[1:]:
        if not found & filled[0][1]:
            raise CassetteError(
                f"The keys of {filled[0][0]} and {path} were made by different rules, so that equal requests have "
                f"different keys.",
                hint="Give both the keys of today: llmproxy verify --rekey --store STORE, with the settings of this "
                "project.",
            )


def _collect_merged_recordings(stores: Mapping[Path, Store], name: str) -> tuple[list[Interaction], int, list[str]]:
    """Return a cassette's live recordings in order, the number of outdated ones, and descriptions of conflicts."""
    replaced = "SELECT id FROM interactions WHERE cassette = ? AND superseded_at IS NOT NULL"
    gone = {
        _identify_recording(store.load(id_))
        for store in stores.values()
        for (id_,) in store.query(replaced, (to_sql(name),))
    }
    kept: dict[tuple[object, ...], tuple[Interaction, Path]] = {}
    stale, conflicts = 0, list[str]()
    for path, store in stores.items():
        for each in store.iter_interactions(name):
            if _identify_recording(each) in gone:
                stale += 1
                continue
            place = (each.sample, each.party, each.key, each.occurrence)  # by which a request is looked up
            before, there = kept.setdefault(place, (each, path))
            if _digest_answer(before) != _digest_answer(each):
                conflicts.append(f"{_format_recording_title(each)}: #{before.id} of {there}, #{each.id} of {path}")
            elif each.started_at < before.started_at:
                kept[place] = each, path
    holding = [(path, store) for path, store in stores.items() if store.find_last_id(name)]
    forks = [(path, find_fork(store, name, 1)) for path, store in holding]
    notes = [(path, _list_notes_except_changes(store, name)) for path, store in holding]
    for what, said in (("whose child it is", forks), ("what varies in it, or how old it may be", notes)):
        filled = [each for each in said if each[1]]
        conflicts += [
            f"cassette {name}: {filled[0][0]} and {path} say different things about {what}"
            for path, value in filled[1:]
            if value != filled[0][1]
        ]
    order = attrgetter("sample", "started_at", "party", "key", "occurrence")
    return sorted((each for each, _ in kept.values()), key=order), stale, conflicts


def _identify_recording(one: Interaction) -> tuple[object, ...]:
    return one.sample, one.party, one.key, one.started_at, _digest_answer(one)


def _digest_answer(one: Interaction) -> tuple[object, ...]:
    return one.response.status, hashlib.sha256(one.response.body).digest(), one.response.ending


def _format_recording_title(one: Interaction) -> str:
    nth = f", time {one.occurrence}" if one.occurrence > 1 else ""
    sample = f"~{one.sample}" if one.sample > 1 else ""
    return f"cassette {one.cassette}{sample}, {one.request.method} {one.request.target}{nth}, {one.party}"


def _write_cassette(made: Store, stores: Mapping[Path, Store], name: str, kept: Sequence[Interaction]) -> None:
    samples = sorted({one.sample for one in kept})
    for sample in samples:
        made.begin_writing(name, sample, exclusive=True, holder=_HOLDER)
    made.add_interactions([InteractionToStore(replace(one, id=None), supersede=False) for one in kept])
    if fork := next(filter(None, (find_fork(store, name, 1) for store in stores.values())), None):
        store_fork_row(made, fork)
    fields = next(filter(None, [_list_notes_except_changes(store, name) for store in stores.values()]), ())
    accepted = merge_accepted_change_lists(*(read_cassette_accepted_changes(store, name) for store in stores.values()))
    if fields or accepted:
        write_cassette_replay_rules(made, name, [*fields, *accepted])
    for sample in samples:
        parts = [store for store in stores.values() if store.has_recordings(name, sample)]
        complete = all(store.last_session_ended_cleanly(name, sample) for store in parts)
        made.end_writing(name, sample, _HOLDER, clean=complete)


class FolderMergeSummary(NamedTuple):
    written: Sequence[Path]
    unchanged: int


def merge_cassette_folders(folders: Sequence[Path], target: Path, now: Callable[[], float]) -> FolderMergeSummary:
    """Merge several folders into `target`, their common base. Raises MergeConflict, CassetteError."""
    into = CassetteDir(target, now=now)
    before = into.list_cassette_files() if target.is_dir() else {}
    found: dict[str, dict[bytes, Path]] = {}
    for folder in sorted(set(folders)):
        for name, path in CassetteDir(folder, now=now).list_cassette_files().items():
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
            review_yaml.read(changed[0]) if review_yaml.recognises(changed[0]) else read_file_of_recordings(first)
            ready[at] = changed[0].text
        elif text := _merge_three_way(name, None if base is None else Source(base, str(old)), changed, conflicts):
            ready[at] = text
    raise_conflicts(conflicts, "Take one of the files, or record what is missing: --mode auto; then merge again.")
    for at, text in ready.items():
        write_text(at, text)
    return FolderMergeSummary(list(ready), len(found) - len(ready))


def _merge_three_way(name: str, base: Source | None, sides: Sequence[Source], conflicts: list[str]) -> str:
    """Return the text of a file that several folders changed; add to `conflicts` what only a person can decide."""
    files = ", ".join(each.name for each in sides)
    if not all(review_yaml.recognises(each) for each in (*sides, *([base] if base else []))):
        conflicts.append(f"cassette {name}: {files} differ, and are not llmproxy's, whose parts can be told apart")
        return ""
    old = {} if base is None else dict(number_exchanges_of_same_request(review_yaml.read(base)))
    new: dict[object, tuple[Recorded, str]] = {}
    gone: set[object] = set()
    heads, accepted, fields = set[str](), list[list[AcceptedChange]](), list[Note]()
    old_notes = () if base is None else read_replay_rules_in_file_head(review_yaml.read(base), base.name)
    before = _list_accepted_changes(old_notes)
    dropped: set[Note] = set()
    for side in sides:
        there = dict(number_exchanges_of_same_request(review_yaml.read(side)))
        gone |= {place for place in old if place not in there}
        notes = read_replay_rules_in_file_head(list(there.values()), side.name)
        accepted.append(_list_accepted_changes(notes))
        fields = [note for note in notes if note not in accepted[-1]]
        heads.add(repr((review_yaml.read_fork_in_cassette_file(side), fields)))
        dropped |= {note for note in before if note not in accepted[-1]}
        for place, each in there.items():
            if place in old and _get_answer(old[place]) == _get_answer(each):
                continue
            mine, whose = new.setdefault(place, (each, side.name))
            if _get_answer(mine) != _get_answer(each):
                conflicts.append(
                    f"cassette {name}: {each.method} {each.uri}: interaction {mine.number} of {whose}, {each.number} "
                    f"of {side.name}"
                )
    conflicts += [
        f"cassette {name}: {new[place][1]} changed what another file does not have any more"
        for place in gone & set(new)
    ]
    if len(heads) > 1:
        conflicts.append(
            f"cassette {name}: {files} say different things about whose child it is, what varies in it, or how old it "
            "may be"
        )
    kept = [each for place, each in old.items() if place not in gone and place not in new]
    kept += [each for each, _ in new.values()]
    kept.sort(
        key=lambda one: (int(one.extra.get("sample", 1)), float(one.extra.get("started_at", 0.0)), one.uri, one.body)
    )
    united = [
        *fields,
        *merge_accepted_change_lists(*([each for each in side if each not in dropped] for side in accepted)),
    ]
    bare = [
        replace(each, extra={name: value for name, value in each.extra.items() if name not in review_yaml.NOTES})
        for each in kept
    ]
    unfinished = any(review_yaml.may_get_more_recordings(each) for each in sides)
    whole = embed_notes_in_first_recording(bare, united)
    return review_yaml.dumps(whole, name, review_yaml.read_fork_in_cassette_file(sides[0]), unfinished=unfinished)


def _list_notes_except_changes(store: Store, name: str) -> tuple[Note, ...]:
    return tuple(note for note in read_cassette_replay_rules(store, name) if not isinstance(note, AcceptedChange))


def _list_accepted_changes(notes: Iterable[Note]) -> list[AcceptedChange]:
    return [note for note in notes if isinstance(note, AcceptedChange)]


def _get_answer(one: Recorded) -> tuple[int, bytes]:
    return one.status, one.response_body


class CassetteCopySummary(NamedTuple):
    interactions: int
    replaced: int  # number of live recordings that the target's cassette had before
    same: bool  # whether it existed already, and nothing was written


def copy_cassette_between_stores(
    source: Store, target: Store, name: str, new: str, *, instead: bool, holder: str
) -> CassetteCopySummary:
    """Copy cassette `name` of one store to another as `new`; `instead`: replace an existing one.

    Raises CassetteNotFound: it has no recordings; CassetteNameTaken: the new name has another cassette, and `instead`
    is false; SettingsError: a copy would lose data; CassetteBusy: the target is being recorded.
    """
    found = [replace(each, cassette=new) for each in source.iter_interactions(name)]
    if not found:
        raise CassetteNotFound(
            f"The store {format_store_location(source.path)} holds nothing of cassette {name}.",
            hint=format_llmproxy_command("ls", source.path),
        )
    samples = sorted({each.sample for each in found})
    for sample in samples:  # in the target a fork would replay differently
        if (fork := find_fork(source, name, sample)) is not None and fork.overrides.tools:
            raise SettingsError(
                f"cassette {name} is a fork whose results of tools are overridden, and that stays in files.",
                hint="A file can be sent: "
                + format_llmproxy_command(f"export fork.yaml --cassette {quote_word(name)}", source.path),
            )
    notes, there = read_cassette_replay_rules(source, name), list(target.iter_interactions(new))
    ours, theirs = (Counter(replace(each, id=None) for each in side) for side in (found, there))
    if there and ours == theirs and notes == read_cassette_replay_rules(target, new):
        return CassetteCopySummary(len(found), 0, same=True)
    if there and not instead:
        raise CassetteNameTaken(
            f"llmproxy: {format_store_location(target.path)} has another cassette {new!r}: {(ours - theirs).total()} "
            f"of {len(found)} recordings are new, {(theirs - ours).total()} of {len(there)} there are not among them.",
            hint="Replace it with --replace, or give this one another name: --as NAME",
        )
    for sample in samples:
        target.begin_writing(new, sample, exclusive=True, holder=holder)
    clean: set[int] = set()
    try:
        target.add_interactions([InteractionToStore(each) for each in found], instead_of=new)
        if notes or read_cassette_replay_rules(target, new):
            write_cassette_replay_rules(target, new, notes)
        clean = {sample for sample in samples if source.last_session_ended_cleanly(name, sample)}
    finally:
        for sample in samples:
            target.end_writing(new, sample, holder, clean=sample in clean)
    return CassetteCopySummary(len(found), len(there), same=False)
