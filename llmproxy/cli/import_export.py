"""``llmproxy import``, ``export``, ``textconv``, ``push`` and ``pull``: between stores, files and servers."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.advice import format_store_option, quote_word
from llmproxy.amount_formatting import format_count
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.import_files import RecordingFileImporter, group_files_by_cassette
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import LongTaskProgressLine, format_size, to_safe_line
from llmproxy.cli.parts.store_arguments import STORE, build_unknown_cassette_error, get_chosen_store, refuse_url_as_file
from llmproxy.core.bindings import deserialize_run_variables
from llmproxy.core.cassettes.anonymized_export import anonymize_recordings_for_file, describe_remaining_personal_names
from llmproxy.core.cassettes.folder_sync import CassetteDir, build_slug
from llmproxy.core.cassettes.formats import FORMATS, Format, get_format, review_yaml, write_text
from llmproxy.core.cassettes.merging import copy_cassette_between_stores
from llmproxy.core.forks.fork_rows import Fork, find_fork
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.queries import Note, list_run_variables, read_cassette_replay_rules, read_volatile_fields
from llmproxy.errors import CassetteCorrupt, Exit, SettingsError, ensure_program_prefix
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, format_store_location
from llmproxy.protocol import DEFAULT_STORE, append_sample_number_to_name
from llmproxy.settings import shareable_path
from llmproxy.trace.export import write_otlp, write_trace
from llmproxy.ui.html_file import build_viewer_page_data, find_cassettes_by_name_and_sample
from llmproxy.ui.page import is_exported_page, render_viewer_page

if TYPE_CHECKING:
    from llmproxy.core.store.store import Store
    from llmproxy.core.traffic.interaction import Interaction

    Found = tuple[list[Interaction], tuple[Note, ...]]

_FILES = typer.Argument(..., metavar="FILE", help="Files of recordings, or folders of them.")
_UPSTREAM = typer.Option(
    None, "--upstream", metavar="NAME=URL", help="Base URL of a provider: recordings of this URL are imported as NAME."
)
TRACES = ("spans", "otlp")
_WRITTEN = (*(row.name for row in FORMATS.values() if row.writes), *TRACES, "html")
_PAGES = frozenset({".html", ".htm"})
_BY_SUFFIX = {"": "review", ".yaml": "review", ".yml": "review", ".har": "har", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def register(app: typer.Typer) -> None:
    app.command("import")(import_)
    app.command("export")(export)
    app.command("textconv")(textconv)
    _add_command(app, "push", "Copy cassettes from a file to the team's PostgreSQL server.")
    _add_command(app, "pull", "Copy cassettes from the team's PostgreSQL server into a file.")


def import_(
    files: list[Path] = _FILES,
    store: Path | None = STORE,
    cassette: str | None = typer.Option(
        None,
        "--cassette",
        metavar="NAME",
        help="Import everything into this cassette; default: one per file, with the name in llmproxy's YAML, else the "
        "file's name.",
    ),
    form: str | None = typer.Option(
        None, "--format", metavar="|".join(FORMATS), help="Format of the files; default: detected from their content."
    ),
    upstream: list[str] | None = _UPSTREAM,
    model: list[str] = typer.Option(
        [], "--model", metavar="NAME", help="The agent's model, for fixtures that name none (aimock); may be repeated."
    ),
) -> None:
    """Import recordings of llmproxy, vcrpy, HAR, mitmproxy, aimock, ddapm-test-agent, nock or cassetter.

    Importing a file again replaces its earlier recordings. A file is imported completely or not at all.
    """
    for file in files:
        refuse_url_as_file(file)
    loaded = load_settings({"store": store, "upstream": upstream, "cassette": cassette})
    work = group_files_by_cassette(
        files, loaded.settings.cassette if cassette else None, get_format(form) if form else None
    )
    importer = RecordingFileImporter(Rules.from_settings(loaded.settings.normalize), loaded.settings.upstream, model)
    path = loaded.settings.store
    new = not path.exists()
    progress = LongTaskProgressLine("importing", "cassette")
    with open_store(path, writable=True, now=time.time) as database, progress:
        for name, pieces in progress.iterate(work.items(), len(work)):
            importer.import_cassette(database, name, pieces)
    if importer.cassettes:
        typer.echo(importer.format_report(path, " ".join(quote_word(str(file)) for file in files)))
    if new and (importer.skipped_every_exchange or not importer.cassettes):
        path.unlink(missing_ok=True)  # an empty store would hide that there is none
    if importer.skipped_every_exchange and not importer.failed:
        raise typer.Exit(int(Exit.USAGE))
    if importer.failed:
        for error in importer.failed:
            typer.echo(ensure_program_prefix(error), err=True)
        raise typer.Exit(int(Exit.ENVIRONMENT))


def export(
    file: str = typer.Argument(
        ..., metavar="FILE", help="The file to write (- for standard output); with --all, the folder."
    ),
    cassette: str | None = typer.Option(
        None, "--cassette", metavar="NAME", autocompletion=complete_cassette_names, help="Name of the cassette."
    ),
    sample: int | None = typer.Option(None, "--sample", metavar="N", help="Only this sample; default: all."),
    store: Path | None = STORE,
    form: str | None = typer.Option(
        None,
        "--format",
        metavar="|".join(_WRITTEN),
        help="What to write; default: by the file's name (.yaml, .jsonl, .har, .html), review with --all.",
    ),
    everything: bool = typer.Option(False, "--all", help="Export every cassette, each to its own file."),
    force: bool = typer.Option(False, "--force", help="Overwrite a damaged file, or one that llmproxy did not write."),
) -> None:
    """Export a cassette to YAML for review, JSON lines, HAR, YAML that vcrpy plays, spans (a trace file), OTLP, or a
    page for a browser.
    """
    refuse_url_as_file(file)
    settings = load_settings({"store": store, "cassette": cassette}).settings
    if form in TRACES:
        _export_trace(file, settings.store, settings.cassette, sample or 1, form)
        return
    if form == "html" or (form is None and Path(file).suffix.lower() in _PAGES):
        export_viewer_page(file, settings.store, None if everything else settings.cassette, sample, force=force)
        return
    written = _choose_format(file, form, everything=everything)
    if everything and (cassette or sample or file == "-"):
        msg = "--all takes every cassette into a folder: it goes with neither --cassette, --sample nor -."
        raise SettingsError(msg)
    if everything:
        with (
            open_store(settings.store, writable=False, now=time.time) as database,
            LongTaskProgressLine(f"exporting to {file}"),
        ):
            names = _export_all(database, Path(file), written, force=force)
        typer.echo(f"Wrote {format_count(names, 'cassette')} to {file}.")
        return
    with (
        open_store(settings.store, writable=False, now=time.time) as database,
        LongTaskProgressLine(f"exporting to {file}"),
    ):
        if not (found := list(database.iter_interactions(settings.cassette, sample))):
            raise build_unknown_cassette_error(database, append_sample_number_to_name(settings.cassette, sample or 1))
        fork = _find_fork_or_warn_of_loss(database, settings.cassette, written)
        fields = read_cassette_replay_rules(database, settings.cassette)
    if file == "-":
        sys.stdout.write(_serialize_recordings((found, fields), settings.cassette, written, fork))
        return
    _write_export_file(Path(file), (found, fields), settings.cassette, written, fork, force=force)
    declared = (each.run_variables for each in found)
    for said in describe_remaining_personal_names(file, Path(file).read_text(encoding="utf-8"), declared):
        typer.echo(said, err=True)
    typer.echo(f"Wrote {format_count(len(found), 'interaction')} of cassette {settings.cassette} to {file}.")


def _export_trace(file: str, store: Path, cassette: str, sample: int, form: str) -> None:
    write = write_trace if form == "spans" else write_otlp
    if file == "-":
        write(sys.stdout, store, cassette=cassette, sample=sample)
    else:
        with Path(file).open("w", encoding="utf-8") as out:
            write(out, store, cassette=cassette, sample=sample)
        typer.echo(f"Wrote the {form} of cassette {cassette} to {file}.")
    if left := _describe_lost_bindings(store, cassette, sample):
        why = "Spans do not replay: what is imported again is a file of another --format."
        typer.echo(f"Left out: {left}. {why}", err=True)


def _describe_lost_bindings(store: Path, cassette: str, sample: int) -> str:
    with open_store(store, writable=False, now=time.time) as database:
        runs = [deserialize_run_variables(said) for said in list_run_variables(database, cassette, sample)]
        fields = [field.name for field in read_volatile_fields(database, cassette)]
    names = dict.fromkeys(each.name for run in runs for each in run)
    found = {"run variables": ", ".join(names), "volatile fields": ", ".join(fields)}
    return " and ".join(f"{what} ({each})" for what, each in found.items() if each)


def export_viewer_page(file: str, store: Path, cassette: str | None, sample: int | None, *, force: bool) -> None:
    path = Path(file)
    if file != "-" and path.exists() and not force and not is_exported_page(path):
        hint = "Write to another file, or replace it with --force."
        raise CassetteCorrupt(f"Not overwritten: {path} was not written by llmproxy.", hint=hint)
    with open_store(store, writable=False, now=time.time) as database, LongTaskProgressLine(f"exporting to {file}"):
        if not (wanted := list(find_cassettes_by_name_and_sample(database, cassette, sample))):
            raise build_unknown_cassette_error(
                database, append_sample_number_to_name(cassette or "any name", sample or 1)
            )
        made = build_viewer_page_data(database, wanted, cassette or store.name)
        made["store_words"] = format_store_option(shareable_path(store))
        text = render_viewer_page(made, title=cassette or store.name)
    if file == "-":
        sys.stdout.write(text)
        return
    write_text(path, text)
    many = format_count(sum(info.live for info in wanted), "interaction")
    typer.echo(
        f"Wrote {many} of {cassette or store} to {file} ({format_size(len(text.encode()))}): open it in a browser; "
        "it makes no network requests."
    )


def textconv(
    file: Path = typer.Argument(..., metavar="STORE", help="A store; git passes the path of one version."),
) -> None:
    """Print all current recordings of a store as text, for `git diff` on llmproxy.db."""
    refuse_url_as_file(file)
    with open_store(file, writable=False, now=time.time) as database:
        for name in dict.fromkeys(info.name for info in database.cassettes() if info.live):
            recorded = anonymize_recordings_for_file(
                database.iter_interactions(name), read_cassette_replay_rules(database, name)
            )
            sys.stdout.write(review_yaml.dumps(recorded, name, find_fork(database, name, 1)) + "\n")


def _choose_format(file: str, form: str | None, *, everything: bool) -> Format:
    """Return the requested format, or that of the file name. Raises SettingsError."""
    suffix = Path(file).suffix.lower()
    name = _BY_SUFFIX.get("" if everything or form else suffix)
    if name is None:
        hint = f"Name it .yaml, .jsonl, .har or .html, or say what to write: --format {'|'.join(_WRITTEN)}"
        raise SettingsError(f"{file}: no format has files that end in {suffix}.", hint=hint)
    found = get_format(form or name)
    if not found.writes:
        able = ", ".join(row.name for row in FORMATS.values() if row.writes)
        raise SettingsError(f"{found.name} is read, not written.", hint=f"Written are: {able}.")
    return found


def _export_all(database: Store, folder: Path, written: Format, *, force: bool) -> int:
    names = list(dict.fromkeys(info.name for info in database.cassettes() if info.live))
    if written.name == "review":
        kept = CassetteDir(folder, now=time.time)
        for name in names:
            kept.save_cassette(database, name, force=force)
    else:
        for name in names:
            path = folder / f"{build_slug(name)}{written.suffixes[0]}"
            found = list(database.iter_interactions(name)), read_cassette_replay_rules(database, name)
            fork = _find_fork_or_warn_of_loss(database, name, written)
            _write_export_file(path, found, name, written, fork, force=force)
    return len(names)


def _find_fork_or_warn_of_loss(database: Store, cassette: str, written: Format) -> Fork | None:
    fork = find_fork(database, cassette, 1)
    if fork is None or written.name == "review":
        return fork
    swapped = ", ".join(each.name_as_typed for each in fork.overrides.tools)
    lost = f"; without it the result of {swapped} is not swapped in a replay" if swapped else ""
    typer.echo(f"llmproxy: {cassette} is a {fork.describe_origin()}. {written.name} cannot say so{lost}.", err=True)
    typer.echo("  --format review (or --all, --cassette-dir) keeps it.", err=True)
    return None


def _serialize_recordings(found: Found, cassette: str, written: Format, fork: Fork | None) -> str:
    recorded = anonymize_recordings_for_file(*found, whole=written.name != "review")
    return review_yaml.dumps(recorded, cassette, fork) if fork else written.loaded.dumps(recorded, cassette)


def _write_export_file(
    path: Path, found: Found, cassette: str, written: Format, fork: Fork | None, *, force: bool
) -> None:
    """Write a file atomically. Raises CassetteCorrupt instead of overwriting a foreign file."""
    if path.exists() and not force:
        written.check_replaceable(path)
    write_text(path, _serialize_recordings(found, cassette, written, fork))


_HELP = "The team's server: postgresql://USER@HOST/DATABASE. Without it, LLMPROXY_STORE names the server."
_SERVER = typer.Option(None, "--store", metavar="URL", parser=STORE.parser, help=_HELP)
_NAMES = typer.Argument(..., metavar="CASSETTE", help="Names of cassettes.")
_FILE = typer.Option(Path(DEFAULT_STORE), "--file", metavar="PATH", help="The SQLite store.")
_AS = typer.Option(None, "--as", metavar="NAME", help="Name of the copy; default: the same.")
_REPLACE = typer.Option(False, "--replace", help="Replace a different cassette of the same name.")


def _add_command(app: typer.Typer, name: str, text: str) -> None:
    @app.command(name, help=text)
    def bring(
        names: list[str] = _NAMES,
        store: Path | None = _SERVER,
        file: Path = _FILE,
        new: str | None = _AS,
        instead: bool = _REPLACE,
    ) -> None:
        refuse_url_as_file(file)
        path = get_chosen_store(store)
        if find_postgres_of_local_copy(path) is None:
            msg = f"{format_store_location(path)} is a file; this command brings cassettes to a server, or from one."
            raise SettingsError(msg, hint="--store postgresql://USER@HOST/DATABASE, or LLMPROXY_STORE")
        if new is not None and len(names) > 1:
            raise SettingsError("--as names one cassette.")
        source, target = (file, path) if name == "push" else (path, file)
        holder = f"llmproxy {name} {os.getpid()} on {platform.node()}"
        with (
            open_store(source, writable=False, now=time.time, whole=False) as one,
            open_store(target, writable=True, now=time.time, whole=False) as other,
        ):
            for cassette in names:
                one.refresh_cassette(cassette)
                other.refresh_cassette(new or cassette)
                with LongTaskProgressLine(f"bringing {to_safe_line(cassette)} to {format_store_location(target)}"):
                    done = copy_cassette_between_stores(
                        one, other, cassette, new or cassette, instead=instead, holder=holder
                    )
                many = format_count(done.interactions, "interaction")
                there = format_store_location(target)
                said = f"there already, the same {many}" if done.same else f"{many} brought to {there}"
                before = f"; {done.replaced} that it had there are replaced" if done.replaced else ""
                typer.echo(f"{new or cassette}: {said}{before}.")
