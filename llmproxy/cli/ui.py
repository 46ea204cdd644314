"""``llmproxy ui``: the viewer, on loopback, for a store or a file of recordings."""

from __future__ import annotations

import secrets
import tempfile
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import typer

from llmproxy.advice import format_llmproxy_command, format_store_option
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.import_files import RecordingFileImporter, group_files_by_cassette
from llmproxy.cli.parts.options import LAST_REPORT, STORE as TESTS, find_test_recordings_store, load_settings
from llmproxy.cli.parts.store_arguments import STORE, refuse_url_as_file
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.sessions.session import split_cassette_and_sample
from llmproxy.core.store.file.store import open_store
from llmproxy.errors import CassetteNotFound, Exit, MachineError, SettingsError
from llmproxy.postgres_store_paths import format_store_location, is_postgres_url, store_exists
from llmproxy.protocol import UI_PREFIX
from llmproxy.report.live_report_reader import make_report_query_handler, read_finished_report
from llmproxy.report.sharding import detect_json_or_jsonl_report
from llmproxy.scenario.lab.human_labels import add_or_replace_label
from llmproxy.settings import format_shown_path
from llmproxy.ui.page import Ask
from llmproxy.ui.queries import answer_viewer_query
from llmproxy.ui.serve import make_viewer_server

_DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})


def ui_command(
    what: str | None = typer.Argument(
        None,
        metavar="STORE|CASSETTE|REPORT",
        autocompletion=complete_cassette_names,
        help="A store, a file of recordings, the name of a cassette, or a JSON report of tests; default: the store.",
    ),
    store: Path | None = STORE,
    port: int = typer.Option(
        0, "--port", min=0, max=65535, help="Port to listen on; default: any free port.", show_default=False
    ),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in the browser."),
    labels: Path = typer.Option(
        Path("labels.jsonl"), "--labels", help="With a report: add your labels of verdicts to this file."
    ),
) -> None:
    """Show recordings in the browser: conversations, changes, time, tokens and cost."""
    with find_or_import_store_for_viewer(what, store) as shown_here:
        path, start = shown_here.store, shown_here.start
        token = secrets.token_urlsafe(18)
        ask = make_viewer_query_function(path, shown_here.report)
        put = None if shown_here.report is None else make_label_file_writer(shown_here.report, labels)
        try:
            made = make_viewer_server(port, token, ask, start, put)
        except OSError as error:
            msg = f"port {port} cannot be used: {error.strerror or error}."
            raise MachineError(msg, hint="Without --port any free one is taken.") from error
        url = f"http://127.0.0.1:{made.server_port}{UI_PREFIX}#token={token}"
        typer.echo(f"llmproxy: looking at {start['store']}\n  {url}\nThe address is for you alone. Ctrl-C ends it.")
        if browser:
            open_browser(url)
        try:
            made.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            raise typer.Exit(int(Exit.OK)) from None
        finally:
            made.server_close()


class ViewTarget(NamedTuple):
    store: Path
    start: dict[str, Any]
    report: Path | None = None
    """Test report: the named one, or that of the folder's last or running test."""


@contextmanager
def find_or_import_store_for_viewer(what: str | None, store: Path | None) -> Iterator[ViewTarget]:
    """Yield the store for a name, a temporary one for a file of recordings. Raises LLMProxyError if there is none."""
    if what and is_postgres_url(what):
        store, what = cast("Path", what), None  # `settings` reads the URL
    if what:
        refuse_url_as_file(what)
    path = Path(what) if what else None
    last, tested = Path.cwd() / LAST_REPORT, Path.cwd() / TESTS
    tests: dict[str, Any] = {"tests": True, "labels": True}
    if path is not None and is_viewable_report_file(path):
        yield _build_report_target(path, store)
    elif path is not None and path.suffix in _DATABASES:
        yield ViewTarget(_require_store(path), {**_name_store_for_page(path), **tests}, last)
    elif path is not None and path.exists():
        with tempfile.TemporaryDirectory(prefix="llmproxy-ui-") as folder:
            start = {"store": path.name, "file": str(path)}
            yield ViewTarget(_import_recordings(path, Path(folder) / "file.db"), start)
    elif what is None and last.is_file() and (not store_exists(found := _choose_store(store)) or found == tested):
        yield _build_report_target(last, store)  # only tests ran here
    else:
        found = _require_store(_choose_store(store), what or "")
        named = {"start": f"#/c/{_quote_cassette_for_url(found, what)}"} if what else {}
        yield ViewTarget(found, {**_name_store_for_page(found), **tests, **named}, last)


