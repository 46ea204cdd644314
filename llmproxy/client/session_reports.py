"""Reports of the control API as values: of the proxy, of a session, of each call; and their sums on a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from llmproxy.amount_formatting import dollars, format_count
from llmproxy.calls_and_totals import Call, Totals, UnusedRecording, describe_replay_hits, describe_stubbed_calls
from llmproxy.errors import remove_program_prefix
from llmproxy.lazy_regex import late
from llmproxy.protocol import AGENT, OFFLINE


class Health(NamedTuple):
    version: str
    mode: str
    ca: str | None = None
    """Path of its authority's certificate (PEM); None without interception."""


@dataclass(slots=True)
class SessionReport(Totals):
    name: str
    cassette: str
    sample: int = 1
    mode: str = ""
    arrived: int = field(default=0, kw_only=True)
    """Number of the last call that arrived, ended or not, from which :meth:`Control.calls` can continue."""
    unused: tuple[UnusedRecording, ...] | None = field(default=None, kw_only=True)
    overrides: Mapping[str, Any] | None = field(default=None, kw_only=True)
    live: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """The live channels, their cassette, and unanswered calls, in the proxy's form; None without any."""
    faults: Mapping[str, Any] | None = field(default=None, kw_only=True)
    replacement: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Whether new recordings replace older ones, in the proxy's form; None for most sessions."""
    key_names: tuple[str, ...] | None = field(default=None, kw_only=True)
    """Variables of keys that the recorded run had; None if unknown. Only for a newly opened session."""
    unfiled: str = field(default="", kw_only=True)
    """Advice about served answers that are missing from the cassette folder's files."""
    further: tuple[Call, ...] | None = field(default=None, kw_only=True)
    """Calls after the given one, at the end of a session; None if not requested."""

    @property
    def needs_no_model_keys(self) -> bool:
        return self.mode in OFFLINE and "llm" not in (self.live or {}).get("channels", ())

    @property
    def unused_faults(self) -> tuple[str, ...]:
        """Fault rules that should have applied, whatever their probability, and did not; a line each, with reasons."""
        return find_unused_faults(self.faults or {})

    @property
    def unreplaced_recordings_reason(self) -> str:
        """Reason why older recordings were not replaced, and where the new ones are; mostly empty."""
        told = self.replacement or {}
        if not told.get("why_not"):
            return ""
        kept = f"; what came is in cassette {told['cassette']}" if self.recorded else ""
        return f"its recording stays as it was: {told['why_not']}{kept}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        unused, further, keys = value.get("unused"), value.get("calls"), value.get("key_names")
        return cls(
            **cls.parse_fields(value), name=str(value.get("name", "")), cassette=str(value.get("cassette", "")),
            sample=int(value.get("sample") or 0), mode=str(value.get("mode", "")),
            arrived=int(value.get("arrived") or 0),
            unused=None if unused is None else tuple(
                UnusedRecording(
                    int(row.get("id") or 0), str(row.get("operation") or ""), row.get("model"), row.get("text")
                ) for row in unused
            ),
            overrides=value.get("overrides"), faults=value.get("faults"), live=value.get("live"),
            replacement=value.get("replacement"), key_names=None if keys is None else tuple(map(str, keys)),
            unfiled=str(value.get("unfiled") or ""),
            further=None if further is None else tuple(Call.from_json(each) for each in further),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in ("name", "cassette", "mode", "sample", "arrived")}
        unused = None if self.unused is None else [asdict(row) for row in self.unused]
        known = {name: getattr(self, name) for name in ("live", "faults", "replacement")}
        known["unfiled"] = self.unfiled or None
        told = {name: value for name, value in known.items() if value is not None}
        return {**about, **Totals.to_json(self), "unused": unused, "overrides": self.overrides, **told}


def find_unused_faults(faults: Mapping[str, Any]) -> tuple[str, ...]:
    rows = faults.get("faults") or ()
    return tuple(str(row["idle"]) for row in rows if row.get("idle") and row.get("probability", 1) == 1)


def explain_unreachable_provider(calls: Iterable[Call]) -> str:
    """Return which provider was unreachable and why, from calls in order; empty if none, or if a retry succeeded. Calls
    to an unreachable provider may have no key: any later answer of that provider counts as the retry's.
    """
    lost: dict[str, str] = {}
    for call in calls:
        if call.party not in (AGENT, ""):
            continue
        place = f"{call.provider} {call.operation}"
        asked = call.key or place
        lost.pop(asked, None)
        if call.unreached:
            lost[asked] = remove_program_prefix(call.note)
        else:
            lost.pop(place, None)
    return next(reversed(lost.values()), "")


LONGEST = 300
"""Maximum characters shown of a miss's first line."""
SHOWN = 5
_UNSEEN = late(r"[^\x20-\x7e\xa0-\U0010ffff]")


def sum_session_reports(reports: Iterable[SessionReport]) -> SessionReport:
    found = SessionReport("", "", unused=())
    for each in reports:
        found.merge(each)
        found.unused = (*(found.unused or ()), *(each.unused or ()))
    return found


def format_session_counts(report: SessionReport) -> str:
    """Return ``3 hits, 1 miss, 0 recorded; $0.0012 not spent``."""
    misses = format_count(report.misses, "miss", "misses")
    counts = [describe_replay_hits(report), misses, f"{report.recorded} recorded"]
    more = {
        "passed": report.passed,
        "refused": report.refused,
        "lost": report.failed,
        "served although recorded as failed": report.served_failures,
        "of equal requests, dealt as they came": report.dealt,
        "unused": len(report.unused or ()),
    }
    counts += [f"{number} {word}" for word, number in more.items() if number]
    counts += [format_count(report.injected, "injected fault")] if report.injected else []
    counts += filter(None, [describe_stubbed_calls(report)])
    costs = {"not spent": report.saved.cost, "spent": report.spent.cost}
    money = [f"{dollars(cost)} {word}" for word, cost in costs.items() if cost is not None]
    if report.unpriced and report.calls:
        money.append(f"{format_count(report.unpriced, 'call')} whose price or tokens are not known")
    return "; ".join(filter(None, [", ".join(counts), ", ".join(money)]))


def list_shortened_misses_with_counts(texts: Sequence[str], prefix: str = "  ") -> list[str]:
    firsts = Counter(map(shorten_miss, texts))
    lines = [f"{prefix}{text}" + (f" ({number} times)" if number > 1 else "") for text, number in firsts.items()]
    more = [f"{prefix}... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more


def shorten_miss(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    first = lines[0] if not lines[0].endswith(":") or len(lines) == 1 else f"{lines[0]} {lines[1].strip()}"
    shown = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", remove_program_prefix(first))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
