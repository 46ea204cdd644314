"""A report that is one document: it remembers the events, and writes the file when everything is over.

    AtEnd(Path("junit.xml"), junit.document)

That the place can be written to is tried at the beginning, not after an hour of tests: what is written there then is the document of
a test that did not end. Whoever is killed leaves that, never the report of an earlier run, and never half a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from llmproxy.report.events import Event
from llmproxy.report.story import Story


class AtEnd:
    def __init__(self, path: Path, render: Callable[[Story], str | bytes]) -> None:
        """Write what `render` makes of the story to `path`; text as UTF-8. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._render, self._story = path, render, Story()
        if path.exists() and not path.is_file():
            path.open("ab").close()  # what cannot be taken back is written once: /dev/stdout, a pipe
        else:
            self._write()

    def handle(self, event: Event) -> None:
        self._story.add(event)

    def close(self) -> None:
        """Write the document. Raises OSError."""
        self._write()

    def _write(self) -> None:
        made = self._render(self._story)
        data = made if isinstance(made, bytes) else made.encode("utf-8", "backslashreplace")
        if self._path.exists() and not self._path.is_file():  # /dev/stdout, a pipe
            self._path.write_bytes(data)
            return
        target = self._path.resolve()
        with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as out:
            part = Path(out.name)
            try:
                out.write(data)
                out.close()
                part.chmod(_mode(target))
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise


def _mode(path: Path) -> int:
    """Return the permissions of a file, or those that a new one has: a temporary file is for its owner only."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
