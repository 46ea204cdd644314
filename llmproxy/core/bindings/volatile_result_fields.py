"""Volatile fields: places in tools' results whose value is known to vary, and their values in a text or in JSON.

    {tool: exec_command, at: line, before: "Chunk ID: ", kind: hex, name: chunk}
    {tool: create_task, at: "$.id", kind: integer, name: task}

In `before` and `arguments`, ``{cwd}`` is a bound name, ``{:kind}`` any value of a kind, ``{:row}`` the columns of ``ls
-l`` before a file's time; a literal brace is doubled. *Identity* fields map one to one and are replaced everywhere;
*noise* fields accept any value of their kind. Built-in ones are derived from real pairs of runs
(scripts/lab/derive-volatile-fields).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from llmproxy.core.bindings.text_alignment import LISTED, ROW, build_any_spacing_pattern
from llmproxy.core.bindings.value_forms import is_letter_or_digit
from llmproxy.errors import LLMProxyError
from llmproxy.file_io import DATA
from llmproxy.lazy_regex import late

LINE, TEXT = "line", "text"
SYSTEM = "<system>"
"""`tool` of a volatile field in system text, which only the agent writes."""
BLOCK = "<block>"
"""`tool` of a volatile field in an agent's text around a user's words (`find_system_reminder_spans`)."""
OUTSIDE = ""
"""`tool` of a volatile field outside of all tool results: such fields are accepted only one by one."""


class BadVolatileField(LLMProxyError):
    code = "llmproxy_slot"


class VolatileKindDefinition(NamedTuple):
    pattern: str
    identity: bool
    """Whether its values are replaced unless the volatile field says otherwise."""
    accepted: bool = False
    """Whether ``learn --accept`` accepts it without a confirmation by name."""


_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[AaPp][Mm])?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
KINDS: Mapping[str, VolatileKindDefinition] = {
    "uuid": VolatileKindDefinition(
        r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", identity=True, accepted=True
    ),
    "hex": VolatileKindDefinition(r"[0-9a-fA-F]{4,128}", identity=True, accepted=True),
    "name": VolatileKindDefinition(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", identity=True),
    "person": VolatileKindDefinition(r"[^\s<>@:/]+(?: [^\s<>@:/]+){0,5}", identity=True),
    "word": VolatileKindDefinition(r"[^\s\"'<>]{1,200}", identity=True),
    "integer": VolatileKindDefinition(r"-?\d{1,20}", identity=True),
    "port": VolatileKindDefinition(r"\d{2,5}", identity=True),
    "decimal": VolatileKindDefinition(r"-?\d{1,20}(?:[.,]\d{1,12})?", identity=False),
    "count": VolatileKindDefinition(r"\d{1,20}", identity=False),
    "pid": VolatileKindDefinition(r"\d{1,10}", identity=False),
    "time": VolatileKindDefinition(
        rf"\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK}(?:\s?(?:Z|[+-]\d{{2}}:?\d{{2}}|UTC))?)?"
        rf"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?{_MONTH} {{1,2}}\d{{1,2}}(?: {{1,2}}(?:{_CLOCK}(?: "
        rf"(?:(?:[A-Z]{{2,5}}|[+-]\d{{2,4}}) )?\d{{4}})?|\d{{4}})(?: [+-]\d{{4}})?)?"
        rf"|{_CLOCK}|\d{{10}}(?:\.\d{{1,9}}|\d{{3}}(?:\d{{3}}){{0,2}})?",
        identity=False,
        accepted=True,
    ),
    "duration": VolatileKindDefinition(
        r"\d{1,12}(?:[.,]\d{1,12})?(?:\s?(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?))?",
        identity=False,
        accepted=True,
    ),
}
"""Kinds by name. Some patterns overlap (numbers): the creator of a volatile field chooses the kind."""

_OF_WORDS = frozenset({"person", "time", "duration"})
_ENDS = r"(?![^\W_])"
_EXACT: Mapping[str, re.Pattern[str]] = {name: late(kind.pattern) for name, kind in KINDS.items()}
IN_TEXT: Mapping[str, re.Pattern[str]] = {name: late(f"(?:{kind.pattern}){_ENDS}") for name, kind in KINDS.items()}
_WILD = late(r"\{\{|\}\}|\{(:?)([A-Za-z_][\w.\[\]-]*)\}")
_PATH_STEP = late(r"\.([^.\[\]]+)|\[(\d+|\*)\]")


@dataclass(frozen=True, slots=True)
class VolatileField:
    name: str
    kind: str
    tool: str
    """The tool of the results; ``mcp__*``: all with that prefix; `OUTSIDE`: no result, found by `before` alone."""
    at: str = LINE
    """`LINE`, `TEXT` or a JSON path from ``$``."""
    before: str = ""
    arguments: str = ""
    """The tool's arguments in canonical JSON with bound names; empty for any."""
    noise: bool | None = None
    """Whether it accepts any value of its kind without replacement; None for the kind's default."""
    after: str = ""

    @property
    def tool_name_prefix(self) -> str:
        """Common prefix of its tools' names; empty if it is one tool's."""
        return self.tool[:-1] if self.tool.endswith("*") else ""

    @property
    def is_outside_of_results(self) -> bool:
        return self.tool in (BLOCK, OUTSIDE, SYSTEM)

    @property
    def is_id(self) -> bool:
        """Whether its values map one to one and are replaced."""
        return KINDS[self.kind].identity if self.noise is None else not self.noise

    def to_dict(self) -> dict[str, object]:
        """Return plain values in reading order; default values are left out."""
        written: dict[str, object] = {"name": self.name, "kind": self.kind, "tool": self.tool, "at": self.at}
        written |= {name: text for name in ("before", "after", "arguments") if (text := getattr(self, name))}
        return written if self.noise is None else {**written, "noise": self.noise}


