"""The matcher of JSON Schema, which refuses schemas with parts that are not checked.

By the standard a validator ignores unknown keywords and formats, so ``requierd: [id]`` would hold for everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.matchers.compare import parse_json
from llmproxy.suite.matchers.json_equality import ABSENT, name_kind, parse_time, quote
from llmproxy.suite.matchers.match import Match, MatchKind, ValueToMatch, matcher
from llmproxy.suite.matchers.text import compile_pattern, is_pattern_found
from llmproxy.suite.matchers.variables import StepError

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_DURATION = r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)"
_SILENT = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description", "default", "examples",
     "$vocabulary", "$dynamicAnchor", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
     "contentSchema", "$recursiveAnchor", "nullable", "example", "discriminator", "xml", "externalDocs"}
)  # fmt: skip
"""Keywords of JSON Schema, and of OpenAPI, that refuse nothing."""
_BESIDE = frozenset({"then", "else", "minContains", "maxContains"})
"""Keywords that only modify others."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose members are schemas under user-defined names."""
_DATA = frozenset(
    {"const", "enum", "default", "examples", "example", "discriminator", "xml", "externalDocs", "$vocabulary"}
)
"""Keywords whose values are data, not schemas."""
_STEPS = 500_000
"""Maximum rule applications on parts of one value, some seconds; recursive definitions can need any number."""


def _check_full_match(text: str, rule: str) -> str:
    if not re.fullmatch(rule, text):
        raise ValueError(text)
    return text


def _require_date_time(text: str) -> None:
    if "T" not in text.upper() or parse_time(text.upper()) is None:
        raise ValueError(text)
    _check_full_match(text[-6:], r".*([Zz]|[+-]\d\d:\d\d)")


def _require_uri(text: str) -> None:
    _check_full_match(text, r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s<>\"{}|\\^`]+")
    urlsplit(text)


_FORMATS: dict[str, Callable[[str], object]] = {
    "date": lambda text: (_check_full_match(text, r"\d{4}-\d\d-\d\d"), date.fromisoformat(text)),
    "date-time": _require_date_time,
    "time": lambda text: (_check_full_match(text, r"\d\d:\d\d:\d\d.*([Zz]|[+-]\d\d:\d\d)"), time.fromisoformat(text)),
    "duration": lambda text: _check_full_match(text, _DURATION),
    "email": lambda text: _check_full_match(text, r"[^@\s]+@[^@\s]+"),
    "hostname": lambda text: _check_full_match(text, rf"(?!.{{254}}){_LABEL}(\.{_LABEL})*"),
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "uri": _require_uri,
    "uuid": lambda text: (_check_full_match(text, r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"), UUID(text)),
    "regex": compile_pattern,
}  # fmt: skip
"""Checked formats: each raises ValueError or StepError for an invalid text."""


def _choose_validator(schema: Mapping[str, Any]) -> Any:
    import jsonschema

    return jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)


def _explain_bad_schema(operand: object) -> str:
    if not isinstance(operand, dict):
        return f" takes a JSON Schema, not {name_kind(operand)}"
    import jsonschema

    if not isinstance(dialect := operand.get("$schema", ""), str):
        return f": this is no JSON Schema: at $.$schema {quote(dialect, 100)} is not of type 'string'"
    base = _choose_validator(operand)
    try:
        base.check_schema(operand)
    except jsonschema.SchemaError as error:
        return f": this is no JSON Schema: at {error.json_path} {error.message:.200}"
    says = frozenset(base.VALIDATORS)
    known = says | _SILENT | _BESIDE | (base.META_SCHEMA["properties"].keys() - {"dependencies"})
    if objection := next(_explain_unchecked_keywords(operand, known, "$"), ""):
        return f": {objection}"
    return "" if operand.keys() & says else ": this schema holds for every JSON, so it asserts nothing"


def _explain_unchecked_keywords(schema: object, known: frozenset[str], path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if str(key).startswith("x-"):
            continue
        if key not in known:
            near = suggest_name(str(key), known, listing=False)
            yield (
                f"at {path} there is `{key}`, which is no keyword of this draft of JSON Schema, so it would assert"
                f" nothing ({near or f'another draft: name it in `$schema`; a note: `x-{key}`'})"
            )
        if key == "format" and value not in _FORMATS:
            yield (
                f"at {path} the format {quote(value)} is none that is checked here ({', '.join(_FORMATS)}): write a "
                "`pattern`"
            )
        if key in _NAMED and isinstance(value, Mapping):
            for name, each in value.items():
                yield from _explain_unchecked_keywords(each, known, f"{path}.{key}.{name}")
        elif key not in _DATA:
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                yield from _explain_unchecked_keywords(
                    each, known, f"{path}.{key}" + (f"[{number}]" if isinstance(value, list) else "")
                )


class _PatternPropertyExpander:
    """Expands the patterns of `patternProperties` to the matching names of a value.

    jsonschema searches for them itself in several places, without a time limit. So each is searched for here in every
    name of the value, and the validator gets a pattern of just the matching names.
    """

    def __init__(self, value: object) -> None:
        self.names = dict.fromkeys(_walk_value_member_names(value))
        self.written: dict[str, str] = {}
        """Replacement pattern -> original pattern."""

    def expand(self, schema: object) -> object:
        """Return a schema with every name pattern replaced by its matching names. Raises StepError."""
        if isinstance(schema, list):
            return [self.expand(each) for each in schema]
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, object] = {}
        for key, value in schema.items():
            if key in _NAMED and isinstance(value, Mapping):
                rename = self._replace_pattern_by_names if key == "patternProperties" else str
                made[key] = {rename(name): self.expand(each) for name, each in value.items()}
            else:
                made[key] = value if key in _DATA else self.expand(value)
        return made

    def _replace_pattern_by_names(self, pattern: str) -> str:
        found = "|".join(re.escape(name) for name in self.names if is_pattern_found(pattern, name))
        made = f"(?#{len(self.written)})" + (rf"\A(?:{found})\Z" if found else "(?!)")
        self.written[made] = pattern
        return made

    def rewrite_error(self, message: str) -> str:
        for made, pattern in self.written.items():
            message = message.replace(repr(made), repr(pattern))
        return message


def _walk_value_member_names(value: object) -> Iterator[str]:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            yield from each
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)


