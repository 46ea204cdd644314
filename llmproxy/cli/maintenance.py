"""Store maintenance: ``llmproxy verify``, ``prune``, ``rm``, ``rename``, and ``scan``, which finds secrets."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import typer

from llmproxy import sqlite_file
from llmproxy.advice import format_llmproxy_command, format_store_option
from llmproxy.amount_formatting import format_count, name_some
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import LongTaskProgressLine, format_size, print_line, to_safe_line
from llmproxy.cli.parts.store_arguments import (
    STORE,
    copy_postgres_store_temporarily,
    find_cassette,
    get_chosen_store,
    is_interaction_number,
    is_sqlite_file,
    is_store_file,
    list_stores_and_cassette_files,
    open_given_store,
    refuse_url_as_file,
    require_not_being_recorded,
    suggest_option_for_numeric_name,
    validate_cassette_name,
)
from llmproxy.core.bindings.text_alignment import find_people_in_git_output
from llmproxy.core.cassettes.anonymized_export import read_replay_rules_in_file_head
from llmproxy.core.cassettes.folder_sync import CassetteDir
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import SHAPED, Redactor, count_secrets_by_part, find_secret_line_numbers
from llmproxy.core.sessions.journal import read_ids_used_last_run
from llmproxy.core.store import queries
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.integrity_checks import count_bytes_freed_by_deletion, find_damages
from llmproxy.core.store.queries import (
    RekeyedRecording,
    find_recordings_losing_shared_key,
    find_recordings_now_sharing_key,
    read_cassette_accepted_changes,
)
from llmproxy.core.store.row_conversion import StoredCallSummary
from llmproxy.core.store.store import Store
from llmproxy.errors import (
    CassetteError,
    CassetteNotFound,
    Exit,
    LLMProxyError,
    MachineError,
    SettingsError,
    ensure_program_prefix,
)
from llmproxy.file_io import read_bounded_bytes
from llmproxy.postgres_store_paths import format_store_location

_DAY = 86_400


_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Verifier:
    rules: Rules
    upstreams: Mapping[str, str]
    cassette: str | None = None
    rekey: bool = False
    held: list[Path] = field(default_factory=list)
    lacking: list[CassetteNotFound] = field(default_factory=list)

    def verify_store(self, path: Path) -> int:
        """Check a store, print and count the errors. Raises CassetteError."""
        from llmproxy.cli.parts.binding_formatting import (  # late
            find_recordings_merged_by_fields,
            print_pairs_equal_up_to_volatiles,
        )

        if path.is_file() and not path.stat().st_size:
            print_line(f"damaged: {path} is empty (0 bytes). Restore it from version control, or remove it.")
            return 1
        with (
            open_given_store(path) as database,
            LongTaskProgressLine(f"verifying {format_store_location(path)}", "interaction") as working,
        ):
            if self.cassette is not None and not self._is_cassette_stored(database, path):
                return 0
            checked = database, self.rules, self.upstreams, self.cassette
            damaged = list(find_damages(database, working.iterate, self.cassette))
            readable = not any(each.interaction is None for each in damaged)
            found: list[RekeyedRecording] = []
            if readable:
                recordings = queries.iter_recordings_with_new_keys(*checked)
                found += working.iterate(recordings, database.count_interactions(self.cassette))
            merged = {} if damaged else find_recordings_merged_by_fields(*checked)
            told = [] if damaged else list(self._describe_accepted_conflicts(database))
        for each in damaged:
            where = "" if each.interaction is None else f"interaction {each.interaction}: "
            print_line(f"damaged: {where}{to_safe_line(each.what)}")
        for key in (each for each in found if each.has_unexplained_key):
            keys = f"its key is {key.old[:15]}..., its request gives {key.new[:15]}..."
            print_line(f"damaged: interaction {key.id}: {keys}")
        self._print_outdated_keys(path, found)
        if self.rekey and not damaged:
            with open_given_store(path, writable=True) as database:
                count = queries.rewrite_keys_under_current_rules(database, self.rules, self.upstreams)
            print_line(f"{format_count(count, 'key')} derived anew." if count else "Every key is as it should be.")
        print_pairs_equal_up_to_volatiles(merged)
        for text in told:
            print_line(text)
        wrong = len(damaged) + sum(each.has_unexplained_key for each in found) + len(told)
        state = "nothing is wrong." if not wrong else f"{wrong} are not as they should be."
        print_line(f"{format_store_location(path)}: {format_count(len(found), 'live interaction')}, {state}")
        return wrong

    def count_file_errors(self, path: Path) -> int:
        """Check that each exchange of a file is a recording; returns the number of others. Raises CassetteError."""
        from llmproxy.cli.parts.import_files import (  # late: the other commands read stores
            RecordingFileToImport,
            read_exchanges_from_import_files,
        )

        recorded = read_exchanges_from_import_files([RecordingFileToImport(path, None)])
        adopted = convert_exchanges(recorded, "verify", rules=self.rules, redactor=Redactor(), upstreams=self.upstreams)
        read_replay_rules_in_file_head(recorded, path)
        skipped = [each for each in adopted if each.interaction is None]
        for each in skipped:
            print_line(f"{path}: exchange {each.recorded.number} is no recording: {to_safe_line(each.why)}")
        state = "nothing is wrong." if not skipped else f"{len(skipped)} are not as they should be."
        print_line(f"{path}: {len(adopted)} exchanges, {state}")
        return len(skipped)

    def _describe_accepted_conflicts(self, database: Store) -> Iterator[str]:
        """Yield recordings that accepted changes would merge although their answers differ."""
        from llmproxy.core.engine.carried_answers import (
            find_recordings_equated_by_change,  # late: it is half of the engine
        )

        for name in database.list_cassette_names() if self.cassette is None else [self.cassette]:
            accepted = read_cassette_accepted_changes(database, name)
            for one, other in find_recordings_equated_by_change(database, name, accepted, self.rules, self.upstreams):
                names = sorted({each.name for each in accepted})
                yield (
                    f"cassette {to_safe_line(name)}: recordings #{one} and #{other} answer differently, and would be "
                    f"one request under its accepted changes ({to_safe_line(name_some(names))}); take one back: "
                    f"{format_llmproxy_command(f'changes drop {to_safe_line(names[0])}', database.path)}"
                )

    def _is_cassette_stored(self, database: Store, path: Path) -> bool:
        try:
            if find_cassette(database, str(self.cassette)).sample is not None:
                named = to_safe_line(str(self.cassette))
                raise SettingsError(f"{named} is a sample; a cassette is verified with all of them.")
        except CassetteNotFound as error:
            self.lacking.append(error)
            return False
        self.held.append(path)
        return True

    def _print_outdated_keys(self, path: Path, found: list[RekeyedRecording]) -> None:
        if changed := [each for each in found if each.old != each.new and each.other_rules]:
            many = f"{len(changed)} interactions were recorded under other rules"
            print_line(f"{many} and have another key under today's:")
            _print_recording_groups(
                "one key now (they would answer each other's requests)", find_recordings_now_sharing_key(found)
            )
            _print_recording_groups(
                "different keys now (they were one request before)", find_recordings_losing_shared_key(found)
            )
            if not self.rekey:
                print_line("Replay derives today's keys whenever it opens their cassette.")
                print_line(f"To make them last: {format_llmproxy_command('verify --rekey', path)}")


def _print_recording_groups(what: str, groups: list[list[RekeyedRecording]]) -> None:
    for group in groups[:_SHOWN]:
        print_line(f"  {', '.join(str(each.id) for each in group)}: {what}")
    if len(groups) > _SHOWN:
        print_line(f"  ... and {len(groups) - _SHOWN} more groups with {what}")


def verify_command(
    paths: list[Path] | None = typer.Argument(
        None, metavar="PATH", help="Stores, cassette files, folders of them; default: the store."
    ),
    store: Path | None = STORE,
    cassette: str | None = typer.Option(None, "--cassette", metavar="NAME", help="Only this cassette."),
    rekey: bool = typer.Option(False, "--rekey", help="Replace stored keys by keys under the current rules."),
) -> None:
    """Check every recording: the file, each body's hash, and each key under the current rules."""
    if rekey and cassette is not None:
        raise SettingsError("--rekey derives the keys of a whole store: leave --cassette out.")
    settings = load_settings({"store": store}).settings
    verifier = _Verifier(Rules.from_settings(settings.normalize), settings.upstream, cassette, rekey)
    wrong, failed, looked, places = 0, False, False, paths or [settings.store]
    for path, is_store in list_stores_and_cassette_files(places):
        looked = True
        try:
            with copy_postgres_store_temporarily(path) as here:
                wrong += verifier.verify_store(here) if is_store else verifier.count_file_errors(here)
        except CassetteError as error:
            if len(paths or ()) <= 1:
                raise
            failed = True
            typer.echo(ensure_program_prefix(error), err=True)
    if not looked:
        where = ", ".join(map(str, places))
        raise CassetteNotFound(f"there is nothing to verify in {where}: no store, and no file of recordings.")
    if verifier.lacking and not verifier.held:  # a name that is nowhere: nothing was verified
        raise verifier.lacking[0]
    if wrong or failed:
        raise typer.Exit(int(Exit.ENVIRONMENT if failed else Exit.FAILED))


