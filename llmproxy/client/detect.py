"""Does a test-suite use the proxy? Asked before anything of it is imported, so the files are read, not run.

The pytest plugin sets base URLs before the first import, because many clients read them then; but only in suites that use it, or it
would redirect those that merely have llmproxy installed. A word too much costs nothing (the variables are taken back after
collection), so a simple pattern will do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["mentions", "suite_files", "suite_uses"]

_USE = re.compile(rb"\bmark\.llmproxy\b|[\"']llmproxy[\"']|[(,]\s*llmproxy\s*[,:)=]")
"""The marker, the name as text (usefixtures, getfixturevalue), or a parameter."""
_CONFTEST = "conftest.py"


def suite_uses(places: Iterable[Path], root: Path, files: Sequence[str], norecurse: Sequence[str]) -> bool:
    """Tell whether a test file or conftest below one of the places uses the fixture or the marker.

    `files` and `norecurse` are pytest's patterns ``python_files`` and ``norecursedirs``.
    """
    return any(mentions(path) for path in suite_files(places, root, files, norecurse))


def mentions(path: Path) -> bool:
    """Tell whether one file uses it; a file that cannot be read does not."""
    try:
        return _USE.search(path.read_bytes()) is not None
    except OSError:
        return False


def suite_files(places: Iterable[Path], root: Path, files: Sequence[str], norecurse: Sequence[str]) -> Iterator[Path]:
    """Yield what pytest would import, each file once: named files, files of named folders, and the conftests above them."""
    seen: set[Path] = set()
    for place in places:
        folder = place if place.is_dir() else place.parent
        above = [each / _CONFTEST for each in (folder, *folder.parents) if each == root or root in each.parents]
        found = _below(place, files, norecurse) if place.is_dir() else iter([place])
        for path in (*above, *found):
            if path not in seen:
                seen.add(path)
                yield path


def _below(folder: Path, files: Sequence[str], norecurse: Sequence[str]) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not any(fnmatchcase(name, pattern) for pattern in norecurse))
        for name in sorted(names):
            if name == _CONFTEST or any(fnmatchcase(name, pattern) for pattern in files):
                yield Path(here, name)
