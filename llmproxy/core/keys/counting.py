"""The rules of the key, written down for people: what does not count, where, and why. `docs/keys.md` holds these tables, tests compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from llmproxy.core.keys import fields
from llmproxy.core.keys.rules import SHAPES
from llmproxy.core.keys.shapes import Do, Rule, Shape

WHAT: dict[Do, str] = {
    Do.IGNORE: "does not count",
    Do.STREAM: "`true`, `false` and absent: counts as the stream flag",
    Do.SPARE: "`[]` and `{}` are as if absent",
    Do.DECLARE: "a name inside the request: which things it ties together counts, the name does not",
    Do.OWN: "as such a name where the item brings its content along, else as an id of the server",
    Do.REFER: "an id of the server: counts as the recording that made it; unknown ones as they are",
    Do.FILE_URI: "the URI of an uploaded file: as such an id",
    Do.JSON: "the JSON inside counts, not how it is written",
    Do.SIGNATURE: "does not count beside the thinking that it signs",
    Do.SYSTEM: "less Claude Code's billing header",
}
"""What each kind of rule does, but for those that only lead to others."""
_TYPE = re.compile(r"\(type=[^)]*\)")
NULLS = "members that are `null` are as if absent, in every object named below; in tool schemas, inputs and results they count"


class CountingRow(NamedTuple):
    """One rule, wherever it stands."""

    operations: str
    members: str
    what: str
    why: str


def body_rows() -> list[CountingRow]:
    """Return every rule of every shape: in which operations of which dialect, at which members."""
    places: dict[tuple[Do, str, str], dict[str, None]] = {}
    for (family, operation), shape in SHAPES.items():
        for path, rule in rules_of(shape):
            if rule.do in WHAT:
                member = _TYPE.sub("", path).replace("[*]", "").removeprefix("$.")
                places.setdefault((rule.do, rule.why, member), {})[f"{family} {operation}"] = None
    found: dict[tuple[str, Do, str], list[str]] = {}
    for (do, why, member), names in places.items():
        found.setdefault((", ".join(names), do, why), []).append(f"`{member}`")
    return [CountingRow(names, ", ".join(members), WHAT[do], why) for (names, do, why), members in found.items()]


def rules_of(shape: Shape, path: str = "$", seen: tuple[int, ...] = ()) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of a shape with their paths; a shape inside itself only once."""
    if id(shape) in seen:
        return
    for name, rule in shape.members.items():
        yield f"{path}.{name}", rule
        if rule.into is not None:
            yield from rules_of(rule.into, f"{path}.{name}[*]", (*seen, id(shape)))
    for kind, inner in shape.kinds.items():
        for below, rule in rules_of(inner, f"{path}(type={kind})", (*seen, id(shape))):
            yield below, rule


def tables() -> str:
    """Return the tables of `docs/keys.md`, in Markdown."""
    parts = [
        "### Header fields that count everywhere", _table(("field", "why"), _pairs(fields.KEYED)),
        "### Names of header fields that begin so count everywhere", _table(("begins with", "why"), _pairs(fields.KEYED_PREFIXES)),
        f"So does a field with a word in its name that says what it chooses (`{_words()}`): {fields.KEYED_WORDS_WHY}.",
        "### Header fields that count nowhere", _table(("field", "why"), _group_reasons(fields.IGNORED)),
        "### Names of header fields that begin so count nowhere", _table(("begins with", "why"), _group_reasons(fields.IGNORED_PREFIXES)),
        "### Bodies", f"In JSON {NULLS}.",
        _table(("operations", "members", "what", "why"), [tuple(row) for row in body_rows()]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _words() -> str:
    return "`, `".join(fields.WORDS)


def _pairs(table: dict[str, str]) -> list[tuple[str, ...]]:
    return [(f"`{name}`", why) for name, why in table.items()]


def _group_reasons(table: dict[str, str]) -> list[tuple[str, ...]]:
    reasons: dict[str, list[str]] = {}
    for name, why in table.items():
        reasons.setdefault(why, []).append(f"`{name}`")
    return [(", ".join(names), why) for why, names in reasons.items()]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
