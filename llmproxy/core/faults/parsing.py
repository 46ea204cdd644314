"""Parser of fault settings: a file, a preset, `KIND` or `KIND@CALL` becomes rules; docs/faults.md has the format.

Parsing is strict, because a fault that silently does nothing tests nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.rules import ALWAYS, NUMBERS, TEXTS, FaultParameter, FaultRule, Faults
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SettingsError
from llmproxy.file_io import DATA, read_bounded_bytes
from llmproxy.lazy_regex import late
from llmproxy.protocol import Channel

PRESETS: Mapping[str, str] = {
    "flaky-network": "connections are reset, end in the middle, or start slowly",
    "rate-limited": "429 with retry-after, sometimes twice in a row",
    "overloaded": "529, 503 and 500, and error events in the middle of streams",
    "broken-stream": "streams that break inside an event, inside a character, or before their last event",
    "flaky-tools": "MCP servers that fail, answer late or go away",
    "odd-answers": "complete but bad answers: empty, truncated, refused, or with invalid tool calls",
}
"""Descriptions by name, in the order of display."""


def read_fault_preset_text(name: str) -> str:
    return (DATA / "faults" / f"{name}.yaml").read_text(encoding="utf-8")


Json = Any
"""Plain values of JSON and YAML."""

SWEEP = "sweep"
"""Setting that runs one fault at a time instead of a set of rules."""
CHANNELS = tuple(map(str, Channel))
TRANSPORTS = ("http", "websocket", "stdio", "tls")
MOST_RULES = 1000
MOST_TIMES = 1000
LARGEST = 1 << 20
_KIND_AT = late(r"(?P<kind>[^@\s]+)@(?P<call>[1-9][0-9]{0,8})")
_FILE_NAME = late(r"[/\\]|\.(ya?ml|json)$", re.IGNORECASE)
_ALL = "`llmproxy faults` lists the kinds and presets with an example each."


FAULTS = "faults"


class BadFaults(SettingsError):
    code = "llmproxy_faults"

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        """`where` names the setting, unless `message` does; `inner` is for callers that name the setting themselves."""
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.inner = message if where == FAULTS else self.message


def load_faults(asked: str, folder: Path, *, seed: int | None = None) -> Faults:
    """Return the faults of an option: a preset, a kind, ``KIND@CALL``, else a file. Raises BadFaults.

    `seed` overrides the file's own.
    """
    if asked == SWEEP:
        msg = "a sweep runs a command many times, with one fault each."
        raise BadFaults(msg, hint="llmproxy run --faults sweep -- COMMAND, or llmproxy test --faults sweep")
    if asked in PRESETS:
        found = read_faults(parse_faults_yaml_text_to_tree(read_fault_preset_text(asked), asked), name=asked)
    elif asked in KINDS or (_KIND_AT.fullmatch(asked) and not _FILE_NAME.search(asked)):
        found = Faults((_parse_rule(asked, asked),), name=asked)
    else:
        found = _load_faults_file(asked, folder)
    return found if seed is None else Faults(found.rules, seed, found.name)


def parse_session_faults(value: Json, folder: Path | None = None) -> Faults:
    """Return the faults of one session, test or scenario; a file is allowed only with a `folder`.

    Raises BadFaults, also for a kind that would affect other sessions too.
    """
    named = isinstance(value, str) and value in PRESETS
    found = load_faults(value, folder or Path()) if named or (isinstance(value, str) and folder) else read_faults(value)
    for rule in found.rules:
        if rule.kind.shared:
            msg = f"{rule.kind.name} closes the proxy's port to everybody, so it is none of one session's faults."
            raise BadFaults(msg, hint=f"Start a proxy for it: llmproxy run --faults {rule.kind.name} -- COMMAND")
    return found


def is_faults_file_path(value: Json) -> bool:
    return isinstance(value, str) and bool(_FILE_NAME.search(value))


def _load_faults_file(asked: str, folder: Path) -> Faults:
    path = folder / Path(asked).expanduser()
    if not _FILE_NAME.search(asked) and not path.is_file():
        near = did_you_mean(asked, [*PRESETS, *KINDS, SWEEP])
        raise BadFaults(f"{asked[:80]!r} is no preset, no kind and no file{near}", hint=_ALL, where=FAULTS)
    try:
        data = read_bounded_bytes(path, LARGEST)
    except OSError as error:
        raise BadFaults(f"cannot read {asked}: {error.strerror or error}", hint=_ALL, where=FAULTS) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFaults(f"{asked} is no text: byte {error.start} is not UTF-8.", where=FAULTS) from error
    found = read_faults(parse_faults_yaml_text_to_tree(text, asked), name=asked)
    if not found.rules:
        raise BadFaults(f"{asked} holds no rule, so no call would meet a fault.", hint=_ALL, where=FAULTS)
    return found


def parse_faults_yaml_text_to_tree(text: str, name: str) -> Json:
    """Parse YAML (or JSON, which is YAML). Raises BadFaults with line and column."""
    from llmproxy.yaml_reader import SuiteProblemsError, parse_single_yaml_document

    try:
        return parse_single_yaml_document(text, name, empty_hint="it holds a list of `faults`")
    except SuiteProblemsError as error:
        raise BadFaults(error.message, hint=_ALL, where=FAULTS) from error


def read_faults(value: Json, *, name: str = "") -> Faults:
    """Parse a whole set: ``{"seed": ..., "faults": [...]}``, a list of rules, or one rule. Raises BadFaults."""
    where = name or FAULTS
    if isinstance(value, str) or (isinstance(value, Mapping) and "kind" in value):
        value = [value]
    if isinstance(value, list):
        value = {"faults": value}
    if not isinstance(value, Mapping) or "faults" not in value:
        hint = f"A file is:\nfaults:\n  - kind: http-429\n    call: 2\n{_ALL}"
        raise BadFaults(f"no list of `faults`, but {_format_value(value)}", hint=hint, where=where)
    _check_members(value, ("seed", "faults"), where)
    if not isinstance(rows := value["faults"], list):
        raise BadFaults(f"`faults` is {_format_value(rows)}; it is a list of rules.", where=where)
    if len(rows) > MOST_RULES:
        raise BadFaults(f"{len(rows)} rules; at most {MOST_RULES} are read.", where=where)
    rules = tuple(_parse_rule(row, f"{where}, rule {number}") for number, row in enumerate(rows, 1))
    return Faults(rules, require_integer_fault_seed(value.get("seed", 0), where), name)


def require_integer_fault_seed(value: Json, where: str = FAULTS) -> int:
    """Parse a seed. Raises BadFaults."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise BadFaults(f"seed is {_format_value(value)}; it is a whole number.", where=where)
    return value


