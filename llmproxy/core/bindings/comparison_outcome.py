"""The result of comparing a request with a recording: a fit, or the first mismatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from llmproxy.core.bindings.id_pairs import IdPair, IdPairConflictReason
from llmproxy.core.traffic.json_diff import count_common_prefix

ON_TRIAL = "on trial: "
SHOWN = 80


class MismatchKind(StrEnum):
    """Reason why a recording does not fit, or why its answer cannot be written."""

    DIFFERENT = "different"
    LEAKED = "leaked"
    """A value of the recorded run appears where this run's value must."""
    NOT_ONE_TO_ONE = "not one to one"
    BOTH_WAYS = "both ways"
    """The request contains both the recorded and the present value, so the answer's value is ambiguous."""
    QUOTING = "quoting"
    """The present value needs quotes in a shell command, but the recorded one did not."""
    AMBIGUOUS = "ambiguous"
    """Two names had the same value in the recorded run, and have different ones now."""
    UNEVEN = "uneven"
    """A variable has this run's value at one place, and the recorded value at another."""
    MERGED = "merged"
    """Two values that differed in the recorded run are equal now."""
    UNREADABLE = "unreadable"
    """The answer's framing cannot be rewritten."""
    SHORT = "short"
    """A short value is in prose, where it cannot be distinguished from other text."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    why: MismatchKind
    path: str
    """JSON path in the request, or in the answer."""
    recorded: str = ""
    """The recorded text at the path, shortened."""
    present: str = ""
    name: str = ""

    def __str__(self) -> str:
        recorded, present, name = repr(self.recorded), repr(self.present), self.name
        texts = {
            MismatchKind.DIFFERENT: f"recorded {recorded}, now {present}",
            MismatchKind.LEAKED: f"leaked: {recorded} is of the recorded run ({name})",
            MismatchKind.NOT_ONE_TO_ONE: f"{name} does not map one to one: {recorded} became {present}",
            MismatchKind.BOTH_WAYS: f"the answer names {name}, of which the request holds both values",
            MismatchKind.QUOTING: f"{present} ({name}) needs quotes in a command, where it had none",
            MismatchKind.AMBIGUOUS: f"{recorded} was {name}, which differ now",
            MismatchKind.UNEVEN: f"{recorded} stays as it was recorded, where {name} is {present} "
            "elsewhere in the request: its places change all or none",
            MismatchKind.MERGED: f"{present} ({name}) is equal now to what was another value when it was recorded: "
            f"{recorded}",
            MismatchKind.UNREADABLE: "the answer cannot be rewritten",
            MismatchKind.SHORT: f"{name} ({recorded}, now {present}) stands in prose, where so short a value is not "
            "bound; it is at members of tools' JSON that name it",
        }
        return f"{self.path}: {texts[self.why]}"


def build_conflict_mismatch(path: str, pair: IdPair, conflict: IdPairConflictReason) -> Mismatch:
    both = f"{pair.present}, before {conflict.other}"
    return Mismatch(MismatchKind.NOT_ONE_TO_ONE, path, pair.recorded, both, pair.name)


@dataclass(slots=True)
class Fit:
    names: tuple[str, ...]
    """Bindings and volatile fields whose values differ, sorted."""
    identities: tuple[IdPair, ...]
    """Ids that tools created in this pair of requests."""
    chosen: dict[str, set[str]] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)
    """Bindings whose recorded value occurs unchanged."""
    below: frozenset[str] = frozenset()
    """Path variables below which the request names something with this run's value."""


def build_mismatch(path: str, recorded: object, present: object) -> Mismatch:
    texts = [value if isinstance(value, str) else repr(value) for value in (recorded, present)]
    at = count_common_prefix(*texts)
    return Mismatch(MismatchKind.DIFFERENT, path, *(excerpt_line(text, at) for text in texts))


def excerpt_line(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    if end - start > SHOWN:
        start = max(start, at - SHOWN // 2)
        end = min(end, start + SHOWN)
    return text[start:end]
