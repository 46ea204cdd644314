"""The report as one self-contained HTML page: the viewer with embedded data (`ui/static/report.js` shows it).

It includes the recordings of its runs and past tests. Failed runs come first, up to a size limit; omitted ones are
counted. If the store is missing or unreadable, the report says why: a report is never lost because of its appendix.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.advice import format_llmproxy_command, format_store_option, quote_word
from llmproxy.amount_formatting import format_count
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.session import remove_redundant_sample_suffix
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import LLMProxyError
from llmproxy.report.events import Status
from llmproxy.report.json_report import build_json_report as plain_values
from llmproxy.report.run_tree import EventsGroupedByRun
from llmproxy.report.trend import build_trend_table_columns, read_recent_tests
from llmproxy.settings import format_shown_path
from llmproxy.ui.html_file import build_viewer_page_data
from llmproxy.ui.page import render_viewer_page

MOST = 8 << 20
"""Maximum bytes of recordings in one report; a page three times as large opens slowly, and mail rejects it."""
_NAMED = 5
_GOOD = frozenset({Status.PASSED, Status.SKIPPED})


def load_recordings_and_trend(run_tree: EventsGroupedByRun, store: Path | None, most: int = MOST) -> dict[str, Any]:
    if store is None or not run_tree.runs or not store.is_file():
        return {}
    try:
        found, names = _collect_recordings(run_tree, store, most), {each.id for each in run_tree.scenarios()}
        return found | {"trend": build_trend_table_columns(read_recent_tests(Path(f"{store}.state.db")), names)}
    except LLMProxyError as error:
        return {"left": [{"told": f"The recordings are not in this file: {error}"}]}


def _collect_recordings(run_tree: EventsGroupedByRun, store: Path, most: int) -> dict[str, Any]:
    with SqliteCassetteStore.open(store, writable=False, now=time.time) as opened:
        there = {(info.name, info.sample): info for info in opened.cassettes() if info.live}
        ranked = sorted(run_tree.runs.values(), key=lambda run: run.status in _GOOD)
        wanted = dict.fromkeys((run.started.cassette, run.started.sample) for run in ranked)
        found = [there[place] for place in wanted if place in there]
        made = build_viewer_page_data(opened, found, run_tree.title, most, Redactor(os.environ))
    shown = format_shown_path(store)
    left = list(_list_omitted_recordings(made["cassettes"], shown))
    made["cassettes"] = [each for each in made["cassettes"] if each["rows"]]
    return {**made, "left": left, "store_words": format_store_option(shown)}


def _list_omitted_recordings(cassettes: Sequence[Mapping[str, Any]], store: str) -> Iterator[dict[str, str]]:
    for each in cassettes:
        if each["rows"] and each["left"]:
            name = remove_redundant_sample_suffix(f"{each['name']}~{each['sample']}")
            told = f"{each['left']:,} of {format_count(each['live'], 'call')} of {name}: there was no room for them."
            yield {"told": told, "command": format_llmproxy_command(f"ui {quote_word(name)}", store)}
    if whole := [each for each in cassettes if not each["rows"]]:
        names = ", ".join(each["name"] for each in whole[:_NAMED]) + (", ..." if len(whole) > _NAMED else "")
        told = f"{format_count(len(whole), 'recording')} ({names}): there was no room for them."
        yield {"told": told, "command": format_llmproxy_command("ui", store)}


MARK = "llmproxy report"


def render_html_report(run_tree: EventsGroupedByRun, store: Path | None = None) -> str:
    found = {"cassettes": []} | load_recordings_and_trend(run_tree, store)
    report = {**plain_values(run_tree), "trend": found.pop("trend", []), "left": found.pop("left", [])}
    data = {**found, "kind": MARK, "title": run_tree.title, "start": "#/report", "report": report}
    return render_viewer_page(data | {"recordings": bool(found["cassettes"])}, title=run_tree.title)
