"""``llmproxy scan``: find secrets in existing stores, cassettes, exports and reports."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from llmproxy import sqlite_file
from llmproxy.advice import format_store_option
from llmproxy.amount_formatting import format_count, name_some
from llmproxy.cli.parts.printing import ProgressLine, print_line, to_line
from llmproxy.cli.parts.store_arguments import STORE, is_sqlite_file, is_store_file, refuse_url, resolve_store_path
from llmproxy.core.bindings.text_alignment import find_git_user_positions
from llmproxy.core.secrets.redact import SHAPED, Redactor, count_secrets_by_part, find_secret_line_numbers
from llmproxy.core.store.file.store import open_store
from llmproxy.errors import Exit, LLMProxyError, MachineError, ensure_prefix
from llmproxy.files import read_bounded_bytes

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


def scan(
    paths: list[Path] | None = typer.Argument(
        None, metavar="PATH", help="Stores, cassettes, exports, reports, folders of them; default: the store."
    ),
    store: Path | None = STORE,
) -> None:
    """Find secrets in existing stores, cassettes and reports, by the current rules, and explain how to remove them.

    It also lists people's names in recorded git output.
    """
    given = list(paths or [resolve_store_path(store)])
    redactor, looked = Redactor(), 0
    found: list[str] = []
    named: dict[str, list[str]] = {}
    failed: list[str] = []
    stores: list[Path] = []
    with ProgressLine("looking for secrets", "file") as working:
        for path in working.iterate(_list_files(given)):
            looked += 1
            try:
                if is_store := path.is_file() and is_store_file(path):
                    stores.append(path)
                secrets, people = _scan_file(path, redactor, is_store=is_store)
                found += [to_line(f"{path}: {where}: {what}") for where, what in secrets]
                for where, who in people:
                    named.setdefault(who, []).append(to_line(f"{path}: {where}: git names {who}"))
            except LLMProxyError as error:
                failed.append(f"{path}: {error.message}")
            except OSError as error:
                failed.append(f"{path}: {error.strerror or error}")
    for each in (*found, *(each for lines in named.values() for each in lines)):
        print_line(each)
    for each in failed:
        typer.echo(ensure_prefix(to_line(each)), err=True)
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
    seen: set[Path] = set()
    for path in given:
        refuse_url(path)
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
        sqlite_file.copy_raw(path, copied)
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
                people += [(place, who) for who in find_git_user_positions(text)]
        if secrets:
            return secrets, people
    text = _read_file_or_store_copy(path).decode("utf-8", "surrogateescape")
    lines_by_name = find_secret_line_numbers(text, redactor)
    if "\0" in text:  # in bytes of no text all but a key's own shape is chance
        return [("in the file's bytes", name) for name in lines_by_name if name in SHAPED], people
    for name, lines in lines_by_name.items():
        secrets.append((f"line {name_some(map(str, lines), shown=_LINES)}", name))
    if is_store:
        return secrets, people
    for who, places in find_git_user_positions(text).items():
        lines = list(dict.fromkeys(text.count("\n", 0, place) + 1 for place in places[: _LINES + 1]))
        more = " and more" if len(lines) > _LINES else ""
        people.append((f"line {', '.join(map(str, lines[:_LINES]))}{more}", who))
    return secrets, people
