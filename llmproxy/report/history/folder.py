"""The folder of what nobody commits, beside the tests: it ignores itself in Git."""

from __future__ import annotations

from pathlib import Path


def made_ignored(folder: Path) -> Path:
    """Make it where it is missing, and return it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder
