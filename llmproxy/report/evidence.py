"""What a report that is one file stands on: the recordings of its runs, and the tests before it.

    evidence_of(story, Path("llmproxy.db")) -> {"cassettes": [...], "calls": {...}, ..., "left": [...]}

Failed runs come first, and only so much is taken; what is left out is counted, with the command that shows it. A store that is not there, or
cannot be read, leaves the report as it is and says why: a report is never lost to its appendix.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.amounts import format_count
from llmproxy.core.sessions.sessions import canonical
from llmproxy.core.traffic.advice import look, quote_word, store_words
from llmproxy.errors import LLMProxyError
from llmproxy.report.events import Status
from llmproxy.report.history.trend import columns, read_tests
from llmproxy.report.story import Story
from llmproxy.settings import shown_path

MOST = 8 << 20
"""Bytes of recordings in one report; a page of three times as much opens slowly, and mail refuses it."""
_NAMED = 5
"""Recordings that are left out and named."""
_GOOD = frozenset({Status.PASSED, Status.SKIPPED})


def evidence_of(story: Story, store: Path | None, most: int = MOST) -> dict[str, Any]:
    """Return the data of a page that a report stands on: recordings, what of them is left out, and the trend."""
    if store is None or not story.runs or not store.is_file():
        return {}
    try:
        return _recordings(story, store, most) | {"trend": _trend(story, store)}
    except LLMProxyError as error:
        return {"left": [{"told": f"The recordings are not in this file: {error}"}]}


def _trend(story: Story, store: Path) -> list[dict[str, Any]]:
    return columns(read_tests(Path(f"{store}.state.db")), {scenario.id for scenario in story.scenarios()})


def _recordings(story: Story, store: Path, most: int) -> dict[str, Any]:
    from llmproxy.core.store.file.store import FileStore  # late: most reports need none
    from llmproxy.ui.file import recording

    with FileStore.open(store, writable=False, now=time.time) as opened:
        there = {(info.name, info.sample): info for info in opened.cassettes() if info.live}
        ranked = sorted(story.runs.values(), key=lambda run: run.status in _GOOD)
        wanted = dict.fromkeys((run.started.cassette, run.started.sample) for run in ranked)
        made = recording(opened, [there[place] for place in wanted if place in there], story.title, most)
    shown = shown_path(store)
    found = made["cassettes"]
    made["cassettes"] = [each for each in found if each["rows"]]
    return {**made, "left": list(_list_left(found, shown)), "store_words": store_words(shown)}


def _list_left(cassettes: Sequence[Mapping[str, Any]], store: str) -> Iterator[dict[str, str]]:
    """Give what is not in the file, and the command that shows it."""
    for each in cassettes:
        if each["rows"] and each["left"]:
            name = canonical(f"{each['name']}~{each['sample']}")
            told = f"{each['left']:,} of {format_count(each['live'], 'call')} of {name}: there was no room for them."
            yield {"told": told, "command": look(f"ui {quote_word(name)}", store)}
    if whole := [each for each in cassettes if not each["rows"]]:
        names = ", ".join(each["name"] for each in whole[:_NAMED]) + (", ..." if len(whole) > _NAMED else "")
        told = f"{format_count(len(whole), 'recording')} ({names}): there was no room for them."
        yield {"told": told, "command": look("ui", store)}
