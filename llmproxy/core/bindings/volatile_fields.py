"""Volatile fields: places in tools' results whose value is known to vary, and where they stand in a text or in JSON.

    {tool: exec_command, at: line, before: "Chunk ID: ", kind: hex, name: chunk}
    {tool: create_task, at: "$.id", kind: integer, name: task}

A volatile field is anchored by the tool, its arguments, and either the beginning of a line (`line`), any text before it
(`text`) or a JSON path (``$.items[*].id``; of lines of JSON inside a text likewise). In `before` and `arguments` stand
names for what is bound, ``{cwd}``, and ``{:kind}`` for what varies without being this volatile field, ``{:word}``, and
``{:row}`` for the columns of ``ls -l`` before a file's time; a brace that is meant is doubled.

A tool's name may end in ``*``, for all that begin so, and `after` is what stands right behind the value, as it is
written.

*Identity* volatile fields map one to one and are exchanged everywhere; *noise* volatile fields take any value of their
kind.

Volatile fields that ship with us: what coding agents themselves write into every result, derived from real pairs of
runs (scripts/lab/derive-volatile-fields).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from llmproxy.core.bindings.shell_listings import LISTED, ROW, build_padding_pattern
from llmproxy.core.bindings.value_forms import is_word_character
from llmproxy.errors import LLMProxyError
from llmproxy.files import DATA
from llmproxy.lazy_regex import late

LINE, TEXT = "line", "text"
SYSTEM = "<system>"
"""`tool` of a volatile field in system text, which nobody but the agent writes."""
BLOCK = "<block>"
"""`tool` of a volatile field in what an agent wrote around a user's words (`find_agent_written_spans`)."""
OUTSIDE = ""
"""`tool` of a volatile field that stands in no tool's result: such are accepted one by one only."""


class BadVolatileField(LLMProxyError):
    """A volatile field as written in a cassette cannot be one."""

    code = "llmproxy_slot"


class VolatileKind(NamedTuple):
    pattern: str
    identity: bool
    """Whether its values are exchanged unless the volatile field says otherwise."""
    accepted: bool = False
    """Whether ``learn --accept`` takes it without asking for each by name."""


