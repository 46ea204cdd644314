"""Reading of user-named files up to a size limit (`/dev/zero` is refused as too large), and atomic replacement."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

DATA = Path(__file__).parent / "data"
"""Path of the package's data files: `importlib.resources` imports zipfile and tempfile, 8 ms of each start."""
LARGEST = 1 << 28


def read_bounded_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return a file's bytes. Raises OSError, also for a file of more than `most` bytes or without an end."""
    with path.open("rb") as file:
        found = path.stat()
        data = file.read(most + 1) if not stat.S_ISREG(found.st_mode) or found.st_size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EFBIG, f"it has over {most:,} bytes, and no more are read", str(path))
    return data


def read_bounded_text(path: Path, most: int = LARGEST) -> str:
    """Return a file's text, UTF-8 with or without a byte order mark. Raises OSError, UnicodeDecodeError."""
    return read_bounded_bytes(path, most).decode("utf-8-sig")


@contextmanager
def replace_file(path: Path, errors: str = "strict") -> Iterator[IO[str]]:
    """Yield a UTF-8 file that replaces `path`, synced to disk, if the block succeeds; else nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    known = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    # A new one has what the umask leaves; asking for the umask would change it for all threads.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if known is None else known)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=errors, newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if known is not None:
            temporary.chmod(known)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def build_dict_without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, as `object_pairs_hook`. Raises ValueError for duplicate names."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r:.80} stands twice in one object")
        made[name] = value
    return made


def create_gitignored_folder(folder: Path) -> Path:
    """Create a folder with a .gitignore that excludes all of it, and return it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder
