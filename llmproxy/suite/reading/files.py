"""Which files a list of paths means: files, folders and globs, each file once, in a steady order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from llmproxy.did_you_mean import suggest
from llmproxy.yaml_reader import Problems, YamlPlace

SUITES = ("suite.yaml", "suite.yml", "*.suite.yaml", "*.suite.yml")
"""Files of a folder that are suites."""
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages"})
_MAGIC = frozenset("*?[")


def show_path(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder if it is below."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def find_files(paths: Iterable[str | Path], problems: Problems) -> list[Path]:
    """Return the files that a user's paths mean. One that means nothing is a problem."""
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = list(_suites(path))
            if not inside:
                called = f"suites are called {', '.join(SUITES)}; `llmproxy test --init` writes a first one"
                problems.add(None, f"{given}: no suite in this folder", called)
            found.update(dict.fromkeys(inside))
        elif os.path.isfile(path):  # noqa: PTH113 - of a name that is too long, Path raises
            found[path] = None
        elif matches := _expand_pattern(str(given)):
            found.update(dict.fromkeys(matches))
        else:
            problems.add(None, f"{given}: there is no such file", _near(path))
    once: dict[Path, Path] = {}
    for path in found:
        once.setdefault(path.resolve(), path)
    return list(once.values())


def found_in(folder: Path, entry: str, at: YamlPlace | None, problems: Problems) -> list[Path]:
    """Return the files that an entry of `scenarios` means, relative to a folder."""
    path = folder / entry
    if os.path.isfile(path):  # noqa: PTH113 - of a name that is too long, Path raises
        return [path]
    matches = _expand_pattern(str(Path(glob.escape(str(folder))) / entry)) if _MAGIC & set(entry) else []
    if not matches:
        what = "no file is called so" if not _MAGIC & set(entry) else "no file matches"
        problems.add(at, f"{entry}: {what} in {show_path(folder)}", "" if _MAGIC & set(entry) else _near(path))
    return matches


def _expand_pattern(pattern: str) -> list[Path]:
    return [Path(each) for each in sorted(glob.glob(pattern, recursive=True)) if Path(each).is_file()]  # noqa: PTH207 - `Path.glob` takes no absolute pattern


def _suites(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (Path(root, name) for name in sorted(files) if any(Path(name).match(pattern) for pattern in SUITES))


def _near(path: Path) -> str:
    try:
        others = [each.name for each in path.parent.iterdir() if each.suffix in {".yaml", ".yml"}]
    except OSError:
        return f"there is no folder {path.parent} either"
    hint = suggest(path.name, others)
    return hint if hint.startswith("did") else ""
