"""``llmproxy ui``: the viewer, on loopback, for a store or for a file of recordings."""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmproxy.cli.parts.completing import cassettes
from llmproxy.cli.parts.stores.opening import STORE, no_url, store_path
from llmproxy.errors import CassetteNotFound, Exit, MachineError
from llmproxy.protocol import UI_PREFIX
from llmproxy.store_server import shown

if TYPE_CHECKING:
    from llmproxy.ui.answers import Ask

_DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui")(ui)


def ui(
    what: str | None = typer.Argument(
        None,
        metavar="[STORE|CASSETTE|REPORT]",
        autocompletion=cassettes,
        help="A store, a file of recordings, the name of a cassette, or a JSON report of tests; default: the store.",
    ),
    store: Path | None = STORE,
    port: int = typer.Option(
        0, "--port", min=0, max=65535, help="Listen there; default: any free port.", show_default=False
    ),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in the browser."),
    labels: Path = typer.Option(
        Path("labels.jsonl"), "--labels", help="Of a report: add what you say of verdicts to this file."
    ),
) -> None:
    """Look at recordings in the browser: conversations, what changed, time, tokens and cost."""
    from llmproxy.ui.serve import server

    report = report_in(what)
    looking = reporting(Path(what or ""), report, store) if report is not None else meant(what, store)
    with looking as (path, start):
        token = secrets.token_urlsafe(18)
        ask = asker(path) if report is None else asker_of(report, path)
        put = None if report is None else labeller(Path(what or ""), labels)
        try:
            made = server(port, token, ask, start, put)
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used: {error.strerror or error}.", hint="Without --port any free one is taken."
            ) from error
        url = f"http://127.0.0.1:{made.server_port}{UI_PREFIX}#token={token}"
        typer.echo(f"llmproxy: looking at {start['store']}\n  {url}\nThe address is for you alone. Ctrl-C ends it.")
        if browser:
            show(url)
        try:
            made.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            raise typer.Exit(int(Exit.OK)) from None
        finally:
            made.server_close()


def asker(path: Path) -> Ask:
    """Return what answers the page's questions out of a store, which is opened for each."""
    from llmproxy.core.store.opening import open_store
    from llmproxy.ui.data import answer

    def ask(question: str, query: dict[str, str]) -> Any:  # noqa: ANN401 - plain values
        with open_store(path, writable=False, now=time.time) as database:
            return answer(database, question, query)

    return ask


def report_in(what: str | None) -> Any:  # noqa: ANN401 - plain values
    """Return the document of a JSON report of tests; None if it is something else."""
    path = Path(what) if what else None
    if path is None or path.suffix != ".json" or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError):
        return None
    ours = isinstance(found, dict) and isinstance(found.get("scenarios"), list) and "exit_code" in found
    return found if ours else None


@contextmanager
def reporting(path: Path, report: Mapping[str, Any], store: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the store that holds what a report stands on, if it is here, and what the page begins with."""
    found = store_path(store)
    start = {"store": f"{path} ({report.get('title', '')})", "start": "#/report", "report": True, "labels": True}
    yield found, {**start, "recordings": found.is_file()}


def asker_of(report: Mapping[str, Any], path: Path) -> Ask:
    """Return what answers the page's questions about a report, and about the recordings that it stands on."""
    from llmproxy.report.trend import columns, read_tests

    inner, names = asker(path), {str(each.get("id")) for each in report["scenarios"]}

    def ask(question: str, query: dict[str, str]) -> Any:  # noqa: ANN401 - plain values
        if question != "report":
            return inner(question, query)
        return {**report, "trend": columns(read_tests(Path(f"{path}.state.db")), names)}

    return ask


def labeller(report: Path, labels: Path) -> Callable[[dict[str, str]], Any]:
    """Return what writes a person's label of a verdict, as `llmproxy label` does."""
    from threading import Lock

    from llmproxy.scenario.lab.labelling import put_label

    alone = Lock()  # each request has a thread: two quick presses write one file

    def put(said: dict[str, str]) -> Any:  # noqa: ANN401 - plain values
        with alone:
            put_label(labels, report, said.get("run", ""), said.get("criterion", ""), said.get("label", ""))
        return {"file": str(labels)}

    return put


@contextmanager
def meant(what: str | None, store: Path | None) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the store that is meant and what the page begins with; of a file a store of its own, for as long as it is looked at."""
    no_url(what or "")
    path = Path(what) if what else None
    if path is None or (path.suffix in _DATABASES and path.exists()):
        found = path or store_path(store)
        yield _there(found), {"store": shown(found)}
    elif path.exists():
        with tempfile.TemporaryDirectory(prefix="llmproxy-ui-") as folder:
            yield _imported(path, Path(folder) / "file.db"), {"store": path.name}
    else:
        found = _there(store_path(store))
        yield found, {"store": shown(found), "start": f"#/c/{_cassette(found, str(what))}"}


def _there(path: Path) -> Path:
    from llmproxy.core.store.opening import open_store

    open_store(path, writable=False, now=time.time).close()
    return path


def _cassette(path: Path, name: str) -> str:
    """Return a cassette's name as it stands in an address. Raises CassetteNotFound, which says what there is."""
    from urllib.parse import quote

    from llmproxy.core.sessions.session import split_name
    from llmproxy.core.store.opening import open_store
    from llmproxy.core.traffic.advice import look

    cassette, sample = split_name(name)
    with open_store(path, writable=False, now=time.time) as database:
        if not database.has(cassette, sample):
            names = ", ".join(database.names(20)) or "none"
            raise CassetteNotFound(
                f"there is no file and no cassette {name}; {shown(path)} holds: {names}.", hint=look("ls", path)
            )
    return quote(name, safe="")


def _imported(file: Path, store: Path) -> Path:
    """Read a file of recordings, or a folder of them, into a store."""
    from llmproxy.cli.exchange import rules_of
    from llmproxy.cli.parts.options import gather
    from llmproxy.cli.parts.stores.importer import Importer, by_cassette
    from llmproxy.core.store.opening import open_store

    loaded = gather({})
    importer = Importer(rules_of(loaded), loaded.settings.upstream)
    with open_store(store, writable=True, now=time.time) as database:
        for name, pieces in by_cassette([file], None).items():
            importer.take(database, name, pieces)
    if importer.failed:
        raise importer.failed[0]
    return store


def show(url: str) -> None:
    """Open an address in the browser, if there is one."""
    import webbrowser

    with suppress(webbrowser.Error):
        webbrowser.open(url)
