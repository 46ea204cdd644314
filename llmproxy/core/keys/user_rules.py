r"""The user's own rules: members to ignore, text to scrub, and named packs of predefined scrubs.

    [tool.llmproxy.normalize]
    ignore = ["$.metadata.run", "$..trace_id", "$.messages[*].name"]
    scrub = [{ pattern = "build \\d+", placeholder = "build N" }]
    packs = ["dates", "uuids"]

Paths: ``$`` the body, ``.name`` or ``['name']`` a member, ``.*`` every member, ``[2]`` ``[-1]`` ``[*]`` elements,
``..name`` that member at any depth. A placeholder may use groups (``\1``). All rules are opt-in: a date in a *user's*
message has meaning, so packs change only system and developer text, and the coding agents' pack changes only tags and
lines that those agents write themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from llmproxy.core.keys.built_in_body_rules import SYSTEM_ROLES, SYSTEM_TEXT, TURNS, VERSION
from llmproxy.did_you_mean import nearest_word
from llmproxy.errors import SettingsError
from llmproxy.settings import RequestNormalizationRules

WHERE = "[tool.llmproxy.normalize]"


@dataclass(frozen=True, slots=True)
class TextScrub:
    """A replacement of matches of `pattern` by `placeholder`, in system text or in every string of the body."""

    pattern: str
    placeholder: str
    where: Literal["system", "all"] = "all"


_ENVIRONMENT = r"(<environment_context>(?:(?!</environment_context>).)*?<%s>)[^<]*"
_ISO = r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z\b|[+-]\d\d:?\d\d\b))?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
_HOUR = r"(?:,?(?: at)? \d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp][Mm]\b)?)?"

PACKS: dict[str, tuple[TextScrub, ...]] = {
    "dates": (TextScrub(_ISO, "[date-time]", "system"),),
    "days": (
        TextScrub(rf"\b{_DAY}(?:\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}})\b{_HOUR}", "[day]", "system"),
        TextScrub(r"\b\d{4}-\d\d-\d\d\b(?!T)" + _HOUR, "[day]", "system"),
    ),
    "uuids": (TextScrub(r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "[uuid]", "system"),),
    "temp-paths": (
        TextScrub(r"(?:/private)?/var/folders/[\w+]+/[\w+]+/[A-Z]/[^\s\"'`<>:/]+", "[temp-path]", "system"),
        TextScrub(r"\bpytest-of-[\w.-]+/pytest-\d+", "[temp-path]", "system"),
        TextScrub(r"/(?:private/|var/)?tmp/tmp[\w-]{6,}", "[temp-path]", "system"),
        TextScrub(r"(?i)\b[A-Z]:\\Users\\[^\\\s]+\\AppData\\Local\\Temp\\tmp[\w-]{6,}", "[temp-path]", "system"),
    ),
    "coding-agents": (
        *(TextScrub("(?s)" + _ENVIRONMENT % tag, rf"\1[{tag}]", "all") for tag in ("cwd", "current_date", "timezone")),
        TextScrub(r"(?m)^((?:Primary )?[Ww]orking directory: ).*$", r"\1[cwd]", "system"),
        TextScrub(r"(?m)^(Today's date(?: is|:) ?).*$", r"\1[date]", "system"),
        TextScrub(r"(?m)^(OS Version: ).*$", r"\1[os]", "system"),
        TextScrub(r"(?s)(gitStatus: ).*?(?=\n</|\Z)", r"\1[git-status]", "system"),
    ),
}
"""Named packs. Patterns are narrow: a full date *and* time, a whole UUID, names that tempfile and pytest create."""


@dataclass(frozen=True)
class Rules:
    ignore: tuple[str, ...] = ()
    scrub: tuple[TextScrub, ...] = ()
    packs: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, said: RequestNormalizationRules) -> Rules:
        """Return the rules of the settings file. Raises SettingsError: an unknown pack, a bad path or pattern."""
        rules = cls(said.ignore, tuple(TextScrub(each.pattern, each.placeholder) for each in said.scrub), said.packs)
        compile_normalize_rules(rules)
        return rules

    @cached_property
    def rules_digest(self) -> str:
        """12 hex digits of these rules and of the version of the built-in rules."""
        text = json.dumps([VERSION, self.ignore, [[s.pattern, s.placeholder, s.where] for s in self.scrub], self.packs])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


Step = tuple[str, str | int]
"""("name", member) · ("deep", member) · ("index", n) · ("every", "")"""

_STEP = re.compile(
    r"""\.\.(?P<deep>[\w$-]+) | \.(?P<star>\*) | \.(?P<name>[\w$-]+) | \[(?P<index>-?\d+)\] | \[(?P<every>\*)\]
      | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class CompiledNormalizeRules:
    paths: tuple[tuple[Step, ...], ...]
    system: tuple[tuple[re.Pattern[str], str], ...]
    everywhere: tuple[tuple[re.Pattern[str], str], ...]
    is_empty: bool
    """Whether there are no rules, so that applying them can be skipped."""


