"""Changes and refusals as values: the text of a segment in the recording and in the present request.

A change is named by its content, ``system-3f2a``: equal edits of equal lines have one name, in all calls and cassettes.
Its coverage is exact: `before_digest` and `after_digest` are those of the two whole segments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple, Self

_DIGITS = 4
_DIGEST = 16
_SHOWN = 100
_MOST_LINES = 4000
"""Maximum different lines that are aligned; if there are more, they form a single hunk."""


class ChangeSource(StrEnum):
    CLIENT = "client"
    PROMPT = "prompt"
    TOOL_SERVER = "tool server"


class ChangeCause(NamedTuple):
    source: ChangeSource
    name: str = ""
    """Name of the client or of the tool's server; empty if unknown."""
    version: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.source.value, self.name, self.version)))


class Hunk(NamedTuple):
    line: int
    """Number of its first line in the present segment, from 1."""
    before: tuple[str, ...]
    after: tuple[str, ...]


class SegmentChange(NamedTuple):
    kind: str
    """`dialects.conversation.Kind`, or ``header`` or ``query``."""
    segment: str
    """Name for people, the same in every call: ``system prompt``, ``tool search_orders``, ``result of bash``."""
    before: str | None
    """Text of the whole segment, or (if read from JSON) of the different lines; None: the segment is new."""
    after: str | None
    before_digest: str
    """Digest of the value, not only of its text; empty for an absent segment."""
    after_digest: str
    hunks: tuple[Hunk, ...]
    """Different lines; of a tool's result without their values."""
    origin: ChangeCause = ChangeCause(ChangeSource.PROMPT)
    turned: str = ""
    """For a tool's result: ``fails now`` if the recorded one had succeeded."""
    place: str = ""
    """For a tool, for people: ``tool search_orders: parameter limit is new``."""
    is_place_enough: bool = False
    """Whether the first difference is a member that is new or gone, so that `place` describes it."""

    @property
    def edit_digest(self) -> str:
        """Digest of the edit: equal if the same lines of the same segment are replaced by the same lines."""
        said = [self.kind, self.segment, self.turned]
        for hunk in self.hunks:
            said += ["-", *hunk.before, "+", *hunk.after]
        return digest_texts(said if self.hunks else [*said, self.before_digest, self.after_digest])

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.edit_digest[:_DIGITS]}"

    @property
    def digests(self) -> tuple[str, str]:
        return self.before_digest, self.after_digest

    def __str__(self) -> str:
        """Return one line: ``system prompt, line 12: "Be brief." -> "Be brief and kind."``."""
        if self.before is None or self.after is None:
            return f"{self.segment} is {'new' if self.before is None else 'gone'}"
        if not self.hunks:
            return f"{self.segment}: written in another way"
        if self.is_place_enough:
            return self.place
        hunk = self.hunks[0]
        line = f", line {hunk.line}" if hunk.line > 1 else ""
        said = [f'"{shorten(" ".join(lines).strip())}"' if lines else "nothing" for lines in (hunk.before, hunk.after)]
        more = f", and {len(self.hunks) - 1} more places" if len(self.hunks) > 1 else ""
        return f"{self.segment}{line}: {said[0]} -> {said[1]}{more}{f'; it {self.turned}' if self.turned else ''}"

    @property
    def difference_text(self) -> str:
        """The difference for people: lines that begin with ``-`` and ``+``."""
        sides = [(sign, lines) for hunk in self.hunks for sign, lines in zip("-+", hunk[1:], strict=True)]
        return "\n".join(f"{sign} {line}" for sign, lines in sides for line in lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values without the whole texts: a system prompt of 80,000 characters is in every call."""
        return {
            "name": self.name, "kind": self.kind, "segment": self.segment, "text": str(self),
            "before_digest": self.before_digest, "after_digest": self.after_digest,
            "hunks": [[hunk.line, list(hunk.before), list(hunk.after)] for hunk in self.hunks],
            "origin": list(self.origin), "turned": self.turned, "place": self.place, "difference": self.difference_text,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the JSON form, whose texts are only the different lines."""
        source, name, version = value["origin"]
        hunks = tuple(Hunk(line, tuple(before), tuple(after)) for line, before, after in value["hunks"])
        before = "\n".join(line for hunk in hunks for line in hunk.before) if value["before_digest"] else None
        after = "\n".join(line for hunk in hunks for line in hunk.after) if value["after_digest"] else None
        return cls(
            value["kind"], value["segment"], before, after, value["before_digest"], value["after_digest"], hunks,
            ChangeCause(ChangeSource(source), name, version), value["turned"], value["place"],
            is_place_enough=value["place"] == value["text"],
        )  # fmt: skip


def shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def digest_texts(parts: Sequence[str]) -> str:
    """Return a digest of texts: equal only for equal texts."""
    told = [piece for part in parts for piece in (f"{len(part)}:", part)]
    return hashlib.sha256("".join(told).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def diff_hunks(before: str | None, after: str | None) -> tuple[Hunk, ...]:
    old, new = (text.split("\n") if text is not None else [] for text in (before, after))
    front = next((n for n, (was, now) in enumerate(zip(old, new, strict=False)) if was != now), min(len(old), len(new)))
    ends = zip(reversed(old[front:]), reversed(new[front:]), strict=False)
    back = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    was, now = old[front : len(old) - back], new[front : len(new) - back]
    if len(was) + len(now) > _MOST_LINES:
        return (Hunk(front + 1, tuple(was), tuple(now)),)
    edits = iterate_sequence_edits(was, now)
    return tuple(Hunk(front + at + 1, tuple(was[i:j]), tuple(now[at:to])) for i, j, at, to in edits)


def iterate_sequence_edits(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the positions (i, j, at, to) at which old[i:j] became new[at:to], in order."""
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    yield from ((i, j, at, to) for tag, i, j, at, to in opcodes if tag != "equal")


class RefusalReason(StrEnum):
    NO_PLACE = "new"
    """No recording is at the place of this call, or it has no place."""
    AMBIGUOUS = "place not known"
    """Recordings with different answers are at the place."""
    QUESTION = "question"
    RESULT = "result"
    IMPOSSIBLE = "impossible"
    """This request could not get the recorded answer today."""
    MODEL = "model"
    HISTORY = "history"
    """Earlier answers in the conversation differ."""
    DATA = "data"
    """The change is in lines that differ from call to call."""
    REQUEST = "request"
    """The change is of an unknown kind, which cannot be accepted."""
    NOT_ACCEPTED = "not accepted"
    ENDED = "ended"
    NOT_LOOKED_AT = "not looked at"
    """The call follows a refusal in its thread."""


class CarriedAnswerRefusal(NamedTuple):
    why: RefusalReason
    text: str
    """For people: ``message 3 (user), line 1: "..." -> "..."``."""


class CarriedAnswerAttempt(NamedTuple):
    seq: int
    """Number of the call in its session, from 1."""
    cassette: str
    sample: int
    party: str
    operation: str
    recording: int | None = None
    """Row of the recording at its place, whether it was served or not."""
    changes: tuple[SegmentChange, ...] = ()
    """Changes under which its answer was served; if refused, those found before the refusal."""
    refusal: CarriedAnswerRefusal | None = None
    """None: the answer was carried."""
    pending: tuple[str, ...] = ()
    input: int | None = None
    """Input tokens of the recording, an estimate for recording it anew; None if unknown."""
    output: int | None = None
    cost: float | None = None
    """US dollars, also an estimate; None if unknown, never 0."""
    ms: float | None = None
    """Milliseconds of the recorded answer."""

    @property
    def has_no_place(self) -> bool:
        return self.refusal is not None and self.refusal.why is RefusalReason.NO_PLACE

    def to_json(self) -> dict[str, Any]:
        refusal = None if self.refusal is None else {"why": self.refusal.why.value, "text": self.refusal.text}
        return self._asdict() | {"changes": [each.to_json() for each in self.changes], "refusal": refusal}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        said, changes = value["refusal"], tuple(map(SegmentChange.from_json, value["changes"]))
        refusal = None if said is None else CarriedAnswerRefusal(RefusalReason(said["why"]), said["text"])
        return cls(**{**value, "changes": changes, "refusal": refusal, "pending": tuple(value["pending"])})