def parse_volatile_field(value: object) -> VolatileField:
    """Return the volatile field of plain values from YAML or the store. Raises BadVolatileField."""
    if not isinstance(value, dict):
        raise BadVolatileField(f"llmproxy: a volatile field is a mapping with name, kind and tool; this is {value!r}.")
    known = {"name", "kind", "tool", "at", "before", "after", "arguments", "noise"}
    if unknown := sorted(map(str, value.keys() - known)):
        msg = f"llmproxy: a volatile field has no {', '.join(unknown)}."
        raise BadVolatileField(msg, hint=f"It has: {', '.join(sorted(known))}.")
    texts = {name: value.get(name, LINE if name == "at" else "") for name in known - {"noise"}}
    if wrong := sorted(name for name, text in texts.items() if not isinstance(text, str)):
        raise BadVolatileField(f"llmproxy: `{wrong[0]}` of a volatile field is {texts[wrong[0]]!r}; it must be a text.")
    if (noise := value.get("noise")) is not None and not isinstance(noise, bool):
        raise BadVolatileField(f"llmproxy: `noise` of a volatile field is {noise!r}; it is true or false.")
    field = VolatileField(noise=noise, **texts)
    if not re.fullmatch(r"[A-Za-z_][\w.-]{0,99}", field.name):
        msg = f"llmproxy: {field.name!r} cannot be the name of a volatile field."
        raise BadVolatileField(msg, hint="Letters, digits, `_ . -`.")
    this = f"llmproxy: volatile field {field.name}"
    if field.kind not in KINDS:
        raise BadVolatileField(f"{this} is of kind {field.kind!r}.", hint=f"There are: {', '.join(KINDS)}.")
    if field.at not in (LINE, TEXT) and not field.at.startswith("$"):
        raise BadVolatileField(f"{this} stands at {field.at!r}.", hint="`line`, `text`, or a JSON path from $ on.")
    if field.at not in (LINE, TEXT) and (field.tool_name_prefix or field.after):
        raise BadVolatileField(f"{this} stands in JSON: it is of one tool, and nothing is `after` it.")
    if field.at == TEXT and not field.before:
        raise BadVolatileField(f"{this} stands anywhere in a text, so `before` must say behind what.")
    return field


