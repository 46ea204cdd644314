"""Import of recording files into a store: assignment of files to cassettes, and the report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import align_rows, format_count, format_seconds, number
from llmproxy.cli.parts.store_arguments import find_cassette
from llmproxy.core.cassettes.anonymized_export import anonymize_interaction, read_replay_rules_in_file_head
from llmproxy.core.cassettes.folder_sync import build_slug, strip_row_data_from_interactions
from llmproxy.core.cassettes.formats import (
    FORMATS,
    SUFFIXES,
    Format,
    Recorded,
    Source,
    find_matching_format,
    read_file_of_recordings,
    review_yaml,
)
from llmproxy.core.cassettes.importing import ImportedOrSkippedExchange, convert_exchanges
from llmproxy.core.forks.fork_rows import store_fork_row
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.queries import write_cassette_replay_rules
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction, Key
from llmproxy.errors import CassetteCorrupt, CassetteError, CassetteNotFound, SettingsError
from llmproxy.postgres_store_paths import format_store_location

_SKIPPED = 20
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RecordingFileToImport:
    path: Path
    form: Format | None
    """Format, if already detected (in a folder) or requested; None: detect when reading."""


def group_files_by_cassette(
    paths: Sequence[Path], name: str | None, form: Format | None = None
) -> dict[str, list[RecordingFileToImport]]:
    """Return each cassette's files in order; `form` forces the format. Raises CassetteNotFound, SettingsError."""
    found: dict[str, list[RecordingFileToImport]] = {}
    for path in paths:
        for piece, own in _expand_path(path, form):
            found.setdefault(name or own, []).append(piece)
    for own, pieces in found.items():
        apart = all(piece.form is not None and piece.form.apart for piece in pieces)
        if name is None and len(pieces) > 1 and not apart:
            named = any(_read_embedded_cassette_name(piece.path) for piece in pieces)
            way = "Change the line `cassette:` of one" if named else "Import the folder that holds both"
            msg = f"{pieces[0].path} and {pieces[1].path} would both become cassette {own}."
            raise SettingsError(msg, hint=f"{way}, or name the cassette that takes all with --cassette.")
    return found


def _expand_path(path: Path, form: Format | None) -> Iterator[tuple[RecordingFileToImport, str]]:
    """Yield files with cassette names: from the content of our files, else from the path below the folder."""
    if not path.is_dir():
        if not path.exists():
            raise CassetteNotFound(f"There is no file {path}.")
        yield RecordingFileToImport(path, form), _read_embedded_cassette_name(path) or build_slug(path.stem)
        return
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    pieces = []
    for file in files:
        found = form
        if form is None and file.suffix not in _YAML:
            found = find_matching_format(read_file_of_recordings(file))
            if found is None:  # another file (package.json)
                continue
        pieces.append(RecordingFileToImport(file, found))
    if not pieces:
        raise CassetteNotFound(f"The folder {path} holds no file of recordings.")
    for piece in pieces:
        if piece.form is not None and piece.form.apart:
            yield piece, build_slug(path.resolve().name)
        else:
            own = ".".join(piece.path.relative_to(path).with_suffix("").parts)
            yield piece, _read_embedded_cassette_name(piece.path) or build_slug(own)


def _read_embedded_cassette_name(path: Path) -> str:
    if path.suffix not in _YAML:
        return ""
    with path.open("rb") as file:
        head = Source(file.read(4096), str(path))
    return review_yaml.read_cassette_name_in_file(head) if review_yaml.recognises(head) else ""


def read_exchanges_from_import_files(
    pieces: Sequence[RecordingFileToImport], models: Sequence[str] = ()
) -> list[Recorded]:
    """Return the exchanges of one cassette's files; `models` apply to files without any. Raises CassetteError."""
    sources: dict[str, list[Source]] = {}
    forms: dict[str, Format] = {}
    for piece in pieces:
        source = read_file_of_recordings(piece.path, models)
        if (form := piece.form or find_matching_format(source)) is None:
            msg = f"{source.name}: this is not a file of recordings of any format that we know."
            raise CassetteCorrupt(msg, hint=f"`llmproxy import --format KIND` forces one: {', '.join(FORMATS)}.")
        forms[form.name] = form
        sources.setdefault(form.name, []).append(source)
    return [each for name, form in forms.items() for each in form.read_all(sources[name])]


