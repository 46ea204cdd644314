"""Does a test-suite use the proxy, and is a YAML file a suite of ours? Asked before anything of it is imported, so the files are read, not run.

The pytest plugin sets base URLs before the first import, because many clients read them then; but only in suites that use it, or it
would redirect those that merely have llmproxy installed. A word too much costs nothing (the variables are taken back after
collection), so a simple pattern will do.

`suite.yaml` is a name that other tools use as well: a file is ours if most keys of its first document are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

_USE = re.compile(rb"\bmark\.llmproxy\b|[\"']llmproxy[\"']|[(,]\s*llmproxy\s*[,:)=]")
"""The marker, the name as text (usefixtures, getfixturevalue), or a parameter."""
_CONFTEST = "conftest.py"
_SUITE_NAMES = ("suite.yaml", "suite.yml", "*.suite.yaml", "*.suite.yml")
SUITE_KEYS = frozenset(
    {
        "version", "name", "baseDir", "scenarios", "vars", "include", "agent", "store",
        "proxy", "defaults", "defaultTags", "hooks", "id", "description", "tags", "userId",
        "setup", "steps", "teardown", "runs", "minPassRate", "timeout", "settle", "observe",
        "skip", "xfail", "parametrize", "matrix", "faults", "mock", "usage",
        "resources",
    }
)  # fmt: skip
"""Keys of suites and scenarios."""
_KEY = re.compile(rb"""^\{?[ ]?["']?([A-Za-z_][\w-]*)["']?[ ]*:(?=\s|$)""", re.MULTILINE)
_SCHEMA = b"suite.schema.json"
_PEEK = 200_000
"""Bytes in which the keys of a suite are looked for."""


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


def is_suite_name(name: str) -> bool:
    """Tell whether a file is called as suites are."""
    return any(fnmatchcase(name, pattern) for pattern in _SUITE_NAMES)


def is_suite(path: Path) -> bool:
    """Tell whether a file looks like a suite of ours, by the keys at the left margin; nothing is parsed, so it may be broken."""
    try:
        with path.open("rb") as file:
            text = file.read(_PEEK)
    except OSError:
        return False
    keys = {key.decode("ascii", "replace") for key in _KEY.findall(text)}
    if not keys & {"scenarios", "steps"}:
        return False
    return _SCHEMA in text[:1000] or len(keys & SUITE_KEYS) * 2 > len(keys)
