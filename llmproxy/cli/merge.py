"""``llmproxy merge``: combine the parts of a test from several machines: reports, stores, cassette folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from llmproxy.amount_formatting import format_count
from llmproxy.cli.parts.store_arguments import JOURNAL, is_sqlite_file, refuse_url_as_file
from llmproxy.cli.parts.suite_shards_and_signals import advise_recording
from llmproxy.core.cassettes.formats import read_file_of_recordings, review_yaml
from llmproxy.core.cassettes.merging import merge_cassette_folders, merge_stores_into_new_one
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.report.report_kinds import CHOICES, create_report_event_handler
from llmproxy.report.sharding import detect_json_or_jsonl_report, merge_shard_reports, read_shard_report

_YAML = (".yaml", ".yml")
_OF_SERVERS = (
    "Merged are files. Of a server: llmproxy pull NAME --file part.db before, llmproxy push NAME --file merged.db "
    "after."
)
_OF_REPORTS = "Let the parts write --report json=FILE: of that every other report is made."


def merge_command(
    inputs: list[Path] = typer.Argument(
        ..., metavar="INPUT", help="JSON reports, stores and cassette folders of the parts, or folders that hold them."
    ),
    report: list[str] = typer.Option(
        [], "--report", metavar="KIND=FILE", help=f"Write a report: {CHOICES}; may be repeated."
    ),
    store: Path | None = typer.Option(
        None, "--store", metavar="PATH", help="Write the recordings of all stores to this new store."
    ),
    cassette_dir: Path | None = typer.Option(
        None, "--cassette-dir", metavar="DIR", help="Write the merged cassette files to this folder."
    ),
) -> None:
    """Merge the parts of a test (`llmproxy test --shard 3/10`) into the result of one test."""
    if not (report or store or cassette_dir):
        hint = "llmproxy merge parts --report html=report.html   (or --store merged.db, or --cassette-dir DIR)"
        raise SettingsError("merge was not told what to write.", hint=hint)
    for each in (*inputs, store, cassette_dir):
        refuse_url_as_file(each or "", _OF_SERVERS)
    found = classify_merge_inputs(inputs)
    if cassette_dir is not None:
        _merge_folders(found.folders, cassette_dir)
    if store is not None:
        _merge_stores(found.stores, store)
    if report:
        raise typer.Exit(_merge_reports(found.reports, report))


@dataclass(slots=True)
class MergeInputsByKind:
    reports: dict[Path, str] = field(default_factory=dict)
    """Reports with their kind, ``json`` or ``jsonl``."""
    stores: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def classify_merge_inputs(given: Sequence[Path]) -> MergeInputsByKind:
    """Return the kinds of given files and of files in given folders. Raises SettingsError, MachineError."""
    found = MergeInputsByKind()
    try:
        for path in given:
            if not path.exists():
                raise SettingsError(f"There is no file or folder {path}.")
            if path.is_dir():
                for each in (each for each in sorted(path.rglob("*")) if each.is_file() and ".git" not in each.parts):
                    _add_file_if_mergeable(each, found)
                kept = (each for each in path.rglob("*") if each.suffix in _YAML and each.is_file())
                if path not in found.folders and any(
                    review_yaml.recognises(read_file_of_recordings(each)) for each in kept
                ):
                    found.folders.append(path)
            elif not _add_file_if_mergeable(path, found):
                hint = f"JSON reports (json, jsonl), stores and folders of cassettes are. {_OF_REPORTS}"
                raise SettingsError(f"{path} is nothing that can be merged.", hint=hint)
    except OSError as error:
        raise MachineError(f"{error.filename} cannot be read: {error.strerror or error}.") from error
    return found


def _add_file_if_mergeable(path: Path, found: MergeInputsByKind) -> bool:
    if path.name.endswith(JOURNAL):
        return False
    if is_sqlite_file(path):
        found.stores.append(path)
    elif kind := detect_json_or_jsonl_report(path):
        found.reports[path] = kind
    else:
        return False
    return True


def _merge_folders(folders: Sequence[Path], target: Path) -> None:
    if not folders:
        raise SettingsError(f"--cassette-dir {target}: no folder that was given holds cassette files.")
    if target.exists() and not target.is_dir():
        raise SettingsError(f"--cassette-dir {target} is a file, not a folder.")
    target.mkdir(parents=True, exist_ok=True)
    done = merge_cassette_folders([each for each in folders if each.resolve() != target.resolve()], target, time.time)
    typer.echo(f"{format_count(len(done.written), 'cassette file')} written to {target}, {done.unchanged} as before.")


def _merge_stores(stores: Sequence[Path], target: Path) -> None:
    if target.exists():
        hint = f"Name it among the inputs and write to another file: llmproxy merge {target} ... --store merged.db"
        raise SettingsError(f"--store {target} is there already; merge writes a new store.", hint=hint)
    if not stores:
        raise SettingsError(f"--store {target}: no store was given.")
    target.parent.mkdir(parents=True, exist_ok=True)
    done = merge_stores_into_new_one(stores, target, time.time)
    aside = f", {done.stale} left out that another store had replaced" if done.stale else ""
    held = f"{format_count(done.cassettes, 'cassette')} with {format_count(done.interactions, 'interaction')}"
    typer.echo(f"{held} of {format_count(len(set(stores)), 'store')} in {target}{aside}.")


def _merge_reports(reports: dict[Path, str], wanted: Sequence[str]) -> int:
    if not reports:
        raise SettingsError("--report: no report of a part of a test was given.", hint=_OF_REPORTS)
    try:
        parts = [read_shard_report(path, kind) for path, kind in reports.items()]
    except OSError as error:
        raise MachineError(f"{error.filename} cannot be read: {error.strerror or error}.") from error
    done = merge_shard_reports(parts, advise_recording)
    for text in wanted:
        handler = create_report_event_handler(text)
        for event in done.events:
            handler.handle(event)
        try:
            handler.close()
        except OSError as error:
            raise MachineError(f"--report {text!r} could not be written: {error.strerror or error}.") from error
    for text in done.missing:
        typer.echo(f"llmproxy: {text}", err=True)
    files = ", ".join(text.partition("=")[2] or text for text in wanted)
    there, of = len({part.number for part in parts}), format_count(parts[0].shard["of"], "part")
    typer.echo(f"{there} of {of} merged into {files}; the test ends with {done.exit_code}.")
    return int(Exit.ENVIRONMENT) if done.missing else done.exit_code
