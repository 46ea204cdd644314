"""Which scenarios did not pass the last time, for ``--last-failed``: a small file in ``.llmproxy/``, which nobody commits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FILE = Path(".llmproxy") / "last-failed.json"


def last_failed(folder: Path) -> list[str] | None:
    """Return the ids that did not pass the last time; None if nothing was ever tested here, or the file is not ours."""
    try:
        tree = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    found = tree.get("failed") if isinstance(tree, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else None


def remember(folder: Path, ran: Iterable[str], failed: Iterable[str]) -> None:
    """Keep which of the scenarios that ran did not pass; what did not run stays as it was. A folder that cannot be written is left."""
    known, now = set(last_failed(folder) or ()), set(ran)
    left = sorted((known - now) | set(failed))
    path = folder / FILE
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps({"version": 1, "failed": left}, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