def _parse_rule(row: Json, where: str) -> FaultRule:
    if isinstance(row, str):
        at = _KIND_AT.fullmatch(row)
        row = {"kind": row} if at is None else {"kind": at["kind"], "call": int(at["call"])}
    if not isinstance(row, Mapping) or "kind" not in row:
        raise BadFaults(f"{_format_value(row)} names no `kind` of fault.", hint=_ALL, where=where)
    if not isinstance(name := row["kind"], str) or name not in KINDS:
        near = did_you_mean(name, KINDS) if isinstance(name, str) else ""
        raise BadFaults(f"there is no kind {_format_value(name)} of fault{near}", hint=_ALL, where=where)
    kind = KINDS[name]
    own = [each.name for each in kind.takes]
    _check_members(row, ("kind", *own, *NUMBERS, *TEXTS, "probability", "times"), f"{where} ({kind.name})")
    rule = FaultRule(
        kind=kind,
        values={each.name: _parse_number(row.get(each.name, each.default), each, where) for each in kind.takes},
        probability=_parse_number(row.get("probability", 1.0), _PROBABILITY, where),
        times=_parse_times(row.get("times", 1), where),
        numbers={name: frozenset(_parse_filter(row.get(name), name, where, *_NUMBER_FILTER)) for name in NUMBERS},
        texts={name: tuple(_parse_filter(row.get(name), name, where, *_TEXT_FILTER)) for name in TEXTS},
    )
    _check_channels_and_providers(rule, where)
    return rule


def _check_members(row: Mapping[str, Json], names: Sequence[str], where: str) -> None:
    for name in row:
        if name not in names:
            near = did_you_mean(str(name), names)
            hint = f"It has: {', '.join(names)}"
            raise BadFaults(f"unknown member {_format_value(name)}{near}", hint=hint, where=where)


_PROBABILITY = FaultParameter("probability", 1, "", 0, 1)


def _parse_number(value: Json, wanted: FaultParameter, where: str) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and wanted.low <= value <= wanted.high
    if not good or (wanted.whole and value != int(value)):
        kind = "a whole number" if wanted.whole else "a number"
        said = f"{wanted.name} is {_format_value(value)}; it is {kind} from {wanted.low:g} to {wanted.high:.10g}."
        raise BadFaults(f"{where}: {said}")
    return float(value)


def _parse_times(value: Json, where: str) -> int:
    if value == "always":
        return ALWAYS
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TIMES:
        said = f"times is {_format_value(value)}; it is a whole number from 1 to {MOST_TIMES}, or always."
        raise BadFaults(said, where=where)
    return value


_NUMBER_FILTER = ("a number from 1", lambda each: isinstance(each, int) and not isinstance(each, bool) and each >= 1)
_TEXT_FILTER = ("a text such as gpt-4*", lambda each: isinstance(each, str) and each)


def _parse_filter(value: Json, name: str, where: str, what: str, is_valid: Callable[[Json], object]) -> list[Json]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    for each in values:
        if not is_valid(each):
            raise BadFaults(f"{name} is {_format_value(each)}; it is {what}, or a list of such.", where=where)
    return values


def _check_channels_and_providers(rule: FaultRule, where: str) -> None:
    """Refuse names that no call can have, where all names are known. Custom providers are not known."""
    kind = rule.kind
    for word, known, met in (("channel", CHANNELS, kind.channels), ("transport", TRANSPORTS, kind.transports)):
        for each in rule.texts[word]:
            if each not in known:
                near = did_you_mean(each, known)
                if word == "channel" and each in TRANSPORTS:
                    near = f"; did you mean transport: {each}?"
                hint = f"There is: {', '.join(known)}"
                raise BadFaults(f"{where}: there is no {word} {each[:40]!r}{near}", hint=hint)
        if rule.texts[word] and not set(rule.texts[word]) & set(met):
            raise BadFaults(
                f"{where}: {kind.name} meets no call whose {word} is {' or '.join(rule.texts[word])},"
                f" only {' and '.join(met)}."
            )
    for each in rule.texts["provider"]:
        if each not in PROVIDERS and (near := did_you_mean(each, PROVIDERS)) and "*" not in each:
            hint = f"There is: {', '.join(PROVIDERS)}"
            raise BadFaults(f"{where}: there is no provider {each[:40]!r}{near}", hint=hint)


def _format_value(value: Json) -> str:
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else "nothing" if value is None else repr(value)[:60]