def parse_json_path(path: str) -> tuple[Step, ...]:
    """Parse a JSON path of the dialect above. Raises SettingsError if it is invalid."""
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and at < len(path) and (match := _STEP.match(path, at)):
        at = match.end()
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "index":
            steps.append(("index", int(text)))
        else:
            steps.append((kind if kind == "deep" else "every" if kind in ("star", "every") else "name", text))
    if not steps or at < len(path):
        msg = f"{WHERE}: {path!r} is not a path that ignore understands"
        raise SettingsError(msg, hint="Write $.a.b, $.a[*].b, $.a[0], $.* or $..name")
    return tuple(steps)


@lru_cache(maxsize=64)
def compile_normalize_rules(rules: Rules) -> CompiledNormalizeRules:
    """Compile rules once. Raises SettingsError that names the invalid path or pattern."""
    system: list[tuple[re.Pattern[str], str]] = []
    everywhere: list[tuple[re.Pattern[str], str]] = []
    for name in rules.packs:
        if name not in PACKS:
            close = nearest_word(name, PACKS)
            hint = f"did you mean {close!r}?" if close else f"There are: {', '.join(PACKS)}"
            raise SettingsError(f"{WHERE}: there is no pack {name!r}", hint=hint)
    for scrub in (*(scrub for name in rules.packs for scrub in PACKS[name]), *rules.scrub):
        try:
            pattern = re.compile(scrub.pattern)
            pattern.sub(scrub.placeholder, "")  # parses the placeholder, whether or not anything matches
        except (re.error, IndexError) as error:
            raise SettingsError(f"{WHERE}: scrub {scrub.pattern!r} -> {scrub.placeholder!r}: {error}") from error
        (system if scrub.where == "system" else everywhere).append((pattern, scrub.placeholder))
    paths = tuple(parse_json_path(path) for path in rules.ignore)
    return CompiledNormalizeRules(paths, tuple(system), tuple(everywhere), is_empty=not (paths or system or everywhere))


def apply_normalize_rules(tree: object, rules: CompiledNormalizeRules) -> object:
    """Remove the ignored members from a JSON tree (in place) and scrub its text; returns the tree."""
    for path in rules.paths:
        _remove_path(tree, path)
    if rules.system and isinstance(tree, dict):
        for name in SYSTEM_TEXT:
            if name in tree:
                tree[name] = _scrub_strings(tree[name], rules.system, _OF_SYSTEM_TEXT)
        for name in TURNS:
            turns = tree.get(name)
            for turn in turns if isinstance(turns, list) else ():
                if isinstance(turn, dict) and turn.get("role") in SYSTEM_ROLES and "content" in turn:
                    turn["content"] = _scrub_strings(turn["content"], rules.system, _OF_SYSTEM_TEXT)
    return _scrub_strings(tree, rules.everywhere) if rules.everywhere else tree


def substitute_patterns(text: str, subs: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    for pattern, placeholder in subs:
        text = pattern.sub(placeholder, text)
    return text


_OF_SYSTEM_TEXT = ("text", "parts")
"""Members that hold the text of system text that is no string: ``{"parts": [...]}``, blocks with a ``text``."""


def _scrub_strings(
    node: object, subs: tuple[tuple[re.Pattern[str], str], ...], members: Sequence[str] | None = None
) -> object:
    """Scrub a string, or all strings of a tree; in objects only these `members`, None for all."""
    if isinstance(node, str):
        return substitute_patterns(node, subs)
    if isinstance(node, list):
        return [_scrub_strings(part, subs, members) for part in node]
    if isinstance(node, dict):
        return {
            name: value if members is not None and name not in members else _scrub_strings(value, subs, members)
            for name, value in node.items()
        }
    return node


def _remove_path(node: object, path: tuple[Step, ...]) -> None:
    (kind, what), rest = path[0], path[1:]
    if kind == "deep":
        for child in list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, list) else []:
            _remove_path(child, path)
    if isinstance(node, dict) and kind in ("name", "deep", "every"):
        for name in list(node) if kind == "every" else [str(what)] if what in node else []:
            if rest:
                _remove_path(node[name], rest)
            else:
                del node[name]
    elif isinstance(node, list) and kind in ("index", "every"):
        for index in range(len(node) - 1, -1, -1) if kind == "every" else [int(what)]:
            if not -len(node) <= index < len(node):
                continue
            if rest:
                _remove_path(node[index], rest)
            else:
                del node[index]