_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[AaPp][Mm])?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
KINDS: Mapping[str, VolatileKind] = {
    "uuid": VolatileKind(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", identity=True, accepted=True),
    "hex": VolatileKind(r"[0-9a-fA-F]{4,128}", identity=True, accepted=True),
    "name": VolatileKind(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", identity=True),
    "person": VolatileKind(r"[^\s<>@:/]+(?: [^\s<>@:/]+){0,5}", identity=True),
    "word": VolatileKind(r"[^\s\"'<>]{1,200}", identity=True),
    "integer": VolatileKind(r"-?\d{1,20}", identity=True),
    "port": VolatileKind(r"\d{2,5}", identity=True),
    "decimal": VolatileKind(r"-?\d{1,20}(?:[.,]\d{1,12})?", identity=False),
    "count": VolatileKind(r"\d{1,20}", identity=False),
    "pid": VolatileKind(r"\d{1,10}", identity=False),
    "time": VolatileKind(
        rf"\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK}(?:\s?(?:Z|[+-]\d{{2}}:?\d{{2}}|UTC))?)?"
        rf"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?{_MONTH} {{1,2}}\d{{1,2}}(?: {{1,2}}(?:{_CLOCK}(?: "
        rf"(?:(?:[A-Z]{{2,5}}|[+-]\d{{2,4}}) )?\d{{4}})?|\d{{4}})(?: [+-]\d{{4}})?)?"
        rf"|{_CLOCK}|\d{{10}}(?:\.\d{{1,9}}|\d{{3}}(?:\d{{3}}){{0,2}})?",
        identity=False,
        accepted=True,
    ),
    "duration": VolatileKind(
        r"\d{1,12}(?:[.,]\d{1,12})?(?:\s?(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?))?",
        identity=False,
        accepted=True,
    ),
}
"""By name. Decimals, durations without a unit, seconds: numbers, told apart by who writes the volatile field."""

_OF_WORDS = frozenset({"person", "time", "duration"})
"""Kinds in which a space may stand."""
_ENDS = r"(?![^\W_])"
"""No letter or digit follows."""
_EXACT: Mapping[str, re.Pattern[str]] = {name: late(kind.pattern) for name, kind in KINDS.items()}
IN_TEXT: Mapping[str, re.Pattern[str]] = {name: late(f"(?:{kind.pattern}){_ENDS}") for name, kind in KINDS.items()}
"""By kind: its values where they stand in a text."""
_WILD = late(r"\{\{|\}\}|\{(:?)([A-Za-z_][\w.\[\]-]*)\}")
_PATH_STEP = late(r"\.([^.\[\]]+)|\[(\d+|\*)\]")


@dataclass(frozen=True, slots=True)
class VolatileField:
    name: str
    kind: str
    """A name of `KINDS`."""
    tool: str
    """Whose results, ``mcp__*``: all that begin so; `OUTSIDE`: a place in no result, which `before` alone finds."""
    at: str = LINE
    """`LINE`, `TEXT` or a JSON path from ``$`` on."""
    before: str = ""
    arguments: str = ""
    """The tool's arguments in canonical JSON, bound; empty for any."""
    noise: bool | None = None
    """Whether it takes any value of its kind without being exchanged; None for what its kind does."""
    after: str = ""
    """What must stand right behind it."""

    @property
    def tool_prefix(self) -> str:
        """How the names of its tools begin; empty where it is one tool's."""
        return self.tool[:-1] if self.tool.endswith("*") else ""

    @property
    def is_id(self) -> bool:
        """Whether its values map one to one and are exchanged."""
        return KINDS[self.kind].identity if self.noise is None else not self.noise

    def to_dict(self) -> dict[str, object]:
        """Return plain values, in the order in which people read them; what is as usual is left out."""
        written: dict[str, object] = {"name": self.name, "kind": self.kind, "tool": self.tool, "at": self.at}
        written |= {
            name: text
            for name, text in (("before", self.before), ("after", self.after), ("arguments", self.arguments))
            if text
        }
        return written if self.noise is None else {**written, "noise": self.noise}


def parse_volatile_field(value: object) -> VolatileField:
    """Return the volatile field that plain values, of YAML or the store, describe. Raises BadVolatileField: none."""
    if not isinstance(value, dict):
        raise BadVolatileField(f"llmproxy: a volatile field is a mapping with name, kind and tool; this is {value!r}.")
    known = {"name", "kind", "tool", "at", "before", "after", "arguments", "noise"}
    if unknown := sorted(map(str, value.keys() - known)):
        raise BadVolatileField(
            f"llmproxy: a volatile field has no {', '.join(unknown)}.", hint=f"It has: {', '.join(sorted(known))}."
        )
    texts = {name: value.get(name, LINE if name == "at" else "") for name in known - {"noise"}}
    if wrong := sorted(name for name, text in texts.items() if not isinstance(text, str)):
        raise BadVolatileField(f"llmproxy: `{wrong[0]}` of a volatile field is {texts[wrong[0]]!r}; it must be a text.")
    noise = value.get("noise")
    if noise is not None and not isinstance(noise, bool):
        raise BadVolatileField(f"llmproxy: `noise` of a volatile field is {noise!r}; it is true or false.")
    field = VolatileField(noise=noise, **texts)
    if not re.fullmatch(r"[A-Za-z_][\w.-]{0,99}", field.name):
        raise BadVolatileField(
            f"llmproxy: {field.name!r} cannot be the name of a volatile field.", hint="Letters, digits, `_ . -`."
        )
    if field.kind not in KINDS:
        raise BadVolatileField(
            f"llmproxy: volatile field {field.name} is of kind {field.kind!r}.", hint=f"There are: {', '.join(KINDS)}."
        )
    if field.at not in (LINE, TEXT) and not field.at.startswith("$"):
        raise BadVolatileField(
            f"llmproxy: volatile field {field.name} stands at {field.at!r}.",
            hint="`line`, `text`, or a JSON path from $ on.",
        )
    if field.at not in (LINE, TEXT) and (field.tool_prefix or field.after):
        raise BadVolatileField(
            f"llmproxy: volatile field {field.name} stands in JSON: it is of one tool, and nothing is `after` it."
        )
    if field.at == TEXT and not field.before:
        raise BadVolatileField(
            f"llmproxy: volatile field {field.name} stands anywhere in a text, so `before` must say behind what."
        )
    return field


class VolatileMatch(NamedTuple):
    """A volatile field's value in a text."""

    field: VolatileField
    start: int
    end: int
    value: str


def fits_kind(kind: str, value: str) -> bool:
    return _EXACT[kind].fullmatch(value) is not None


@lru_cache(512)
def _compile_anchor(field: VolatileField, names: tuple[tuple[str, tuple[str, ...]], ...]) -> re.Pattern[str]:
    """Compile a volatile field's value with its anchor; `names` says in which texts a name may stand there."""
    known = dict(names)
    parts: list[str] = []
    last = 0
    literally = build_padding_pattern if LISTED.match(field.before) else re.escape
    gave_back = False
    for wild in _WILD.finditer(field.before):
        parts.append(literally(field.before[last : wild.start()]))
        last = wild.end()
        if wild[0] in ("{{", "}}"):
            parts.append(re.escape(wild[0][0]))
        elif wild[1]:
            pattern = ROW if wild[2] == "row" else KINDS[wild[2]].pattern if wild[2] in KINDS else re.escape(wild[0])
            # One kind may give back what it took; of several, each for every end of the one before, the time would be a
            # power of the text.
            follows = field.before[wild.end() : wild.end() + 1]
            alone = wild[2] not in _OF_WORDS and follows != "" and not fits_kind("word", follows)
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
    """Return the longest part of a volatile field's anchor without a name or a kind: it certainly stands there."""
    literal = _WILD.split(field.before)[::3]
    if LISTED.match(field.before):  # its columns are padded freely
        literal = [part for each in literal for part in each.split(" ")]
    return max(literal, key=len, default="")


def may_occur(field: VolatileField, text: str) -> bool:
    """Return at little cost whether a volatile field's anchor may be in a text at all."""
    return _longest_literal_part(field) in text


Names = tuple[tuple[str, tuple[str, ...]], ...]
"""What each bound name may stand for in the text in which a volatile field is looked for."""


def find_field_values(field: VolatileField, text: str, names: Names) -> Iterator[VolatileMatch]:
    """Yield the volatile field's values in a text, in order. Only for volatile fields at `LINE` and `TEXT`."""
    for found in _compile_anchor(field, names).finditer(text):
        start, end = found.span("value")
        if start and not field.before and is_word_character(text[start - 1]):
            continue
        yield VolatileMatch(field, start, end, found["value"])


@lru_cache(512)
def _compile_path_pattern(path: str) -> Callable[[str], object]:
    steps = [rf"\.{re.escape(step[1])}" if step[1] else r"\[\d+\]" if step[2] == "*" else rf"\[{step[2]}\]"
             for step in _PATH_STEP.finditer(path)]  # fmt: skip
    return re.compile(r"\$" + "".join(steps)).fullmatch


def matches_path(slot_path: str, path: str) -> bool:
    """Return whether a JSON path is the one that a volatile field names; ``[*]`` stands for any index."""
    return _compile_path_pattern(slot_path)(path) is not None


@cache
def list_builtin() -> tuple[VolatileField, ...]:
    """Return the volatile fields of all agents; each is anchored by a tool and a text that only its agent has."""
    rows = json.loads((DATA / "volatile_fields.json").read_bytes())
    return tuple(parse_volatile_field(field) for row in rows for field in row["volatile"])
