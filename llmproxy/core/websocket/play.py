"""A recorded WebSocket conversation answers a live client, message by message.

    (what the client says) -> what the server said next, each with its delay; or a Mismatch

The client's n-th message is compared with the recorded client's n-th, both in canonical form (`Canon`). What the server said between
the recorded messages n and n+1 is due once message n was matched, as long after it as recorded. No I/O and no clock here: the shell
sends what is due (`mitm.websocket_replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from llmproxy.core.keys.rules import NOTHING, RESPONSES, Do, Rule, Shape
from llmproxy.core.keys.scrub import Rules, apply, compile_rules
from llmproxy.core.keys.walk import MadeBy, Walk
from llmproxy.core.traffic.differences import Difference, count, differences
from llmproxy.core.traffic.frames import Frame
from llmproxy.core.traffic.json_bytes import NotLossless, dump, parse

if TYPE_CHECKING:
    from llmproxy.core.providers.table import Family

Due = tuple[int, Frame]
"""Microseconds after what it follows, and the message."""

_EVENT_ID = {"event_id": Rule(Do.IGNORE, "SDKs make up a random one for the server's error messages")}
_ID = Rule(Do.REFER, "names an item of this conversation")
REALTIME = Shape(
    {
        **_EVENT_ID,
        "item": Rule(
            Do.WALK, "clients name items at random", Shape({"id": Rule(Do.DECLARE, "random, yet it says which")})
        ),
        "item_id": _ID,
        "previous_item_id": _ID,
    }
)
SHAPES: dict[tuple[str, str], Shape] = {
    ("openai", "realtime"): REALTIME,
    ("openai", "responses"): Shape({**RESPONSES.members, **_EVENT_ID}, nulls=True),
}
"""By dialect and operation: what does not count in a client's message. Of others everything counts, but how their JSON is written."""

_COMPARED = 200
"""Recorded messages among which the nearest is looked for."""
_ENOUGH = 50


@dataclass(frozen=True, slots=True)
class FrameForm:
    """A message as it is compared."""

    body: bytes
    tree: object
    """JSON; the text itself if it is none; a description of bytes."""


class Canon:
    """Brings the messages of one side of one conversation into canonical form, in their order: ids that the client made up get names."""

    def __init__(self, family: Family, operation: str, rules: Rules, made_by: MadeBy) -> None:
        self._walk, self._rules = Walk(made_by), compile_rules(rules)
        self._shape = SHAPES.get((family, operation.partition("/")[0]), NOTHING)

    def __call__(self, data: str | bytes) -> FrameForm:
        """Return the form of the next message (redacted)."""
        try:
            tree = parse(data)
        except NotLossless:
            if isinstance(data, str):
                return FrameForm(data.encode("utf-8", "surrogatepass"), data)
            return FrameForm(b"\0" + data, f"{len(data)} bytes with sha256 {sha256(data).hexdigest()}")
        tree = apply(tree, self._rules)
        if isinstance(tree, dict):
            self._walk.body(tree, self._shape)
        return FrameForm(dump(tree), tree)


@dataclass(frozen=True, slots=True)
class FrameMismatch:
    """A message that was not recorded in this place."""

    number: int
    """Of the client's message, from 1."""
    form: FrameForm
    expected: int
    """How many messages of the client's were recorded."""
    nearest: int | None
    """Number of the recorded message that is most like it; None if none was recorded."""
    differences: tuple[Difference, ...]
    """From the nearest to this one."""


class FramePlayer:
    """Plays one recorded conversation to one client."""

    def __init__(self, frames: Sequence[Frame], canon: Callable[[], Canon]) -> None:
        """Stand before the first message."""
        self._frames, self._canon = frames, canon
        self._there, self._here = canon(), canon()
        self._at = 0
        self.heard = 0
        """Messages of the client's that matched."""

    @property
    def total(self) -> int:
        """Messages of the client's that were recorded."""
        return sum(frame.client and frame.close is None for frame in self._frames)

    @property
    def is_over(self) -> bool:
        """Whether everything was played but the client's own end."""
        return not any(frame.close is None or not frame.client for frame in self._frames[self._at :])

    @property
    def speaks_first(self) -> bool:
        """Whether the server said something before the client's first message."""
        return bool(self._frames) and not self._frames[0].client

    def opening(self, since: int) -> list[Due]:
        """Return what the server says by itself; `since` is when it had accepted the upgrade, microseconds."""
        return self._take_due(since)

    def hear(self, data: str | bytes) -> list[Due] | FrameMismatch:
        """Take the client's next message (redacted); return what the server says to it."""
        form, number = self._here(data), self.heard + 1
        frame = self._frames[self._at] if self._at < len(self._frames) else None
        if frame is None or not frame.client or frame.close is not None or self._there(frame.data).body != form.body:
            return self._mismatch(number, form)
        self.heard = number
        self._at += 1
        return self._take_due(frame.at)

    def _take_due(self, since: int) -> list[Due]:
        due = []
        while self._at < len(self._frames) and not (frame := self._frames[self._at]).client:
            due.append((max(0, frame.at - since), frame))
            self._at += 1
        return due

    def _mismatch(self, number: int, form: FrameForm) -> FrameMismatch:
        canon = self._canon()
        forms = [canon(frame.data) for frame in self._frames if frame.client and frame.close is None]
        near: int | None = None
        fewest = _ENOUGH + 2
        order = sorted(range(len(forms)), key=lambda index: abs(index - number + 1))  # of equals the one in this place
        for index in order[:_COMPARED]:
            if (found := _distance(forms[index], form)) < fewest:
                near, fewest = index, found
        places = () if near is None else tuple(differences(forms[near].tree, form.tree))
        return FrameMismatch(number, form, len(forms), None if near is None else near + 1, places)


def _distance(old: FrameForm, new: FrameForm) -> int:
    if old.body == new.body:
        return 0
    if not isinstance(old.tree, dict) or not isinstance(new.tree, dict):
        return _ENOUGH + 1
    return min(
        _ENOUGH,
        1 + count(old.tree, new.tree, _ENOUGH) + (_ENOUGH if old.tree.get("type") != new.tree.get("type") else 0),
    )