def load_stored_or_file_cassette(
    what: str, database: Store | None, rules: Rules, upstreams: Mapping[str, str]
) -> list[Interaction]:
    """Return a cassette from a file or from the store. Raises CassetteNotFound: neither; CassetteError."""
    if Path(what).is_file():
        recorded = read_exchanges_from_import_files([RecordingFileToImport(Path(what), None)])
        adopted = convert_exchanges(recorded, "diff", rules=rules, redactor=Redactor(), upstreams=upstreams)
        return [each.interaction for each in adopted if each.interaction is not None]
    if database is None:
        raise CassetteNotFound(f"there is no file {what}.")
    return list(database.iter_interactions(*find_cassette(database, what)))


@dataclass(slots=True)
class _HostCounts:
    providers: dict[str, bool] = field(default_factory=dict)
    """By name, whether it is in the provider table; the table lists others only if none is."""
    asks_unknown: bool = False
    """Whether the host got JSON requests and belongs to no known provider."""
    exchanges: int = 0
    imported: int = 0
    replaced: int = 0
    unchanged: int = 0


@dataclass(slots=True)
class RecordingFileImporter:
    rules: Rules
    upstreams: Mapping[str, str]
    models: Sequence[str] = ()
    hosts: dict[str, _HostCounts] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    failed: list[CassetteError] = field(default_factory=list)
    cassettes: int = 0
    seconds: float = 0.0

    @property
    def skipped_every_exchange(self) -> bool:
        return bool(self.hosts) and not any(host.imported or host.unchanged for host in self.hosts.values())

    def import_cassette(self, database: Store, name: str, pieces: Sequence[RecordingFileToImport]) -> None:
        """Import the files of one cassette; a damaged file is reported, and the cassette is skipped."""
        started = time.perf_counter()
        try:
            recorded = read_exchanges_from_import_files(pieces, self.models)
            source = read_file_of_recordings(pieces[0].path)
            is_ours = len(pieces) == 1 and review_yaml.recognises(source)
            fork = review_yaml.read_fork_in_cassette_file(source) if is_ours else None
            notes = read_replay_rules_in_file_head(recorded, ", ".join(str(piece.path) for piece in pieces[:3]))
        except CassetteError as error:
            self.failed.append(error)
            return
        adopted = convert_exchanges(recorded, name, rules=self.rules, redactor=Redactor(), upstreams=self.upstreams)
        self._store_interactions(database, name, adopted)
        if fork is not None and any(each.interaction for each in adopted):
            store_fork_row(database, replace(fork, cassette=name))
        if notes:
            write_cassette_replay_rules(database, name, notes)
        self.cassettes += 1
        self.seconds += time.perf_counter() - started

    def _store_interactions(self, database: Store, name: str, adopted: Sequence[ImportedOrSkippedExchange]) -> None:
        samples = {each.interaction.sample for each in adopted if each.interaction} or {1}
        holder = "llmproxy import"
        for sample in sorted(samples):
            database.begin_writing(name, sample, exclusive=True, holder=holder)
        clean = False
        try:
            live = list(database.iter_interactions(name))
            # what came in while it was not known whose API that host is
            named = {_exchange_key(a.interaction): a.host for a in adopted if a.interaction and a.known}
            if gone := {x.id for x in live if x.id and named.get(_exchange_key(x)) == x.provider}:
                database.delete_interactions(gone)
            known = _group_by_sample_and_key(map(anonymize_interaction, live))
            before = (x for x in live if not x.upstream.endswith(f"//{x.provider}"))
            named_before = {(_exchange_key(x), x.response.body) for x in before}
            brought = _group_by_sample_and_key(each.interaction for each in adopted if each.interaction)
            same = {place for place, found in brought.items() if found == known.get(place)}
            for each in adopted:
                one = each.interaction
                if one and not each.known and (_exchange_key(one), one.response.body) in named_before:
                    same.add(_recording_group_key(one))
                if one and _recording_group_key(one) in same:
                    self._count_exchange_at_host(each, one).unchanged += 1
                else:
                    self._import_exchange(database, name, each)
            clean = True
        finally:
            for sample in samples:
                database.end_writing(name, sample, holder, clean=clean)

    def _import_exchange(self, database: Store, name: str, each: ImportedOrSkippedExchange) -> None:
        host = self._count_exchange_at_host(each, each.interaction)
        if each.interaction is None:
            self.skipped.append(f"{name}, interaction {each.recorded.number}: {each.why}")
            return
        if each.first:
            host.replaced += len(database.find_keyed(name, *_recording_group_key(each.interaction)))
        database.add_interaction(each.interaction, supersede=each.first)
        host.asks_unknown |= not each.known and each.interaction.request.body.startswith(b"{")
        host.imported += 1

    def _count_exchange_at_host(self, each: ImportedOrSkippedExchange, interaction: Interaction | None) -> _HostCounts:
        host = self.hosts.setdefault(each.host or "(no host)", _HostCounts())
        host.exchanges += 1
        if interaction is not None:
            host.providers[interaction.provider] = each.known
        return host

    def format_report(self, store: Path, typed: str) -> str:
        """Return the table by host, and remarks; `typed` are the files as named by the user."""
        hosts = sorted(self.hosts.items(), key=lambda item: -item[1].exchanges)
        counted = ("exchanges", "imported", "replaced")
        total = {each: sum(getattr(host, each) for _, host in hosts) for each in counted}
        rows: list[tuple[str, ...]] = [("host", "provider", *counted)]
        for name, host in hosts:
            providers = [each for each, known in host.providers.items() if known] or host.providers
            rows.append((name, ", ".join(providers), *(number(getattr(host, each)) for each in counted)))
        rows.append(("total", "", *map(number, total.values())))
        lines = align_rows(rows, right=range(2, len(rows[0]))) if hosts else []
        came = "Nothing was imported" if hosts else "Nothing was imported: no exchange is in it"
        if count := total["imported"]:
            held = f"{format_count(self.cassettes, 'cassette')} with {format_count(count, 'interaction')}"
            came = f"{held} in {format_store_location(store)}"
        lines.append(f"{came} ({format_seconds(self.seconds)})")
        if count := total["replaced"]:
            lines.append(f"{number(count)} older recordings of the same requests were replaced; nothing is doubled.")
        if unchanged := sum(host.unchanged for _, host in hosts):
            lines.append(f"{format_count(unchanged, 'interaction was', 'interactions were')} there already.")
        for name, host in hosts:
            if host.asks_unknown:
                again = format_llmproxy_command(f"import {typed} --upstream openai=http://{name}/v1", store)
                lines.append(f"Whose API is at {name} is not known. If it is OpenAI's, import again: {again}")
        lines += [f"skipped: {line}" for line in self.skipped[:_SKIPPED]]
        if len(self.skipped) > _SKIPPED:
            lines.append(f"and {len(self.skipped) - _SKIPPED} more skipped")
        return "\n".join(lines)


def _recording_group_key(each: Interaction) -> tuple[int, str, Key]:
    return each.sample, each.party, each.key


def _exchange_key(each: Interaction) -> tuple[str, str, str, bytes]:
    return each.upstream, each.request.method, each.request.target, each.request.body


def _group_by_sample_and_key(found: Iterable[Interaction]) -> dict[tuple[int, str, Key], list[Interaction]]:
    places: dict[tuple[int, str, Key], list[Interaction]] = {}
    for each in strip_row_data_from_interactions(found):
        places.setdefault(_recording_group_key(each), []).append(each)
    return places
