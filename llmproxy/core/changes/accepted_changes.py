"""Changes that somebody accepted, as they stand in a cassette's file, and what they cover.

    changes:
    - name: system-3f2a
      segment: system prompt
      difference: |
        - Be brief.
        + Be brief and kind.
      accepted: 2026-11-26
      until: 2027-01-31                                # optional: after this day it is a miss that says so
      when: {client: claude-code, since: 2.1.332}      # optional: of which client's requests
      exactly: [9f86d081884c7d65..60303ae22b998861]    # the segments as they were recorded, and as they are now

It covers a change only if both whole segments are among those that somebody saw: nothing is generalised, and nothing is
composed over time. The name and the difference are for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from itertools import chain
from typing import Any, NamedTuple, Self

from llmproxy.core.changes.change import Author, Change, ChangeOrigin, diff_hunks, digest_of
from llmproxy.core.providers.provider_table import Client
from llmproxy.core.traffic.interaction import Key

_CLIENTS_LINES = 6
"""Lines of a client's own change that stand in a file: nobody wrote them here, and there may be thousands."""
_NEW = "new"
"""Stands for the digest of a segment that is not there."""
_PAIR = re.compile(r"([0-9a-f]{16}|new)\.\.([0-9a-f]{16}|new)")
_MEMBERS = frozenset({"name", "segment", "difference", "accepted", "until", "when", "exactly"})


class BadChange(ValueError):
    """What a file says of an accepted change cannot be read."""


class Condition(NamedTuple):
    """Of which client's requests an accepted change holds."""

    client: str
    since: str = ""
    """The first version of it; empty: all."""

    def matches_client(self, client: Client | None) -> bool:
        if client is None or client_slug(client.name) != client_slug(self.client):
            return False
        return not self.since or _parse_version(client.version) >= _parse_version(self.since)


GONE = "gone"
"""Kind of a change: a recorded call that is no longer made."""


def build_call_removal(what: str, key: Key, origin: ChangeOrigin) -> Change:
    """Return the change that a recorded call is no longer made; `what` says which, for people."""
    return Change(GONE, f"call {what}", what, None, digest_lookup_key(key), "", diff_hunks(what, None), origin)


def digest_lookup_key(key: Key) -> str:
    return digest_of([str(key)])


def client_slug(name: str) -> str:
    """Return a client's name as it is typed: ``claude-code``."""
    return name.lower().replace(" ", "-")


def _parse_version(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


class AcceptedChange(NamedTuple):
    """A change that somebody accepted for one cassette."""

    name: str
    segment: str
    difference: str
    exactly: frozenset[tuple[str, str]]
    """Digests of the whole segments, as they were recorded and as they are now; empty for one that is not there."""
    accepted: date
    until: date | None = None
    """The last day on which it holds."""
    when: Condition | None = None

    def covers_change(self, change: Change, client: Client | None) -> bool:
        """Return whether a change of a client's request is this one; `has_expired` is another question."""
        return (
            change.name == self.name
            and change.segment == self.segment
            and change.digests in self.exactly
            and (self.when is None or self.when.matches_client(client))
        )

    def has_expired(self, today: date) -> bool:
        return self.until is not None and today > self.until

    def to_member(self) -> dict[str, Any]:
        """Return its form in a cassette's file, and (as JSON) in a store."""
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
        """Read that form. Raises BadChange."""
        if not isinstance(value, Mapping) or not value.keys() <= _MEMBERS:
            more = sorted(value.keys() - _MEMBERS) if isinstance(value, Mapping) else value
            raise BadChange(f"a change has {', '.join(sorted(_MEMBERS))}; not {more!r:.100}")
        texts = [value.get(name) for name in ("name", "segment", "difference")]
        if not all(isinstance(text, str) for text in texts):
            raise BadChange("name, segment and difference of a change are texts")
        pairs = [_PAIR.fullmatch(str(pair)) for pair in value.get("exactly") or ()]
        if not pairs or not all(pairs):
            raise BadChange(f"change {texts[0]}: `exactly` lists pairs of digests, 16 digits each: BEFORE..AFTER")
        exactly = frozenset((pair[1].replace(_NEW, ""), pair[2].replace(_NEW, "")) for pair in pairs if pair)
        day = _parse_day(value.get("accepted"))
        if day is None:
            raise BadChange(f"change {texts[0]}: it has no day on which it was accepted")
        name, segment, difference = map(str, texts)
        return cls(name, segment, difference, exactly, day, _parse_day(value.get("until")), _parse_condition(value))


def _parse_day(value: object) -> date | None:
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError as error:
        raise BadChange(f"{value!r:.40} is no day: 2026-11-26 is one") from error


def _parse_condition(value: Mapping[str, Any]) -> Condition | None:
    if (said := value.get("when")) is None:
        return None
    if not isinstance(said, Mapping) or not {"client"} <= said.keys() <= {"client", "since"}:
        raise BadChange("`when` names a client: {client: claude-code, since: 2.1.332}")
    return Condition(str(said["client"]), str(said.get("since") or ""))


def build_accepted_changes(
    changes: Iterable[Change], day: date, *, until: date | None = None, when: Condition | None = None
) -> list[AcceptedChange]:
    """Return changes that one cassette's trial saw as accepted ones, one of each name."""
    made = [
        AcceptedChange(each.name, each.segment, _shorten_difference(each), frozenset([each.digests]), day, until, when)
        for each in changes
    ]
    return merge_accepted(made)


def _shorten_difference(change: Change) -> str:
    """Return the difference that stands in a file: of what only a client can have written, its beginning."""
    lines = change.difference_text.split("\n")
    if change.origin.source is not Author.CLIENT or len(lines) <= _CLIENTS_LINES:
        return change.difference_text
    return "\n".join([*lines[:_CLIENTS_LINES], f"... {len(lines) - _CLIENTS_LINES} more lines"])


def merge_accepted(*lists: Iterable[AcceptedChange]) -> list[AcceptedChange]:
    """Return what is accepted in any list, all pairs of one end and condition together: neither makes others hold."""
    found: dict[tuple[object, ...], AcceptedChange] = {}
    for each in chain(*lists):
        which = (each.name, each.segment, each.until, each.when)
        known = found.setdefault(which, each)
        day = max(known.accepted, each.accepted)
        found[which] = known._replace(exactly=known.exactly | each.exactly, accepted=day)
    return list(found.values())
