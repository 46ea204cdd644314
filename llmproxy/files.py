"""Files that somebody names: read whole up to a bound, so that `/dev/zero` is refused as a file that is too large, and
replaced as a whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

DATA = Path(__file__).parent / "data"
"""Where what ships with us lies, by its path: `importlib.resources` brings zipfile and tempfile, 8 ms of each start."""
LARGEST = 1 << 28
"""Bytes of a file that is read whole."""


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return a file's bytes. Raises OSError, also for one of more than `most` bytes or without an end."""
    with path.open("rb") as file:
        found = path.stat()
        regular = stat.S_ISREG(found.st_mode)
        data = file.read(most + 1) if not regular or found.st_size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EFBIG, f"it has over {most:,} bytes, and no more are read", str(path))
    return data


def read_text(path: Path, most: int = LARGEST) -> str:
    """Return a file's text, of UTF-8 with or without a byte order mark. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path, most).decode("utf-8-sig")


@contextmanager
def replacing(path: Path, errors: str = "strict") -> Iterator[IO[str]]:
    """Yield a file of UTF-8, which is at `path`, on disk, once the block ends well, else nowhere. Raises OSError."""
    import tempfile  # 8 ms of each start

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=errors, newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(_choose_permissions(path))
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _choose_permissions(path: Path) -> int:
    """Return the permissions of a file, or those that a new one has: a temporary file is for its owner only."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def unique_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, as `object_pairs_hook`. Raises ValueError: of two equal names one would win unseen."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r:.80} stands twice in one object")
        made[name] = value
    return made


def make_ignored(folder: Path) -> Path:
    """Make a folder of what nobody commits, which ignores itself in Git; returns it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder
