"""The difference of two recordings: of their runs (tools, texts, tokens), and request by request what that does not tell.

(interactions of A, interactions of B) -> RecordingDiff
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmproxy.trace.comparing.diff import FailOn, ReplayDiff
from llmproxy.trace.comparing.requests import CassetteDiff, Change, Pair, cassette_diff
from llmproxy.trace.files.cassette import from_interactions
from llmproxy.trace.reading.exchange import CHAT

if TYPE_CHECKING:
    from llmproxy.core.traffic.interaction import Interaction

_TOLD = ("text", "tokens in", "tokens out", "cost", "call ")
"""Changes of a conversation's request that the comparison of the runs tells already."""


@dataclass(frozen=True, slots=True)
class RecordingDiff:
    """Two recordings, compared as runs and as requests."""

    trace: ReplayDiff
    requests: CassetteDiff

    @classmethod
    def compute(
        cls, old: Sequence[Interaction], new: Sequence[Interaction], *, names: tuple[str, str]
    ) -> RecordingDiff:
        """Compare two recordings, each in the order of its requests. Never raises on odd bodies."""
        before, after = (from_interactions(side, name) for side, name in zip((old, new), names, strict=True))
        return cls(ReplayDiff.compute(before, after), cassette_diff(old, new))

    @property
    def others(self) -> list[Pair]:
        """Requests of which something is to be told that the comparison of the runs does not tell."""
        return [each for each in self.requests.pairs if each.what in ("added", "removed") or find_untold(each)]

    def fails(self, on: FailOn | None) -> bool:
        """Tell whether this is a failure: of the ``contract``, or for ``any`` change; None: it never is."""
        if on is None:
            return False
        return self.trace.fails(on) or (on == "any" and not self.requests.same)


def find_untold(pair: Pair) -> list[Change]:
    """Return the changes of a request that are not told by the runs: all, unless both have it and it is a conversation."""
    chat = any(word in CHAT for word in pair.title.split()[1:2])
    return [each for each in pair.changes if pair.what != "changed" or not chat or not each.what.startswith(_TOLD)]
