"""What nodes recorded comes home: the files of cassettes are merged into the folder of this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def bring_home(recorded: Sequence[Mapping[str, bytes]], target: Path) -> str:
    """Merge files, by name, into a folder; returns what was done, in words, empty for nothing. Raises MergeConflict."""
    from llmproxy.core.cassettes.uniting_folders import unite_folders

    if not recorded:
        return ""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmproxy-home-") as folder:
        for number, files in enumerate(recorded):
            for name, data in files.items():
                path = Path(folder) / str(number) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        done = unite_folders(sorted(Path(folder).iterdir()), target, time.time)
    where = target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target
    return f"{len(done.written)} cassette files came home to {where}"
