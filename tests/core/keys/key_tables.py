"""The tables of docs/keys.md, made from the rules themselves: `uv run python -m tests.core.keys.key_tables` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from llmproxy.core.keys import head_rules
from llmproxy.core.keys.built_in_body_rules import SHAPES, KeyMemberRule, KeyObjectRules, MemberAction
from llmproxy.core.keys.equal_key_explanations import NULLS

PAGE = Path(__file__).resolve().parents[3] / "docs/keys.md"
BEGIN, END = "<!-- tables: made by tests/core/keys/key_tables.py -->\n", "<!-- /tables -->"
LEFT_OUT = (
    "In a known operation, none of these fields counts, and neither does a field in no list. In other requests, only the fields with a * "
    "do not count."
)
ORDER = (
    "In a known operation, the first rule that fits a field decides: a name in this list, [a name or prefix that does not "
    "count](#header-fields-that-do-not-count), a prefix that counts, a word that counts."
)
TWICE = (
    "`a…b` is the member `b` somewhere below `a`, at the places where the provider's API has it. A name can be in two rows, for two kinds "
    "of objects: in a tool call, `input…call_id` defines an id; in a tool's result, it refers to that id."
)


def tables() -> str:
    """Return all tables in Markdown: what counts of a request's head, what does not, what rules say of bodies."""
    parts = [
        "### Header fields that count",
        f"{ORDER} In other requests, these names count even if a prefix with a * fits.",
        f"Names: {_names(head_rules.KEYED)}.",
        f"Prefixes: {_names(head_rules.KEYED_PREFIXES)}.",
        f"Words, set off by `-` or `_`, which suggest that the field selects who or what answers: {_names(head_rules.WORDS)}.",
        "### Header fields that do not count",
        LEFT_OUT,
        _table(("field", "why"), _uncounted(head_rules.IGNORED, head_rules.ELSEWHERE)),
        "The same applies to fields with these prefixes:",
        _table(("begins with", "why"), _uncounted(head_rules.IGNORED_PREFIXES, head_rules.ELSEWHERE_PREFIXES)),
        "### Bodies",
        f"In JSON, {NULLS}. {TWICE}",
        _table(("members (of provider)", "what", "why"), _bodies()),
    ]
    return "\n\n".join(parts) + "\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _uncounted(known: Mapping[str, str], elsewhere: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names by reason; a star stands behind those that count at other services neither."""
    reasons: dict[str, list[str]] = {}
    for name, why in {**elsewhere, **known}.items():
        reasons.setdefault(why, []).append(f"`{name}`{'*' if name in elsewhere else ''}")
    return [(", ".join(names), why) for why, names in reasons.items()]


WHAT: dict[MemberAction, str] = {
    MemberAction.IGNORE: "does not count",
    MemberAction.STREAM: "counts as the stream flag",
    MemberAction.SPARE: "`[]` and `{}` count as absent",
    MemberAction.DECLARE: "an id inside the request: its links count, its text does not",
    MemberAction.OWN: "an id inside the request if the item has its content, else it refers to a server object",
    MemberAction.REFER: "refers to an id inside the request, or to a server object (counts as the recording that made it); any other text counts literally",
    MemberAction.FILE_URI: "the URI of an uploaded file refers to a server object",
    MemberAction.JSON: "the JSON value counts, its formatting does not",
    MemberAction.SIGNATURE: "does not count if the thinking text is present",
    MemberAction.SYSTEM: "counts, except the first block's line `x-anthropic-billing-header: ...`",
}
"""What each kind of rule does, but for those that only lead to others."""
_TYPE = re.compile(r"\(type=[^)]*\)")


class CountingRow(NamedTuple):
    operations: str
    members: str
    what: str
    why: str


def body_rows() -> list[CountingRow]:
    """Return every rule of every shape: in which operations of which dialect, at which members."""
    places: dict[tuple[MemberAction, str, str], dict[str, None]] = {}
    for (family, operation), shape in SHAPES.items():
        for path, rule in rules_of(shape):
            if rule.do in WHAT:
                member = _TYPE.sub("", path).replace("[*]", "").removeprefix("$.")
                places.setdefault((rule.do, rule.why, member), {})[f"{family} {operation}"] = None
    found: dict[tuple[str, MemberAction, str], list[str]] = {}
    for (do, why, member), names in places.items():
        found.setdefault((", ".join(names), do, why), []).append(f"`{member}`")
    return [CountingRow(names, ", ".join(members), WHAT[do], why) for (names, do, why), members in found.items()]


def rules_of(shape: KeyObjectRules, path: str = "$", seen: tuple[int, ...] = ()) -> Iterator[tuple[str, KeyMemberRule]]:
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


def _bodies() -> list[tuple[str, str, str]]:
    """Return the rules of bodies by what they do and why, each with its members and the providers that have them."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for row in body_rows():
        for member in re.findall(r"`([^`]+)`", row.members):
            first, *rest = member.split(".")
            short = f"{first}…{rest[-1]}" if rest else first
            providers = {operation.split()[0] for operation in row.operations.split(", ")}
            found.setdefault((row.what, row.why), {}).setdefault(short, set()).update(providers)
    lines = []
    for (what, why), members in found.items():
        together: dict[str, list[str]] = {}
        for member, providers in members.items():
            together.setdefault(", ".join(sorted(providers)), []).append(f"`{member}`")
        cells = (f"{', '.join(names)} ({providers})" for providers, names in together.items())
        lines.append(("; ".join(cells), what, why))
    return lines


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables() + rest[rest.index(END) :], "utf-8")
