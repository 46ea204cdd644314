"""The journal beside a store belongs to one machine: a hint where git would take it along.

`.gitignore` files are read, no process is started: only patterns that name the file or its ending are understood. Where another one ignores it the
hint is said for nothing, once a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

PATTERN = "*.state.db"


def gitignore_hint(store: Path) -> str:
    """Return what to type so that git leaves the journal of a store alone; an empty string outside a repository, or where it does already."""
    journal = Path(f"{store.absolute()}.state.db")
    folders = list(journal.parents)
    root = next((folder for folder in folders if (folder / ".git").exists()), None)
    if root is None:
        return ""
    inside = folders[: folders.index(root) + 1]
    if any(_names(pattern, journal, folder) for folder in inside for pattern in _patterns(folder)):
        return ""
    where = root / ".gitignore"
    return f"{journal.name} is this machine's journal and says what was asked; keep it out of git: echo '{PATTERN}' >> {where}"


def _patterns(folder: Path) -> Iterator[str]:
    for file in (folder / ".gitignore", folder / ".git" / "info" / "exclude"):
        with suppress(OSError):
            for line in file.read_text("utf-8", "replace").splitlines():
                if (pattern := line.strip()) and not pattern.startswith(("#", "!")):
                    yield pattern


def _names(pattern: str, journal: Path, folder: Path) -> bool:
    bare = pattern.removeprefix("**/").rstrip("/")
    if "/" not in bare:
        return any(fnmatch(part, bare) for part in journal.relative_to(folder).parts)
    return fnmatch(str(journal.relative_to(folder)), bare.lstrip("/"))