def make_viewer_query_function(path: Path, report: Path | None = None) -> Ask:
    told = None if report is None else make_report_query_handler(report, path.with_name(f"{path.name}.state.db"))

    def ask(question: str, query: dict[str, str]) -> Any:
        if question == "report" and told is not None:
            return told(query)
        with open_store(path, writable=False, now=time.time) as database:
            return answer_viewer_query(database, question, query)

    return ask


def is_viewable_report_file(path: Path) -> bool:
    """Return whether a file is a test report for the page. Raises SettingsError: of another kind or version."""
    if not path.is_file():
        return False
    if path.suffix.lower() in (".html", ".htm"):
        raise SettingsError(f"{path} is the viewer itself, with its report inside.", hint="Open it in a browser.")
    if path.suffix.lower() == ".xml":
        raise SettingsError(f"{path} says too little to look at.", hint="llmproxy test --report json=FILE")
    if (kind := detect_json_or_jsonl_report(path)) == "json":
        read_finished_report(path)
    return bool(kind)


def _build_report_target(path: Path, store: Path | None) -> ViewTarget:
    found = _choose_store(store, of_tests=True)
    recordings = store_exists(found) and not found.is_dir()
    start = {"start": "#/report", "report": True, "labels": True, "recordings": recordings}
    return ViewTarget(found, {**_name_store_for_page(found), **start, "store": format_shown_path(path)}, path)


def _name_store_for_page(store: Path) -> dict[str, str]:
    said = format_shown_path(store)
    return {"store": said, "store_words": format_store_option(said)}


def _choose_store(given: Path | None, *, of_tests: bool = False) -> Path:
    """Return the store given by options or settings, else the project's or that of tests, whichever exists."""
    loaded = load_settings({"store": given})
    if not loaded.is_default("store"):
        return Path(loaded.settings.store)
    both = [Path(loaded.settings.store), find_test_recordings_store(loaded)]
    ranked = both[::-1] if of_tests else both
    return next((each for each in ranked if each.is_file()), ranked[0])


def make_label_file_writer(report: Path, labels: Path) -> Callable[[dict[str, str]], Any]:
    alone = Lock()  # each request has a thread: two quick presses write one file

    def put(said: dict[str, str]) -> Any:
        with alone:
            add_or_replace_label(labels, report, said.get("run", ""), said.get("criterion", ""), said.get("label", ""))
        return {"file": str(labels)}

    return put


def _require_store(path: Path, wanted: str = "") -> Path:
    """Return an existing store. Raises CassetteError; `wanted` names what was looked for."""
    try:
        open_store(path, writable=False, now=time.time).close()
    except CassetteNotFound as error:
        if not wanted:
            raise
        where = format_shown_path(path)
        msg = f"There is no file {wanted}, and no store {where} that could hold a cassette of this name."
        raise CassetteNotFound(msg, hint=error.hint) from None
    return path


def _quote_cassette_for_url(path: Path, name: str) -> str:
    """Return a cassette's name quoted for a URL. Raises CassetteNotFound with the existing names."""
    cassette, sample = split_cassette_and_sample(name)
    with open_store(path, writable=False, now=time.time) as database:
        if not database.has_recordings(cassette, sample):
            names = ", ".join(database.list_cassette_names(20)) or "none"
            msg = f"there is no file and no cassette {name}; {format_store_location(path)} holds: {names}."
            raise CassetteNotFound(msg, hint=format_llmproxy_command("ls", path))
    return quote(name, safe="")


def _import_recordings(file: Path, store: Path) -> Path:
    loaded = load_settings({})
    importer = RecordingFileImporter(Rules.from_settings(loaded.settings.normalize), loaded.settings.upstream)
    with open_store(store, writable=True, now=time.time) as database:
        for name, pieces in group_files_by_cassette([file], None).items():
            importer.import_cassette(database, name, pieces)
    if importer.failed:
        raise importer.failed[0]
    return store


def open_browser(url: str) -> None:
    with suppress(webbrowser.Error):
        webbrowser.open(url)
