"""``--watch``: run again whenever a file changes. Files are looked at, not subscribed to: the same on every system and every disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from llmproxy.errors import LLMProxyError, sign_text

PAUSE = 0.5
_KINDS = frozenset({".yaml", ".yml", ".py", ".mjs", ".js", ".ts", ".json", ".toml", ".md", ".txt"})
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages", "cassettes"})
_MOST = 5000
"""Files that are watched; a folder with more is no project of tests."""
Seen = dict[Path, int]


def look(paths: Sequence[str]) -> Seen:
    """Return when each watched file was changed last: the suites, and what lies in their folders."""
    found: Seen = {}
    for path in _files(paths):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:
            continue
        if len(found) >= _MOST:
            break
    return found


def _files(paths: Sequence[str]) -> Iterator[Path]:
    folders = {Path(path) if Path(path).is_dir() else Path(path).parent for path in paths}
    for folder in sorted(folders):
        for root, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if not name.startswith(".") and name not in _PASSED_OVER)
            yield from (
                Path(root, name) for name in sorted(files) if Path(name).suffix in _KINDS and "snapshots" not in name
            )


def find_changes(before: Seen, after: Seen) -> list[Path]:
    """Return the files that came, went or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def watch(
    run: Callable[[], int],
    paths: Sequence[str],
    say: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run, wait for a change, run again. An error of a suite is told, and ends nothing; Ctrl-C ends it (KeyboardInterrupt)."""
    while True:
        before = look(paths)
        try:
            run()
        except LLMProxyError as error:
            say(sign_text(error))
        say(f"llmproxy: watching {len(before)} files; Ctrl-C ends it")
        while not (found := find_changes(before, look(paths))):
            sleep(PAUSE)
        say(f"llmproxy: {found[0]} changed" + (f", and {len(found) - 1} more" if len(found) > 1 else ""))
