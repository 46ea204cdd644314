"""A report that is one document: it remembers the events, and writes the file when everything is over.

    AtEnd(Path("junit.xml"), junit.document)

That the place can be written to is tried at the beginning, not after an hour of tests. A file of an earlier run is replaced, never
mixed with this one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmproxy.report.events import Event
from llmproxy.report.story import Story

__all__ = ["AtEnd"]


class AtEnd:
    """Writes one document at the end."""

    def __init__(self, path: Path, render: Callable[[Story], str | bytes]) -> None:
        """Write what `render` makes of the story to `path`; text as UTF-8. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        self._path, self._render, self._story = path, render, Story()

    def handle(self, event: Event) -> None:
        """Remember it."""
        self._story.add(event)

    def close(self) -> None:
        """Write the document. Raises OSError."""
        made = self._render(self._story)
        self._path.write_bytes(made if isinstance(made, bytes) else made.encode("utf-8", "backslashreplace"))
