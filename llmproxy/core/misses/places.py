"""Where a missed request and its nearest recording differ, with as much of both values as a person reads: for the viewer.

`differences` shortens a value to one line. Here a text keeps what surrounds its first and last differing place, so that it can be compared
word by word; what is equal on both sides is counted, not kept, and so a prompt of megabytes costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmproxy.core.traffic.differences import ABSENT, common_prefix, common_suffix, raw, volatile

if TYPE_CHECKING:
    from llmproxy.core.keys.normalize import Canonical

MOST = 40
"""Places that are told."""
AROUND = 160
"""Equal characters that stay before and after what differs."""
LONGEST = 4000
"""Characters of one value."""

Told = dict[str, Any]
"""``{"path", "old", "new", "looks", "before", "after"}``; `old` or `new` is missing where there was none."""

_OUTSIDE = ("provider", "method", "operation", "model", "stream", "headers", "query")


def places(recorded: Canonical, wanted: Canonical) -> list[Told]:
    """Return where two canonical requests differ, the parts outside the body first."""
    found = [
        describe_place(name, _plain(old), _plain(new))
        for name in _OUTSIDE
        if (old := getattr(recorded, name)) != (new := getattr(wanted, name))
    ]
    if recorded.tree is not None and wanted.tree is not None:
        found += [describe_place(*each) for each in raw(recorded.tree, wanted.tree, MOST)]
    elif recorded.body != wanted.body:
        found.append(
            describe_place("body", *(each.body.decode("utf-8", "backslashreplace") for each in (recorded, wanted)))
        )
    return found[:MOST]


def describe_place(path: str, old: object, new: object) -> Told:
    """Return one place with both values, as far as they are read."""
    made: Told = {"path": path, "looks": volatile(old, new)}
    if isinstance(old, str) and isinstance(new, str):
        return made | _cut(old, new)
    return made | {
        side: value if len(repr(value)) <= LONGEST else f"{repr(value)[:LONGEST]}…"
        for side, value in (("old", old), ("new", new))
        if value is not ABSENT
    }


def _cut(old: str, new: str) -> Told:
    """Return two texts without most of what they begin and end with alike, and how much that was."""
    front = common_prefix(old, new)
    back = common_suffix(old, new, min(len(old), len(new)) - front)
    before, after = max(0, front - AROUND), max(0, back - AROUND)
    made = {side: text[before : len(text) - after][:LONGEST] for side, text in (("old", old), ("new", new))}
    return {**made, "before": before, "after": after}


def _plain(value: object) -> object:
    return [list(each) if isinstance(each, tuple) else each for each in value] if isinstance(value, tuple) else value
