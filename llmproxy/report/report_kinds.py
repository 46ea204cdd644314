"""The table of kinds for `--report KIND=FILE`: one file in this package and one row here for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from llmproxy.errors import SettingsError
from llmproxy.file_io import create_gitignored_folder, replace_file
from llmproxy.report.events import Event, Handler, RedactingEventHandler
from llmproxy.report.github import make_github_annotator
from llmproxy.report.json_report import JsonLinesReport, render_json_report
from llmproxy.report.run_tree import EventsGroupedByRun


class WholeFileReportWriter:
    """Base of reports that are one document: keeps the events, and writes the file at the end.

    It writes the document of an unfinished test at the start, which proves that the place is writable: a killed test
    leaves that, never an earlier run's report, and never half a file.
    """

    def __init__(self, path: Path, render: Callable[[EventsGroupedByRun], str | bytes]) -> None:
        """Write the output of `render` for the run tree to `path`; text as UTF-8. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._render, self._run_tree = path, render, EventsGroupedByRun()
        if path.exists() and not path.is_file():
            path.open("ab").close()  # what cannot be taken back is written once: /dev/stdout, a pipe
        else:
            self._write_document()

    def handle(self, event: Event) -> None:
        self._run_tree.add_event(event)

    def close(self) -> None:
        """Write the document. Raises OSError."""
        self._write_document()

    def _write_document(self) -> None:
        made = self._render(self._run_tree)
        text = made.decode() if isinstance(made, bytes) else made
        if self._path.exists() and not self._path.is_file():  # /dev/stdout, a pipe
            self._path.write_text(text, "utf-8", "backslashreplace")
            return
        with replace_file(self._path.resolve(), "backslashreplace") as file:
            file.write(text)


def _make_junit_report(path: Path) -> Handler:
    from llmproxy.report.junit import render_junit

    return WholeFileReportWriter(path, render_junit)


def _make_html_report(path: Path, store: Callable[[], Path | None]) -> Handler:
    from llmproxy.report.html import render_html_report

    return WholeFileReportWriter(
        path, lambda run_tree: render_html_report(run_tree, store() if run_tree.completed else None)
    )


def make_last_report_writer(path: Path, lost: Callable[[str], object]) -> list[Handler]:
    """Return a handler that stores this test's events for `label` and `--rejudge last`; none if not writable."""
    try:
        create_gitignored_folder(path.parent)
        return [create_report_event_handler(f"jsonl={path}")]
    except (OSError, SettingsError) as error:
        lost(f"this test is not kept for `llmproxy label`: {error}")
        return []


class ReportKindDefinition(NamedTuple):
    handler: Callable[..., Handler]
    """Takes the file, None if not given; with `recordings` also the store."""
    example: str
    alone: bool = False
    recordings: bool = False


KINDS: Mapping[str, ReportKindDefinition] = {
    "junit": ReportKindDefinition(_make_junit_report, "report.xml"),
    "html": ReportKindDefinition(_make_html_report, "report.html", recordings=True),
    "json": ReportKindDefinition(lambda path: WholeFileReportWriter(path, render_json_report), "report.json"),
    "jsonl": ReportKindDefinition(JsonLinesReport, "report.jsonl"),
    "github": ReportKindDefinition(make_github_annotator, "summary.md", alone=True),
}
*_MOST, _LAST = (name if row.alone else f"{name}=FILE" for name, row in KINDS.items())
CHOICES = f"{', '.join(_MOST)} or {_LAST}"


def create_report_event_handler(text: str, store: Callable[[], Path | None] = lambda: None) -> Handler:
    """Return the handler for an argument of `--report`, behind redaction: ``junit=FILE``, ``github``. Raises
    SettingsError. `store` returns at the end the database with the tests' recordings; None if unknown.
    """
    kind, _, name = text.partition("=")
    if (row := KINDS.get(kind)) is None:
        *most, last = KINDS
        raise SettingsError(f"--report {text!r}: there is no {kind!r}; it can be {', '.join(most)} or {last}.")
    if not name and not row.alone:
        raise SettingsError(f"--report {text!r}: it needs a file, as {kind}={row.example}.")
    told = (store,) if row.recordings else ()
    try:
        return RedactingEventHandler(row.handler(Path(name) if name else None, *told))
    except OSError as error:
        raise SettingsError(f"--report {text!r}: cannot write there: {error.strerror or error}.") from error