def prune_command(
    paths: list[Path] | None = typer.Argument(None, metavar="STORE", help="Default: the store."),
    store: Path | None = STORE,
    superseded: bool = typer.Option(False, "--superseded", help="Recordings that a newer one replaced (the default)."),
    unused: bool = typer.Option(False, "--unused", help="Recordings of the last run's cassettes that it did not use."),
    cassette: str | None = typer.Option(
        None,
        "--cassette",
        metavar="NAME",
        autocompletion=complete_cassette_names,
        help="Only this cassette; without other options: all of it.",
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", metavar="DAYS", min=0, help="Only older recordings; without other options: all of them."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete replaced, unused or old recordings, after showing them and asking."""
    whole = not superseded and not unused and (cassette is not None or older_than is not None)
    places = paths or [get_chosen_store(store)]
    if cassette is not None:
        _require_cassette(places, cassette)
    done = []
    for path in places:
        with open_given_store(path, writable=True) as database:
            rows = database.list_summaries(cassette, superseded=True)
            if older_than is not None:
                until = time.time() - older_than * _DAY
                rows = [row for row in rows if row.started_at < until]
            if not whole:
                rows = _select_superseded_or_unused(database, rows, superseded=superseded or not unused, unused=unused)
            done.append(_confirm_and_delete(database, rows, yes=yes))
    if not all(done):
        raise typer.Exit(int(Exit.FAILED))


def _require_cassette(places: Collection[Path], cassette: str) -> None:
    """Check that a store has a cassette of this name. Raises CassetteNotFound, SettingsError."""
    lacking = []
    for path in places:
        with open_given_store(path) as database:
            try:
                named = find_cassette(database, cassette)
            except CassetteNotFound as error:
                lacking.append(error)
                continue
        if named.sample is not None:
            again = format_llmproxy_command(f"rm {shlex.quote(cassette)}", path)
            msg = f"{to_safe_line(cassette)} is a sample, and prune takes cassettes."
            raise SettingsError(f"{msg} To delete it: {again}")
    if len(lacking) == len(places):
        raise lacking[0]


def _confirm_and_delete(database: Store, chosen: Collection[StoredCallSummary], *, yes: bool) -> bool:
    """Return whether they are deleted. Raises CassetteBusy: a session records a cassette that would lose answers."""
    if not chosen:
        print_line(f"There is nothing to delete in {format_store_location(database.path)}.")
        return True
    ids = [row.id for row in chosen]
    live = sum(not row.superseded for row in chosen)
    what = f"{format_count(len(ids), 'interaction')} of {_format_cassette_names(chosen)}"
    print_line(f"{what}: {live:,} live, {len(ids) - live:,} replaced by newer ones;")
    print_line(
        f"about {format_size(count_bytes_freed_by_deletion(database, ids))} of {format_store_location(database.path)}."
    )
    if not yes and not _ask_confirmation():
        print_line("Nothing was deleted." + ("" if sys.stdin.isatty() else " --yes deletes without asking."))
        return False
    require_not_being_recorded(database, {(row.cassette, row.sample) for row in chosen if not row.superseded})
    done = database.delete_interactions(ids)
    freed = "" if not done.freed else f"; the file is {format_size(done.freed)} smaller"
    print_line(f"Deleted {format_count(done.interactions, 'interaction')}{freed}.")
    return True


def rm_command(
    what: list[str] = typer.Argument(
        ..., autocompletion=complete_cassette_names, metavar="CASSETTE|ID", help="Cassettes, samples (NAME~2), numbers."
    ),
    store: Path | None = STORE,
    cassette: bool = typer.Option(False, "--cassette", help="Treat numbers as names of cassettes."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete cassettes or single interactions, after showing them and asking."""
    with open_given_store(store, writable=True) as database:
        numbers = [] if cassette else [typed for typed in what if is_interaction_number(typed)]
        rows = {row.id: row for row in (database.list_summaries(None, superseded=True) if numbers else ())}
        if lacking := next((typed for typed in numbers if int(typed) not in rows), ""):
            hint = suggest_option_for_numeric_name(database, lacking, "rm")
            msg = f"There is no interaction {lacking} in {format_store_location(database.path)}."
            raise CassetteNotFound(msg, hint=hint or f"Their numbers: {format_llmproxy_command('ls', database.path)}")
        wanted = {int(typed): rows[int(typed)] for typed in numbers}
        whole = []
        for typed in what:
            if typed in numbers:
                continue
            named = find_cassette(database, typed)
            whole += [named.cassette] if named.sample is None else []
            wanted |= {row.id: row for row in database.list_summaries(named.cassette, named.sample, superseded=True)}
        done = _confirm_and_delete(database, list(wanted.values()), yes=yes)
        if done:
            _warn_files_keep_deleted(store, whole)
    if not done:
        raise typer.Exit(int(Exit.FAILED))


def rename_command(
    old: str = typer.Argument(
        ..., metavar="CASSETTE", autocompletion=complete_cassette_names, help="Current name; all samples are renamed."
    ),
    new: str = typer.Argument(..., metavar="NAME", help="The new name."),
    store: Path | None = STORE,
) -> None:
    """Rename a cassette."""
    with open_given_store(store, writable=True) as database:
        if find_cassette(database, old).sample is not None:
            raise SettingsError(f"{to_safe_line(old)} is a sample; a cassette is renamed with all of them.")
        database.rename_cassette(old, validate_cassette_name(new))
        print_line(f"{to_safe_line(old)} is now {to_safe_line(new)}.")
        _warn_files_keep_deleted(store, [old])


def _warn_files_keep_deleted(store: Path | None, cassettes: Collection[str]) -> None:
    """Print files that still hold the deleted recordings: the next start imports them again."""
    folder = load_settings({"store": store}).settings.cassette_dir
    if folder is None or not folder.is_dir():
        return
    files = CassetteDir(folder, now=time.time).list_cassette_files()
    for name in cassettes:
        if name in files:
            print_line(f"{files[name]} still holds it, and is read again where it changes: remove it, too.")


def _ask_confirmation() -> bool:
    """Ask for confirmation; end of input or Ctrl-C means no."""
    try:
        return typer.confirm("Delete them?")
    except typer.Abort:
        print_line()
        return False


def _select_superseded_or_unused(
    database: Store, rows: Collection[StoredCallSummary], *, superseded: bool, unused: bool
) -> list[StoredCallSummary]:
    """Return the selected recordings. Raises MachineError if their use is unknown."""
    chosen = [row for row in rows if row.superseded] if superseded else []
    if unused:
        journal = Path(f"{database.path}.state.db")
        if (served := read_ids_used_last_run(journal)) is None:
            msg = f"What is unused is not known: there is no run in {journal}."
            raise MachineError(msg, hint="Run your agent once, then prune.")
        # Only cassettes that the run walked through: what it never opened is not unused, it was not asked.
        walked = {(row.cassette, row.sample) for row in rows if row.id in served}
        unused_rows = (row for row in rows if not row.superseded and row.id not in served)
        chosen += [row for row in unused_rows if (row.cassette, row.sample) in walked]
    return chosen


def _format_cassette_names(rows: Collection[StoredCallSummary]) -> str:
    names = sorted({row.cassette for row in rows})
    shown = ", ".join(to_safe_line(name) for name in names[:5])
    more = ", ..." if len(names) > 5 else ""
    return f"cassette {shown}" if len(names) == 1 else f"{len(names)} cassettes ({shown}{more})"


_BESIDE = (".state.db", "-wal")
_LINES = 5

_TAKE_OUT = """
How to take them out:
  1. Revoke them where they were made. Whoever has the file has them, and so has the history of a repository.
  2. Write the recordings anew; secrets are taken out on the way:
       llmproxy export clean --all{store}
       llmproxy import clean/* --store clean.db
       llmproxy scan clean.db
     then put clean.db in the place of the store, and delete the folder's and the store's old files ({beside}).
     A cassette file:
       llmproxy import FILE --store clean.db
       llmproxy export FILE --store clean.db --cassette NAME --format review --force
     Or delete and record again:  llmproxy prune --cassette NAME{store}
  3. What was committed stays in the history: git filter-repo --path FILE --invert-paths, and force-push."""


def scan_command(
    paths: list[Path] | None = typer.Argument(
        None, metavar="PATH", help="Stores, cassettes, exports, reports, folders of them; default: the store."
    ),
    store: Path | None = STORE,
) -> None:
    """Find secrets in existing stores, cassettes and reports, by the current rules, and explain how to remove them.

    It also lists people's names in recorded git output.
    """
    given = list(paths or [get_chosen_store(store)])
    redactor, looked = Redactor(), 0
    found: list[str] = []
    named: dict[str, list[str]] = {}
    failed: list[str] = []
    stores: list[Path] = []
    with LongTaskProgressLine("looking for secrets", "file") as working:
        for path in working.iterate(_list_files(given)):
            looked += 1
            try:
                if is_store := path.is_file() and is_store_file(path):
                    stores.append(path)
                secrets, people = _scan_file(path, redactor, is_store=is_store)
                found += [to_safe_line(f"{path}: {where}: {what}") for where, what in secrets]
                for where, who in people:
                    named.setdefault(who, []).append(to_safe_line(f"{path}: {where}: git names {who}"))
            except LLMProxyError as error:
                failed.append(f"{path}: {error.message}")
            except OSError as error:
                failed.append(f"{path}: {error.strerror or error}")
    for each in (*found, *(each for lines in named.values() for each in lines)):
        print_line(each)
    for each in failed:
        typer.echo(ensure_program_prefix(to_safe_line(each)), err=True)
    if failed:  # what was not read is not clean
        raise typer.Exit(int(Exit.ENVIRONMENT))
    if not found:
        also = f"; git names {format_count(len(named), 'person', 'people')} there" if named else ""
        print_line(f"No secrets in {looked} files{also}." if looked != 1 else f"No secrets in {given[0]}{also}.")
        return

    first = str(stores[0]) if stores else str(given[0])
    print_line(_TAKE_OUT.format(store=format_store_option(first), beside=f"{first}-wal, {first}.state.db"))
    raise typer.Exit(int(Exit.FAILED))


def _list_files(given: list[Path]) -> Iterator[Path]:
    """Yield the files to scan, companion files included. Raises MachineError for a missing file."""
    seen: set[Path] = set()
    for path in given:
        refuse_url_as_file(path)
        if not path.exists():
            raise MachineError(f"There is no {path}.", hint="llmproxy scan PATHS takes files and folders.")
        inside = [path]
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file() and ".git" not in each.parts)
        beside = [Path(f"{each}{end}") for each in inside for end in _BESIDE]
        for each in (*inside, *(one for one in beside if one.is_file())):
            # -shm: an index without text, and SQLite's locks are on it
            if each not in seen and not each.name.endswith("-shm"):
                seen.add(each)
                yield each


def _read_file_or_store_copy(path: Path) -> bytes:
    """Return a file's bytes; a database's from a copy, since only SQLite may open it (`sqlite_file`)."""
    if not path.name.endswith("-wal") and not is_sqlite_file(path):
        return read_bounded_bytes(path)
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "copy"
        sqlite_file.copy_raw_database_file(path, copied)
        return copied.read_bytes()


def _scan_file(
    path: Path, redactor: Redactor, *, is_store: bool
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return secrets, and people named by git in recorded texts (a shared file may name them), each with its place.

    Of a store, recordings are read, superseded ones too; its bytes only if these hold no secret. Raises CassetteError,
    also for a foreign database.
    """
    people: list[tuple[str, str]] = []
    secrets: list[tuple[str, str]] = []
    if is_store:
        with open_store(path, writable=False, now=time.time) as database:
            for row in database.list_summaries(superseded=True):
                one, place = database.load(row.id), f"interaction {row.id} of cassette {row.cassette}"
                for part, names in count_secrets_by_part(one, redactor).items():
                    told = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in names.items())
                    secrets.append((f"{place}, {part}", told))
                text = b"\n".join((one.request.body, one.response.body)).decode("utf-8", "replace")
                people += [(place, who) for who in find_people_in_git_output(text)]
        if secrets:
            return secrets, people
    text = _read_file_or_store_copy(path).decode("utf-8", "surrogateescape")
    lines_by_name = find_secret_line_numbers(text, redactor)
    if "\0" in text:  # in bytes of no text all but a key's own shape is chance
        return [("in the file's bytes", name) for name in lines_by_name if name in SHAPED], people
    secrets = [(f"line {name_some(map(str, lines), shown=_LINES)}", name) for name, lines in lines_by_name.items()]
    if is_store:
        return secrets, people
    for who, places in find_people_in_git_output(text).items():
        lines = list(dict.fromkeys(text.count("\n", 0, place) + 1 for place in places[: _LINES + 1]))
        more = " and more" if len(lines) > _LINES else ""
        people.append((f"line {', '.join(map(str, lines[:_LINES]))}{more}", who))
    return secrets, people
