"""How many credentials were learned, and whether what was derived before them still holds.

What was derived from a request depends on the credentials that were known: one that stands in it becomes a placeholder. Clients exist that bring
another token with each request, and hardly ever does one stand in any request. A credential, in whatever form it is looked for, stands in a
text only within a run of key characters; so a few characters of each form are compared with all such runs that were searched. Where none of them
is there, nothing has changed. Whatever cannot be told so counts as a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmproxy.core.secrets.find import runs_of

if TYPE_CHECKING:
    from collections.abc import Collection

GRAM = 8
"""Characters that are compared."""
_MOST_OF_A_TEXT = 100_000
"""Different pieces of a text that are remembered, as half a megabyte of code has; with more it counts as changed by every new credential."""
_LONGEST = 2_000_000
"""Characters of its runs that are looked at."""
_MOST = 400_000
"""Pieces that are remembered in all, some 40 MB; then everything counts as changed once."""


class Learned:
    """The credentials of a run, only counted, and what was searched for them."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = 0
        """The number of the last one that may have changed something."""
        self._searched: set[str] = set()

    def add(self, tails: Collection[str | None]) -> None:
        """Note one more, by a piece of each of its forms; None for a form that has none."""
        self.count += 1
        if None in tails or not self._searched.isdisjoint(tails):
            self._changed = self.count

    def search(self, text: str) -> bool:
        """Note that a text was searched; False if it is too long for that: whatever comes may change it."""
        data, lean, spans = runs_of(text)
        if len(data) != len(lean) or sum(end - start for start, end in spans) > _LONGEST:
            return False
        pieces = {text[at : at + GRAM] for start, end in spans for at in range(start, end - GRAM + 1)}
        if len(pieces) > _MOST_OF_A_TEXT:
            return False
        self._searched |= pieces
        if len(self._searched) > _MOST:
            self._searched = set()
            self.count += 1
            self._changed = self.count
        return True

    def changes_nothing(self, since: int, *, noted: bool) -> bool:
        """Tell whether what was derived when there were `since` of them still holds; `noted`: from texts of which all were noted."""
        return since == self.count or (noted and since >= self._changed)
