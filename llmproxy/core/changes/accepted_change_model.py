"""Accepted changes, their form in a cassette's file, and the changes that they cover.

    changes:
    - name: system-3f2a
      segment: system prompt
      difference: |
        - Be brief.
        + Be brief and kind.
      accepted: 2026-11-26
      until: 2027-01-31                                # optional: after this day it is a miss with this reason
      when: {client: claude-code, since: 2.1.332}      # optional: only for requests of this client
      exactly: [9f86d081884c7d65..60303ae22b998861]    # digests of the segments, recorded and present

It covers a change only if both whole segments are listed: nothing is generalised, and later edits are not combined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from itertools import chain
from typing import Any, NamedTuple, Self

from llmproxy.core.changes.segment_change import ChangeCause, ChangeSource, SegmentChange, diff_hunks, digest_texts
from llmproxy.core.providers.provider_table import ClientProgram
from llmproxy.core.traffic.interaction import Key

_CLIENTS_LINES = 6
"""Maximum lines of a client's own change in a file: no user wrote them, and there may be thousands."""
_NEW = "new"
_PAIR = re.compile(r"([0-9a-f]{16}|new)\.\.([0-9a-f]{16}|new)")
_MEMBERS = frozenset({"name", "segment", "difference", "accepted", "until", "when", "exactly"})


class UnreadableAcceptedChange(ValueError):
    """An accepted change in a file that cannot be read."""


class ClientVersionCondition(NamedTuple):
    client: str
    since: str = ""
    """Its first version; empty for all."""

    def matches_client(self, client: ClientProgram | None) -> bool:
        if client is None or client_slug(client.name) != client_slug(self.client):
            return False
        return not self.since or _parse_version_numbers(client.version) >= _parse_version_numbers(self.since)


GONE = "gone"
"""Kind of change: the run no longer makes a recorded call."""


def build_change_for_removed_call(what: str, key: Key, origin: ChangeCause) -> SegmentChange:
    """Return the change that a recorded call is gone; `what` describes the call for people."""
    return SegmentChange(
        GONE, f"call {what}", what, None, digest_key_of_call_not_made(key), "", diff_hunks(what, None), origin
    )


def digest_key_of_call_not_made(key: Key) -> str:
    return digest_texts([str(key)])


def client_slug(name: str) -> str:
    """Return a client's name in the form for files and options: ``claude-code``."""
    return name.lower().replace(" ", "-")


def _parse_version_numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


class AcceptedChange(NamedTuple):
    name: str
    segment: str
    difference: str
    exactly: frozenset[tuple[str, str]]
    """Digests of the whole segments, recorded and present; empty for an absent one."""
    accepted: date
    until: date | None = None
    """The last day on which it applies."""
    when: ClientVersionCondition | None = None

    def covers_change(self, change: SegmentChange, client: ClientProgram | None) -> bool:
        return (
            change.name == self.name
            and change.segment == self.segment
            and change.digests in self.exactly
            and (self.when is None or self.when.matches_client(client))
        )

    def has_expired(self, today: date) -> bool:
        return self.until is not None and today > self.until

    def to_member(self) -> dict[str, Any]:
        said: dict[str, Any] = {"name": self.name, "segment": self.segment, "difference": self.difference}
        said["accepted"] = self.accepted.isoformat()
        if self.until is not None:
            said["until"] = self.until.isoformat()
        if self.when is not None:
            said["when"] = {"client": self.when.client} | ({"since": self.when.since} if self.when.since else {})
        said["exactly"] = [f"{before or _NEW}..{after or _NEW}" for before, after in sorted(self.exactly)]
        return said

    @classmethod
    def from_member(cls, value: object) -> Self:
        """Read the form of `to_member`. Raises UnreadableAcceptedChange."""
        if not isinstance(value, Mapping) or not value.keys() <= _MEMBERS:
            more = sorted(value.keys() - _MEMBERS) if isinstance(value, Mapping) else value
            raise UnreadableAcceptedChange(f"a change has {', '.join(sorted(_MEMBERS))}; not {more!r:.100}")
        texts = [value.get(name) for name in ("name", "segment", "difference")]
        if not all(isinstance(text, str) for text in texts):
            raise UnreadableAcceptedChange("name, segment and difference of a change are texts")
        pairs = [_PAIR.fullmatch(str(pair)) for pair in value.get("exactly") or ()]
        if not pairs or not all(pairs):
            raise UnreadableAcceptedChange(
                f"change {texts[0]}: `exactly` lists pairs of digests, 16 digits each: BEFORE..AFTER"
            )
        exactly = frozenset((pair[1].replace(_NEW, ""), pair[2].replace(_NEW, "")) for pair in pairs if pair)
        if (day := _parse_day(value.get("accepted"))) is None:
            raise UnreadableAcceptedChange(f"change {texts[0]}: it has no day on which it was accepted")
        name, segment, difference = map(str, texts)
        return cls(
            name, segment, difference, exactly, day, _parse_day(value.get("until")), _parse_version_condition(value)
        )


def _parse_day(value: object) -> date | None:
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError as error:
        raise UnreadableAcceptedChange(f"{value!r:.40} is no day: 2026-11-26 is one") from error


def _parse_version_condition(value: Mapping[str, Any]) -> ClientVersionCondition | None:
    if (said := value.get("when")) is None:
        return None
    if not isinstance(said, Mapping) or not {"client"} <= said.keys() <= {"client", "since"}:
        raise UnreadableAcceptedChange("`when` names a client: {client: claude-code, since: 2.1.332}")
    return ClientVersionCondition(str(said["client"]), str(said.get("since") or ""))


def build_accepted_changes(
    changes: Iterable[SegmentChange],
    day: date,
    *,
    until: date | None = None,
    when: ClientVersionCondition | None = None,
) -> list[AcceptedChange]:
    return merge_accepted_change_lists(
        AcceptedChange(each.name, each.segment, _shorten_difference(each), frozenset([each.digests]), day, until, when)
        for each in changes
    )


def _shorten_difference(change: SegmentChange) -> str:
    """Return the difference for a file; for a client's own change only its beginning."""
    lines = change.difference_text.split("\n")
    if change.origin.source is not ChangeSource.CLIENT or len(lines) <= _CLIENTS_LINES:
        return change.difference_text
    return "\n".join([*lines[:_CLIENTS_LINES], f"... {len(lines) - _CLIENTS_LINES} more lines"])


def merge_accepted_change_lists(*lists: Iterable[AcceptedChange]) -> list[AcceptedChange]:
    """Return the changes of all lists; merge the pairs of one name, end and condition, so neither extends the other."""
    found: dict[tuple[object, ...], AcceptedChange] = {}
    for each in chain(*lists):
        which = (each.name, each.segment, each.until, each.when)
        known = found.setdefault(which, each)
        found[which] = known._replace(exactly=known.exactly | each.exactly, accepted=max(known.accepted, each.accepted))
    return list(found.values())