class VolatileFieldTextMatch(NamedTuple):
    field: VolatileField
    start: int
    end: int
    value: str


def matches_field_kind(kind: str, value: str) -> bool:
    return _EXACT[kind].fullmatch(value) is not None


@lru_cache(512)
def _compile_anchor(field: VolatileField, names: tuple[tuple[str, tuple[str, ...]], ...]) -> re.Pattern[str]:
    """Compile the pattern of a volatile field's anchor and value; `names` gives the possible texts of each name."""
    known = dict(names)
    parts: list[str] = []
    last = 0
    literally = build_any_spacing_pattern if LISTED.match(field.before) else re.escape
    gave_back = False
    for wild in _WILD.finditer(field.before):
        parts.append(literally(field.before[last : wild.start()]))
        last = wild.end()
        if wild[0] in ("{{", "}}"):
            parts.append(re.escape(wild[0][0]))
        elif wild[1]:
            pattern = ROW if wild[2] == "row" else KINDS[wild[2]].pattern if wild[2] in KINDS else re.escape(wild[0])
            # Only one kind may backtrack: if several did, each for every end of the one before, the time would grow
            # as a power of the text's length.
            follows = field.before[wild.end() : wild.end() + 1]
            alone = wild[2] not in _OF_WORDS and follows != "" and not matches_field_kind("word", follows)
            parts.append(f"(?>{pattern})" if alone or gave_back else f"(?:{pattern})")
            gave_back = gave_back or not alone
        else:
            texts = known.get(wild[2], (wild[0],))
            parts.append(f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})")
    parts.append(literally(field.before[last:]))
    head = "^" if field.at == LINE else ""
    tail = f"(?={re.escape(field.after)})" if field.after else ""
    value = KINDS[field.kind].pattern
    return re.compile(rf"{head}(?P<before>{''.join(parts)})(?P<value>{value}){_ENDS}{tail}", re.MULTILINE)


@lru_cache(512)
def _longest_literal_part(field: VolatileField) -> str:
    """Return the longest part of a volatile field's anchor without a name or a kind: every match contains it."""
    literal = _WILD.split(field.before)[::3]
    if LISTED.match(field.before):  # its columns may have any padding
        literal = [part for each in literal for part in each.split(" ")]
    return max(literal, key=len, default="")


def can_text_contain_volatile_field(field: VolatileField, text: str) -> bool:
    return _longest_literal_part(field) in text


Names = tuple[tuple[str, tuple[str, ...]], ...]
"""Possible values of each bound name in a searched text."""


def find_volatile_values_after_anchor(
    field: VolatileField, text: str, names: Names
) -> Iterator[VolatileFieldTextMatch]:
    """Yield a volatile field's values in a text, in order; only for fields at `LINE` and `TEXT`."""
    for found in _compile_anchor(field, names).finditer(text):
        start, end = found.span("value")
        if start and not field.before and is_letter_or_digit(text[start - 1]):
            continue
        yield VolatileFieldTextMatch(field, start, end, found["value"])


@lru_cache(512)
def _compile_path_pattern(path: str) -> Callable[[str], object]:
    steps = [rf"\.{re.escape(step[1])}" if step[1] else r"\[\d+\]" if step[2] == "*" else rf"\[{step[2]}\]"
             for step in _PATH_STEP.finditer(path)]  # fmt: skip
    return re.compile(r"\$" + "".join(steps)).fullmatch


def matches_volatile_field_path(slot_path: str, path: str) -> bool:
    """Return whether a JSON path matches a volatile field's path; ``[*]`` matches any index."""
    return _compile_path_pattern(slot_path)(path) is not None


@cache
def load_builtin_volatile_fields() -> tuple[VolatileField, ...]:
    """Return the built-in volatile fields of all agents; a tool and a text that only its agent writes anchor each."""
    rows = json.loads((DATA / "volatile_fields.json").read_bytes())
    return tuple(parse_volatile_field(field) for row in rows for field in row["volatile"])