def _limit_rule_steps(rules: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a validator's rules, which together are applied at most `most` times."""
    steps = count(1)

    def of(rule: Any) -> Any:
        def run(*asked: object) -> Iterator[Any]:
            if next(steps) > most:
                raise StepError(
                    f"the schema did not come to an end within {most:,} steps",
                    hint="definitions that name another one twice, level after level, cause this; write it without"
                    " them",
                )
            yield from rule(*asked) or ()

        return run

    return {name: of(rule) for name, rule in rules.items()}


@cache
def _build_format_checker() -> Any:
    import jsonschema

    def check(rule: Callable[[str], object]) -> Callable[[object], bool]:
        return lambda value: not isinstance(value, str) or (rule(value), True)[1]

    made = jsonschema.FormatChecker(formats=())
    made.checkers = {name: (check(rule), (ValueError, StepError)) for name, rule in _FORMATS.items()}
    return made


@matcher(
    "jsonSchema",
    schema={"type": "object"},
    help="JSON that keeps to this JSON Schema; a text is parsed first",
    objection=_explain_bad_schema,
    raw=True,
)
def match_json_schema(operand: dict[str, Any], seen: ValueToMatch) -> Match:
    """Parse, then validate; nothing is fetched, and patterns have a time limit."""
    import jsonschema
    from referencing import Registry

    try:
        value = parse_json(seen.actual)
    except (ValueError, RecursionError) as error:
        return Match(MatchKind.UNFIT, f"expected JSON, and this is none ({error}): {quote(seen.actual, 300)}")
    if value is ABSENT:
        return Match(MatchKind.UNFIT, "expected JSON, and there is no value")

    def pattern(_: object, wanted: str, instance: object, __: object) -> Any:
        if isinstance(instance, str) and not is_pattern_found(wanted, instance):
            yield jsonschema.ValidationError(f"{quote(instance)} does not match {wanted!r}")

    extend: Any = jsonschema.validators.extend
    base, names = _choose_validator(operand), _PatternPropertyExpander(value)
    made = extend(base, _limit_rule_steps({**base.VALIDATORS, "pattern": pattern}, _STEPS))
    checker = made(names.expand(operand), registry=Registry(), format_checker=_build_format_checker())
    errors = sorted(checker.iter_errors(value), key=lambda error: error.json_path)
    told = [f"at {error.json_path}: {names.rewrite_error(error.message):.200}" for error in errors[:5]]
    return Match.of(not errors, "; ".join(told))
