"""The folder of ``--cassette-dir``: one YAML file per cassette, synchronized with the store, for pull requests.

At the start of a run the file wins: if it differs from the store, all live recordings of its cassette are superseded
(`load_into`), except those newer than the last synchronization. After a session that recorded, the file is written
(`save_cassette`), but never over content that the store has not read: an edit during the run, a damaged file, another
format. A file's name is derived from the cassette's, but the name inside is authoritative.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.amount_formatting import format_count
from llmproxy.core.cassettes import anonymized_export
from llmproxy.core.cassettes.anonymized_export import (
    anonymize_interaction,
    anonymize_interaction_for_file,
    read_replay_rules_in_file_head,
)
from llmproxy.core.cassettes.formats import (
    Source,
    find_matching_format,
    read_file_of_recordings,
    review_yaml,
    write_text,
)
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.forks.fork_rows import Fork, delete_fork_row, find_fork, store_fork_row
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import (
    Note,
    list_run_variables,
    read_cassette_replay_rules,
    write_cassette_replay_rules,
)
from llmproxy.core.store.reader import CassetteFileSyncState, RecordingHead, StoreReader, was_abandoned_twice
from llmproxy.core.store.store import InteractionToStore, Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import CassetteBusy, CassetteCorrupt, CassetteError, MachineError
from llmproxy.postgres_store_paths import store_exists
from llmproxy.settings import format_shown_path

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml")
HOLDER = "llmproxy --cassette-dir"
_NAME = 100  # maximum characters of a generated file name
_HEAD = 4096  # bytes of a file that contain its cassette's name
_RETRIES = 25
_PAUSE = 0.2  # seconds between two attempts, while another process loads the same file
_COMPARED = attrgetter("method", "uri", "headers", "body", "status", "response_headers", "response_body")
"""What of a recorded exchange must be in the store before its file may be overwritten."""
_Stamp = tuple[int, int, int]  # a file's modification time in nanoseconds, size in bytes, inode


class FolderLoadSummary(NamedTuple):
    imported: tuple[str, ...] = ()  # cassettes whose files differed from the store, or were new to it
    unchanged: int = 0
    interactions: int = 0  # number of interactions of `imported`
    set_aside: int = 0  # number of live recordings that the files' recordings replaced
    skipped: tuple[str, ...] = ()  # exchanges that cannot be replayed, each with the reason
    merged: tuple[Path, ...] = ()  # files with a merge conflict of git; both sides were kept


class CassetteDir:
    def __init__(self, path: Path, *, now: Callable[[], float]) -> None:
        """`now` returns Unix time, for the mark of superseded recordings. Raises MachineError if `path` is a file."""
        if path.is_file():
            raise MachineError(f"--cassette-dir {path} is a file.", hint="Give a folder, or leave it out.")
        self.path = path
        self.now = now
        self._heads: dict[str, tuple[_Stamp, str]] = {}  # stamp and cassette of each file when it was last opened

    def list_cassette_files(self) -> dict[str, Path]:
        """Return the file of each cassette. Raises CassetteCorrupt if two files have the same cassette."""
        return {name: Path(path) for name, path in self._map_names_to_paths(self._list_files()).items()}

    def _map_names_to_paths(self, listed: Mapping[str, _Stamp]) -> dict[str, str]:
        """Return the path of each cassette; a file is opened only if it has changed since it was last opened."""
        found: dict[str, str] = {}
        for path, stamp in listed.items():
            known, name = self._heads.get(path, (None, ""))
            if known != stamp:
                name = self._read_cassette_name(Path(path))
                self._heads[path] = (stamp, name)
            if name in found:
                raise CassetteCorrupt(
                    f"{found[name]} and {path} are both cassette {name!r}.",
                    hint="Change the line `cassette:` of one of them, or delete it.",
                )
            found[name] = path
        return found

    def _read_cassette_name(self, path: Path) -> str:
        with path.open("rb") as file:
            head = Source(file.read(_HEAD), str(path))
        inside = review_yaml.read_cassette_name_in_file(head) if review_yaml.recognises(head) else ""
        return inside or ".".join(path.relative_to(self.path).with_suffix("").parts)

    def _list_files(self) -> dict[str, _Stamp]:
        """Return the YAML files in and below the folder, sorted, except hidden ones; `scandir`: there are thousands."""
        found: list[tuple[str, _Stamp]] = []
        folders = [str(self.path)]
        try:
            while folders:
                # A folder that is gone, or is none, counts as empty; the others are still searched.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
                    for each in entries:
                        if each.is_dir(follow_symlinks=False):
                            folders.append(each.path)
                        elif each.name.endswith(SUFFIXES) and not each.name.startswith(".") and each.is_file():
                            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                                is_at = each.stat()
                                found.append((each.path, (is_at.st_mtime_ns, is_at.st_size, is_at.st_ino)))
        except OSError as error:
            raise MachineError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        return dict(sorted(found))

    def load_into(
        self, store: Store, *, rules: Rules, upstreams: Mapping[str, str] | None = None,
        wait: Callable[[float], None] | None = None,
    ) -> FolderLoadSummary:  # fmt: skip
        """Load every file that differs from the store; `wait` (seconds) is called while another process does the same.

        Raises CassetteCorrupt, CassetteNewer: for all such files together, before anything was written; CassetteBusy: a
        cassette whose file differs is being recorded.
        """
        differing: dict[str, _FileData] = {}
        failed: list[CassetteError] = []
        skipped: list[str] = []
        files = self.list_cassette_files()
        merged: dict[Path, str] = {}
        for name, path in files.items():
            source = read_file_of_recordings(path)
            try:
                if review_yaml.has_git_conflict_markers(source):
                    merged[path] = review_yaml.merge_git_conflict_sides(source)
                    source = Source(merged[path].encode(), source.name)
            except CassetteError as error:
                failed.append(error)
                continue
            before = store.read_synced_file(name)
            digest = hashlib.sha256(source.data).digest()
            if (before is not None and before.sha256 == digest) or (
                kept := _format_cassette(store, name)
            ) == source.data:
                continue  # the store has it, and maybe newer recordings
            try:
                taken, left_out, fields = _read_file_interactions(source, name, rules, upstreams)
                ours = review_yaml.recognises(source)
                fork = review_yaml.read_fork_in_cassette_file(source) if ours else None
            except CassetteError as error:
                failed.append(error)
                continue
            skipped += [f"{path}, {why}" for why in left_out]
            unfinished = not ours and _has_unfinished_recording(store, name)
            if ours:
                unfinished = review_yaml.may_get_more_recordings(source)
                said = list(map(anonymized_export.strip_record_of_unkeyed_headers, review_yaml.read(source)))
                plain = anonymized_export.strip_records_of_unused_variables(said, said)
                if review_yaml.dumps(plain, name, fork, unfinished=unfinished).encode() == kept:
                    continue  # as written by a version that removed fewer headers and variables
            if (taken, fork, unfinished, fields) != (
                strip_row_data_from_interactions(anonymize_interaction(each) for each in store.iter_interactions(name)),
                find_fork(store, name, 1),
                _has_unfinished_recording(store, name),
                read_cassette_replay_rules(store, name),
            ):
                differing[name] = _FileData(taken, fork, fields, unfinished, digest, before.last_id if before else None)
        if failed:
            listed = "\n".join(map(str, failed))
            many = CassetteCorrupt(f"{len(failed)} cassette files cannot be read; nothing was changed:\n{listed}")
            raise failed[0] if len(failed) == 1 else many
        for path, text in merged.items():
            write_text(path, text)
        aside = sum(_supersede_by_file_recordings(store, name, new, wait) for name, new in differing.items())
        return FolderLoadSummary(
            imported=tuple(differing),
            unchanged=len(files) - len(differing),
            interactions=sum(len(new.interactions) for new in differing.values()),
            set_aside=aside,
            skipped=tuple(skipped),
            merged=tuple(merged),
        )

    def save_cassette(
        self, store: StoreReader, cassette: str, *, force: bool = False,
        remember: Callable[[str, CassetteFileSyncState], None] = lambda _cassette, _seen: None,
    ) -> Path | None:  # fmt: skip
        """Write the file of a cassette atomically, if it changed; return it, None if nothing is recorded.

        Raises, unless `force` overwrites it, CassetteCorrupt: the existing file is damaged or has another format;
        CassetteBusy: it was edited since the store read it; always MachineError: the folder cannot be written to.
        """
        path = self.get_path(cassette)
        while True:
            generation = store.generation
            last = store.find_last_id(cassette)
            if (data := _format_cassette(store, cassette)) is None:
                return None
            if not path.exists() or path.read_bytes() != data:
                if path.exists() and not force:
                    _check_recordings_in_store(path, store, cassette)
                write_text(path, data.decode())
                samples = {info.sample for info in store.cassettes(cassette) if info.live}
                declared = [said for sample in samples for said in list_run_variables(store, cassette, sample)]
                for said in anonymized_export.describe_remaining_personal_names(path, data.decode(), declared):
                    log.warning("%s", said)
            if store.generation == generation:
                remember(cassette, CassetteFileSyncState(hashlib.sha256(data).digest(), last))
                return path  # else another process recorded meanwhile, and may have written before us

    def get_path(self, cassette: str) -> Path:
        """Return the file of a cassette, or a path for a new one: its name where that can be one, hashed where not."""
        usual = self.path / f"{build_slug(cassette)}.yaml"
        if usual.is_file() and self._read_cassette_name(usual) == cassette:  # without reading all the others
            return usual
        listed = self._list_files()
        if found := self._map_names_to_paths(listed).get(cassette):
            return Path(found)
        taken = {path.rpartition(os.sep)[2].lower() for path in listed}  # some file systems ignore case
        return self.path / f"{build_slug(cassette, unique=True)}.yaml" if usual.name.lower() in taken else usual


def describe_hits_missing_from_files(
    store: Path, folder: CassetteDir, served: Mapping[str, Callable[[], Iterable[int | None]]]
) -> str:
    """Describe how many `served` recordings, by cassette, are in no file (a fresh clone lacks them); or ""."""
    if not store_exists(store):
        return ""
    count = 0
    with open_store(store, writable=False, now=folder.now) as reading:
        for cassette, list_served in served.items():
            ids = {row.id for row in reading.list_summaries(cassette)}
            if folder.get_path(cassette).exists():
                seen = reading.read_synced_file(cassette)
                ids = set() if seen is None else {each for each in ids if each > seen.last_id}
            count += len(ids & set(list_served())) if ids else 0
    if not count:
        return ""
    where = format_shown_path(folder.path)
    typed = format_llmproxy_command(f"export --all {quote_word(where)}", store)
    hits = format_count(count, "hit is", "hits are")
    return f"{hits} of what stands in the store alone, in no file of {where}; a fresh clone would miss: {typed}"


_DEVICE = re.compile(r"\A(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)
"""Windows' device names, with any suffix: a repository with such a file cannot be checked out there."""


