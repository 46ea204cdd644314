"""A normalisation rule that would have made a miss a hit, proved before it is suggested.

    (recording, request) -> Suggestion: TOML to paste, how many differences it takes away

Only differences that look volatile get a rule. Each candidate (leave the member out, a named pack, a pattern) is
applied to copies of both trees and kept only if fewer differences are left; so what the miss advises is known to help.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmproxy.core.keys.scrub import PACKS, Rules, TextScrub, apply, compile_rules, substitute
from llmproxy.core.traffic.differences import common_prefix, count, is_one, raw, volatile
from llmproxy.errors import SettingsError

if TYPE_CHECKING:
    from llmproxy.core.keys.normalize import Canonical

_LARGEST = 1 << 20
"""Bytes of a canonical body above which nothing is tried out."""
_MOST = 200
"""Differences that are counted at most."""
_LOOKED_AT = 10
"""Differences that are looked at: with more, the requests are different ones."""
_TRIED = 4
"""Volatile differences for which a rule is looked for."""
_ROUNDS = 5
"""Kinds of volatile values in one text."""

_PACKS = {"date/time": ("days", "dates"), "uuid": ("uuids",), "temporary path": ("temp-paths",)}
# What `volatile` recognises, as patterns to paste: without apostrophes, since TOML's literal strings end there.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "date/time": (
        r"\d{4}-\d\d-\d\d([T ][\d:.]+(Z|[+-]\d\d:?\d\d)?)?",
        r"\b\d{1,2}:\d\d(:\d\d)?( ?[AaPp][Mm])?",
        r"([A-Z][a-z]+day, )?[A-Z][a-z]+ \d{1,2}, \d{4}",
        r"([A-Z][a-z]+day, )?\d{1,2} [A-Z][a-z]+ \d{4}",
        r"\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}\b",
        r"\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b",
    ),
    "uuid": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",),
    "temporary path": (r"/(private/)?(tmp|var/tmp|var/folders)/[^\s\"<>,;)]+",),
    "home or working folder": (r"/(home|Users|root|workspaces?|builds?|app|mnt)/[^\s\"<>,;)]+",),
    "tool-call id": (r"\b(call|toolu|tooluse|tool_call|fc|ctc|chatcmpl-tool)[_-][\w-]{6,}",),
    "object id": (r"\b(resp|msg|run|thread|conv|file|asst|vs|batch|chatcmpl|req|rs|ws|session)[_-][\w-]{8,}",),
    "port": (r"(localhost|127\.0\.0\.1):\d+",),
    "unix timestamp": (r"\b1\d{9}(\.\d+|\d{3}|\d{6}|\d{9})?\b",),
    "random id": (r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{12,}\b",),
}


_DAYS = frozenset({"days", "dates"})
"""Packs."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Rules that take differences away."""

    toml: str
    """For ``[tool.llmproxy.normalize]``, one line per member."""
    left: int
    """Differences that stay."""
    of_days: bool = False
    """Days or dates are among what the rules take away."""

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for the journal."""
        return {"toml": self.toml, "left": self.left}


def suggest(old: Canonical, new: Canonical) -> Suggestion | None:
    """Return rules for what looks volatile in the differences of two requests, or None if no rule helps."""
    if old.tree is None or new.tree is None or max(len(old.body), len(new.body)) > _LARGEST:
        return None
    rules, left, tried = Rules(), _count_left(old, new, Rules()), 0
    for path, before, after in raw(old.tree, new.tree, _LOOKED_AT):
        if tried == _TRIED or not volatile(before, after):
            continue
        tried += 1
        for candidate in _candidates(path, before, after):
            merged = _merge_rules(rules, candidate)
            now = _count_left(old, new, merged)
            if now < left:
                rules, left = merged, now
                break
    return Suggestion(_toml(rules), left, of_days=not _DAYS.isdisjoint(rules.packs)) if rules != Rules() else None


def _candidates(path: str, old: object, new: object) -> Iterator[Rules]:
    if is_one(str(old)) and is_one(str(new)):
        yield Rules(ignore=(re.sub(r"\[\d+\]", "[*]", path),))
    if isinstance(old, str) and isinstance(new, str):
        for packs in (_PACKS, {}):
            rules = _for_text(old, new, packs)
            if rules is not None:
                yield rules


def _for_text(old: str, new: str, packs: Mapping[str, tuple[str, ...]]) -> Rules | None:
    """Return rules that make two texts equal, with packs where they do it, or None."""
    rules = Rules()
    for _ in range(_ROUNDS):
        kind = volatile(old, new) or ""
        found = next(_progress(kind, old, new, packs), None)
        if found is None:
            return None
        rule, old, new = found
        rules = _merge_rules(rules, rule)
        if old == new:
            return rules
    return None


def _progress(kind: str, old: str, new: str, packs: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Rules, str, str]]:
    """Yield each rule for a kind after which less of the texts differs, with what it makes of them."""
    word = f"[{kind.split('/', maxsplit=1)[0].replace(' ', '-')}]"
    rules = [(Rules(packs=(pack,)), PACKS[pack]) for pack in packs.get(kind, ())]
    rules += [
        (Rules(scrub=(scrub,)), (scrub,)) for scrub in (TextScrub(each, word) for each in _PATTERNS.get(kind, ()))
    ]
    rest = len(old) - common_prefix(old, new)
    for rule, scrubs in rules:
        subs = tuple((re.compile(scrub.pattern), scrub.placeholder) for scrub in scrubs)
        left, right = substitute(old, subs), substitute(new, subs)
        if left == right or len(left) - common_prefix(left, right) < rest:
            yield rule, left, right


def _merge_rules(one: Rules, two: Rules) -> Rules:
    return Rules(
        tuple(dict.fromkeys(one.ignore + two.ignore)),
        tuple(dict.fromkeys(one.scrub + two.scrub)),
        tuple(dict.fromkeys(one.packs + two.packs)),
    )


def _count_left(old: Canonical, new: Canonical, rules: Rules) -> int:
    try:
        ready = compile_rules(rules)
    except SettingsError:  # a path that our rules cannot say
        return _MOST
    left, right = (apply(copy.deepcopy(canonical.tree), ready) for canonical in (old, new))
    return count(left, right, _MOST)


def _toml(rules: Rules) -> str:
    lines = []
    if rules.ignore:
        lines.append(f"ignore = {json.dumps(list(rules.ignore))}")
    if rules.scrub:
        rows = (
            f"{{ pattern = '{scrub.pattern}', placeholder = {json.dumps(scrub.placeholder)} }}" for scrub in rules.scrub
        )
        lines.append(f"scrub = [{', '.join(rows)}]")
    if rules.packs:
        lines.append(f"packs = {json.dumps(list(rules.packs))}")
    return "\n".join(lines)
