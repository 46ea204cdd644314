"""What `--report KIND=FILE` can be: one table. A kind is a file in this package and a line here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from llmproxy.errors import SettingsError
from llmproxy.report.events import Handler
from llmproxy.report.hiding import Hiding

__all__ = ["KINDS", "handler_of"]


def _junit(path: Path) -> Handler:
    from llmproxy.report.at_end import AtEnd
    from llmproxy.report.junit import document

    return AtEnd(path, document)


def _html(path: Path) -> Handler:
    from llmproxy.report.at_end import AtEnd
    from llmproxy.report.html import page

    return AtEnd(path, page)


def _json(path: Path) -> Handler:
    from llmproxy.report.at_end import AtEnd
    from llmproxy.report.json_report import text

    return AtEnd(path, text)


def _jsonl(path: Path) -> Handler:
    from llmproxy.report.json_report import JsonLines

    return JsonLines(path)


def _github(path: Path | None) -> Handler:
    from llmproxy.report.github import GitHub

    summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    root = os.environ.get("GITHUB_WORKSPACE", "")
    return GitHub(sys.stdout.write, path or (Path(summary) if summary else None), Path(root) if root else None)


KINDS: Mapping[str, Callable[[Path], Handler]] = {"junit": _junit, "html": _html, "json": _json, "jsonl": _jsonl}
"""Reports that are files. ``github`` needs none."""


def handler_of(text: str) -> Handler:
    """Return the handler that `--report` asks for, which gets to see no secrets: ``junit=FILE``, ``html=FILE``, ``json=FILE``, ``jsonl=FILE``, ``github``.

    Raises:
        SettingsError: there is no such kind, or it lacks its file.

    """
    kind, given, name = text.partition("=")
    if kind == "github":
        return Hiding(_github(Path(name) if name else None))
    if kind not in KINDS:
        raise SettingsError(f"--report {text!r}: there is no {kind!r}; it can be {', '.join(KINDS)} or github.")
    if not given or not name:
        raise SettingsError(
            f"--report {text!r}: it needs a file, as {kind}=report.{'xml' if kind == 'junit' else kind}."
        )
    try:
        return Hiding(KINDS[kind](Path(name)))
    except OSError as error:
        raise SettingsError(f"--report {text!r}: cannot write there: {error.strerror or error}.") from error