def build_slug(name: str, *, unique: bool = False) -> str:
    """Return `name` in a form valid in URLs and paths; a changed one gets 8 hex digits, so that names stay distinct."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-").lstrip(".")
    if plain == name and len(name) <= _NAME and not unique and not _DEVICE.match(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_DEVICE.sub(r'\1-\2', plain)[: _NAME - 9]}-{digest}"


def _format_cassette(store: StoreReader, cassette: str) -> bytes | None:
    notes = read_cassette_replay_rules(store, cassette)
    recorded = anonymized_export.anonymize_recordings_for_file(store.iter_interactions(cassette), notes)
    if not recorded:
        return None
    fork, unfinished = find_fork(store, cassette, 1), _has_unfinished_recording(store, cassette)
    return review_yaml.dumps(recorded, cassette, fork, unfinished=unfinished).encode()


def _has_unfinished_recording(store: StoreReader, cassette: str) -> bool:
    return not all(info.closed_cleanly for info in store.cassettes(cassette) if info.live)


def strip_row_data_from_interactions(interactions: Iterable[Interaction]) -> list[Interaction]:
    """Remove data of the store only, row numbers and counts, but keep the mark of an answer that was left again."""
    turns, again, plain = Counter[tuple[int, str, Key]](), set[tuple[int, str, Key]](), list[Interaction]()
    for each in interactions:
        place, response = (each.sample, each.party, each.key), each.response
        turns[place] += 1
        if was_abandoned_twice(RecordingHead(0, each.occurrence, response.status, response.ending), turns[place]):
            again.add(place)
        plain.append(replace(each, id=None, occurrence=turns[place] + 1 if place in again else 1))
    return plain


def _read_file_interactions(
    source: Source, name: str, rules: Rules, upstreams: Mapping[str, str] | None
) -> tuple[list[Interaction], list[str], tuple[Note, ...]]:
    if (form := find_matching_format(source)) is None:
        raise CassetteCorrupt(f"{source.name}: this is not a cassette of any format that we know.")
    recorded = form.loaded.read(source)
    adopted = convert_exchanges(recorded, name, rules=rules, redactor=Redactor(), upstreams=upstreams)
    found = [each.interaction for each in adopted if each.interaction is not None]
    found.sort(key=lambda each: (each.sample, each.started_at))
    skipped = [f"interaction {each.recorded.number}: {each.why}" for each in adopted if each.interaction is None]
    return strip_row_data_from_interactions(found), skipped, read_replay_rules_in_file_head(recorded, source.name)


class _FileData(NamedTuple):
    interactions: list[Interaction]
    fork: Fork | None
    notes: tuple[Note, ...]
    unfinished: bool
    digest: bytes
    synced: int | None
    """Recordings of the cassette with larger ids are in no file; None: it was never synchronized with one."""


def _supersede_by_file_recordings(
    store: Store, name: str, read: _FileData, wait: Callable[[float], None] | None
) -> int:
    new, fork = read.interactions, read.fork
    samples = sorted({each.sample for each in new} | {info.sample for info in store.cassettes(name)})
    begun: list[int] = []
    clean = False
    try:
        for sample in samples or [1]:
            _begin_writing_when_free(store, name, sample, wait)
            begun.append(sample)
        store_fork_row(store, fork) if fork else delete_fork_row(store, name)
        if read.notes != read_cassette_replay_rules(store, name):
            write_cassette_replay_rules(store, name, read.notes)
        clean = not read.unfinished
        live = list(store.iter_interactions(name))
        # Loaded by the process that we waited for.
        if strip_row_data_from_interactions(map(anonymize_interaction, live)) == new:
            store.record_synced_file(name, CassetteFileSyncState(read.digest, store.find_last_id(name)))
            return 0
        kept = [each for each in live if read.synced is not None and (each.id or 0) > read.synced]
        plain = strip_row_data_from_interactions(map(anonymize_interaction, kept))
        stay = [replace(each, id=None) for each, one in zip(kept, plain, strict=True) if one not in new]
        before = store.find_last_id(name)
        # In one transaction: whoever is killed in it has lost nothing that no file has.
        ids = store.add_interactions([InteractionToStore(each) for each in (*new, *stay)], instead_of=name)
        store.record_synced_file(name, CassetteFileSyncState(read.digest, max(ids[: len(new)], default=before)))
        return len(live) - len(kept)
    finally:
        for sample in begun:
            store.end_writing(name, sample, HOLDER, clean=clean)


def _begin_writing_when_free(store: Store, name: str, sample: int, wait: Callable[[float], None] | None) -> None:
    for left in reversed(range(_RETRIES)):
        try:
            store.begin_writing(name, sample, exclusive=True, holder=HOLDER)
        except CassetteBusy:
            if wait is None or not left:
                raise
            wait(_PAUSE)
        else:
            return


def _check_recordings_in_store(path: Path, store: StoreReader, cassette: str) -> None:
    """Raise unless all recordings of a file are, or once were, in the store (superseded ones count)."""
    kept = format_llmproxy_command(f"export FILE --cassette {quote_word(cassette)} --format review", store.path)
    hint = f"It is in the store: {kept}; or start again and the file wins."
    source = read_file_of_recordings(path)
    if not review_yaml.recognises(source):
        raise CassetteCorrupt(f"Not overwritten: {path} was not written by llmproxy.", hint=hint)
    try:
        recorded = review_yaml.read(source)
    except CassetteError as error:
        raise CassetteCorrupt(f"Not overwritten: {error.message}", hint=hint) from error
    if review_yaml.read_fork_in_cassette_file(source) not in (None, find_fork(store, cassette, 1)):
        raise CassetteBusy(f"Not overwritten: {path} was edited while this cassette was in use (`fork`).", hint=hint)
    by_time: dict[float, list[int]] = {}
    for row in store.list_summaries(cassette, superseded=True):
        by_time.setdefault(row.started_at, []).append(row.id)
    for each in recorded:
        started = each.extra.get("started_at", 0.0)
        known = by_time.get(float(started) if isinstance(started, int | float) else 0.0, ())
        wanted = _COMPARED(anonymized_export.strip_record_of_unkeyed_headers(each))
        if not any(_COMPARED(anonymize_interaction_for_file(store.load(id_))) == wanted for id_ in known):
            raise CassetteBusy(
                f"Not overwritten: {path} was edited while this cassette was in use (interaction {each.number}).",
                hint=hint,
            )
