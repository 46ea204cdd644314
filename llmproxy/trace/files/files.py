"""Trace files on disk: read whole or not at all, written atomically, never overwritten by accident with half a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from llmproxy.errors import CassetteCorrupt, CassetteNewer, CassetteNotFound, MachineError
from llmproxy.files import read_text
from llmproxy.trace.values.problems import TraceNotJSON


def read[T](path: Path, make: Callable[[Any], T]) -> T:
    """Read a JSON file and make something of it; errors name the file. Raises as `Cassette.load`."""
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise CassetteNotFound(f"There is no trace file {path}.", hint="`export --format spans` writes one.") from error
    except UnicodeDecodeError as error:
        raise CassetteCorrupt(f"{path}: not UTF-8 text ({error.reason}).") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        what = "the file is empty" if not text.strip() else f"not JSON, or cut off ({error.msg})"
        raise TraceNotJSON(f"{path}, line {error.lineno}: {what}.", error) from error
    except RecursionError as error:
        raise CassetteCorrupt(f"{path}: nested too deeply.") from error
    try:
        return make(data)
    except (CassetteCorrupt, CassetteNewer) as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        error.message = f"{path}: {error.message}{where}"
        raise


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Give a file to write; it stands at `path` once the block ends well, and leaves nothing behind if not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            yield file
        Path(temporary).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def write(path: Path, data: dict[str, Any]) -> Path:
    """Write JSON, indented; what JSON has no form for is written as its text."""
    with replacing(path) as file:
        json.dump(data, file, indent=2, default=str)
        file.write("\n")
    return path
