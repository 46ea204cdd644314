"""Matchers of texts and collections: contains, notContains, containsAny, regex; and of JSON by a schema.

By the standard a validator ignores unknown keywords and formats of a JSON Schema, so ``requierd: [id]`` would hold for
everything: a schema with parts that are not checked is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from functools import cache, lru_cache, partial
from ipaddress import IPv4Address, IPv6Address
from itertools import count
from numbers import Number
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from llmproxy.advice import build_install_command
from llmproxy.did_you_mean import suggest_name
from llmproxy.errors import MachineError
from llmproxy.suite.matchers.compare import parse_actual_value_as_json
from llmproxy.suite.matchers.registry import (
    ABSENT,
    Match,
    MatcherOutcomeKind,
    ValueToCheck,
    are_json_equal,
    get_type_name,
    parse_iso_date_or_time,
    quote,
    register_matcher,
    to_json,
    to_nfc,
)
from llmproxy.suite.matchers.variable_references import StepError
from llmproxy.trace.assertions import DISJOINT_TEXTS

SECONDS = 1.0
"""Time limit for one search of a pattern; afterwards the result is unknown."""
_FLAGS = {"i": "IGNORECASE", "m": "MULTILINE", "s": "DOTALL", "x": "VERBOSE"}
_LONGEST = 20_000

_WORD = {"type": ["string", "number"], "minLength": 1}
_WORDS = {
    "anyOf": [_WORD, {"$ref": "#/$defs/Ref"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Json"}}]
}
_PATTERNS = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]
}
_LOOKING = {
    "contains": "a text has this part, a list this member, an object this key; of a list: all",
    "containsAny": "as contains; of a list: at least one",
    "notContains": "the opposite of contains; of a list: none of them",
}
_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""Escapes and character sets, in which a dollar sign is literal."""
_NAME_IN_PATTERN = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_][^}]*\})")
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


def _to_list(operand: object) -> list[Any]:
    return operand if isinstance(operand, list) else [operand]


def _explain_invalid_search_texts(operand: object) -> str:
    """Refuse invalid search texts; an empty text is in every text, so it would assert nothing."""
    if isinstance(operand, list) and not operand:
        return ": an empty list asserts nothing"
    for each in _to_list(operand):
        if each == "":
            return ": an empty text is in every text, so it asserts nothing"
        if each is None or (isinstance(each, Mapping) and not isinstance(operand, list) and each.keys() != {"ref"}):
            return f" takes a text, a number or a list of them, not {get_type_name(each)}"
    return ""


def _contains_part(actual: Any, word: Any, *, ignore_case: bool) -> bool | None:
    """Return whether a text contains a part, a list an item, an object a key; None if not applicable."""
    if isinstance(actual, str):
        if isinstance(word, bool) or not isinstance(word, (str, Number)):
            return None
        part, whole = to_nfc(str(word)), to_nfc(actual)
        return part.casefold() in whole.casefold() if ignore_case else part in whole
    if isinstance(actual, Mapping):
        return _contains_part([*actual], str(word), ignore_case=ignore_case)
    if isinstance(word, str):
        texts = [to_nfc(each) for each in actual if isinstance(each, str)]
        part = to_nfc(word)
        return part.casefold() in map(str.casefold, texts) if ignore_case else part in texts
    return any(are_json_equal(each, word) for each in actual)


def _describe_near_text(actual: object, word: object, *, ignore_case: bool) -> str:
    if not isinstance(actual, str) or not isinstance(word, str):
        return ""
    at = actual.casefold().find(word.casefold())
    if not ignore_case and at >= 0 and len(actual.casefold()) == len(actual):
        return f"; it is there in other case, {quote(actual[at : at + len(word)])}: `ignoreCase: true` would take it"
    if unicodedata.normalize("NFKC", word) in unicodedata.normalize("NFKC", actual):
        return "; it is there with other Unicode characters that look the same"
    if " ".join(word.split()) in " ".join(actual.split()):
        return "; it is there with other spaces or line breaks"
    return ""


def _describe_null_or_absent(seen: ValueToCheck) -> str:
    return "null" if seen.actual is None else "no value" if seen.actual is ABSENT else ""


def _match_contained_values(name: str, operand: object, seen: ValueToCheck) -> Match:
    if missing_value := _describe_null_or_absent(seen):
        which = "one of " if name == "containsAny" else ""
        message = f"expected {which}{quote(operand)} in it, and there is {missing_value}"
        return Match.of(name == "notContains", message)
    actual = to_json(seen.actual)
    if not isinstance(actual, (str, list, Mapping)):
        is_now = f"{get_type_name(actual)}: {quote(actual)}"
        said = f"`{name}` looks into a text, a list or an object, and the value is {is_now}"
        return Match(MatcherOutcomeKind.UNFIT, said)
    if operand == []:
        return Match(MatcherOutcomeKind.UNCLEAR, f"`{name}`: an empty list asserts nothing")
    present: list[Any] = []
    missing: list[Any] = []
    for word in map(to_json, _to_list(operand)):
        has = None if word == "" else _contains_part(actual, word, ignore_case=seen.ignores_case)
        if has is None:
            why = "an empty text is in every text" if word == "" else f"cannot look for {get_type_name(word)} in a text"
            return Match(MatcherOutcomeKind.UNCLEAR, f"`{name}`: {why}")
        (present if has else missing).append(word)
    hints = [_describe_near_text(actual, word, ignore_case=seen.ignores_case) for word in missing]
    told = ", ".join(f"{quote(word)} is not in it{hint}" for word, hint in zip(missing, hints, strict=True))
    holds, message = {
        "contains": (not missing, told),
        "containsAny": (bool(present), f"none of {quote(missing)} is in it{''.join(dict.fromkeys(hints))}"),
        "notContains": (not present, f"{', '.join(map(quote, present))} should not be in it"),
    }[name]
    return Match.of(holds, f"{message}; it is {quote(actual, 300)}")


for _name, _help in _LOOKING.items():
    register_matcher(_name, schema=_WORDS, help=_help, objection=_explain_invalid_search_texts)(
        partial(_match_contained_values, _name)
    )


@lru_cache(maxsize=512)
def compile_pattern(pattern: str, flags: str = "") -> Any:
    """Compile a Python pattern. Raises StepError: invalid, or the regex package is not installed."""
    try:
        import regex
    except ImportError as error:  # pragma: no cover (the extra brings it)
        raise MachineError(
            "matching patterns needs the package `regex`", hint=build_install_command("runner")
        ) from error
    if len(pattern) > _LONGEST:
        raise StepError(f"the pattern has {len(pattern)} characters, at most {_LONGEST} are taken")
    wanted = regex.VERSION0
    for flag in flags:
        wanted |= getattr(regex, _FLAGS[flag])
    try:
        return regex.compile(pattern, wanted)
    except (regex.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        raise StepError(f"the pattern {pattern!r:.120} does not compile: {error}") from error


def is_pattern_found(pattern: str, text: str, flags: str = "", seconds: float = SECONDS) -> bool:
    """Return whether a pattern matches a text, as written or composed. Raises StepError: invalid, or timeout."""
    forms = dict.fromkeys(((pattern, text), (to_nfc(pattern), to_nfc(text))))
    try:
        return any(compile_pattern(one, flags).search(other, timeout=seconds) is not None for one, other in forms)
    except TimeoutError:
        raise StepError(
            f"the pattern {pattern!r:.120} did not come to an end within {seconds:g} s on a text of {len(text)}"
            f" characters",
            hint="nested repeats such as (a+)+ cause this; write it without them",
        ) from None


def explain_bad_pattern(operand: object, flags: str = "") -> str:
    if operand == []:
        return ": an empty list asserts nothing"
    for each in _to_list(operand):
        if not isinstance(each, str):
            return f" takes a pattern or a list of patterns, not {get_type_name(each)}"
        if not each:
            return ": an empty pattern is found in every text, so it asserts nothing"
        try:
            pattern = compile_pattern(each, flags)
        except StepError as error:
            return f": {error.message}"
        if (name := _NAME_IN_PATTERN.search(_CLASSES.sub("", each))) is not None:
            return (
                f": {each!r:.60} is found in no text: {name[0]} is no name here, but the end of the text with letters "
                "after it"
            )
        if all(pattern.search(text) for text in DISJOINT_TEXTS):
            return (
                f": {each!r:.60}{flags and f' with `flags: {flags}`'} is found in every text, so it asserts nothing "
                "({exists: true} says that there is one)"
            )
    return ""


@register_matcher(
    "regex",
    schema=_PATTERNS,
    help="the pattern is found anywhere in it (write ^ and $ to mean the whole); of a list: all. No $names inside",
    objection=explain_bad_pattern,
    raw=True,
)
def match_regex(operand: object, seen: ValueToCheck) -> Match:
    actual = to_json(seen.actual)
    if missing_value := _describe_null_or_absent(seen):
        message = f"expected a text that matches {quote(operand)}, and there is {missing_value}"
        return Match(MatcherOutcomeKind.FAILS, message)
    if isinstance(actual, (bool, list, Mapping)):
        message = f"`regex` looks into a text, and the value is {get_type_name(actual)}: {quote(actual)}"
        return Match(MatcherOutcomeKind.UNFIT, message)
    flags = str(seen.modifiers.get("flags", "")) + ("i" if seen.ignores_case else "")
    text = str(actual)
    missing = [pattern for pattern in _to_list(operand) if not is_pattern_found(pattern, text, flags)]
    other = [pattern for pattern in missing if "i" not in flags and is_pattern_found(pattern, text, flags + "i")]
    hint = "; it is found in other case: `ignoreCase: true` would take it" if other else ""
    return Match.of(
        not missing, f"{', '.join(map(quote, missing))} is not found in it{hint}; it is {quote(actual, 300)}"
    )


def _check_full_match(text: str, rule: str) -> str:
    if not re.fullmatch(rule, text):
        raise ValueError(text)
    return text


def _require_date_time(text: str) -> None:
    if "T" not in text.upper() or parse_iso_date_or_time(text.upper()) is None:
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
        return f" takes a JSON Schema, not {get_type_name(operand)}"
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


def _limit_rule_steps(rules: Mapping[str, Any]) -> dict[str, Any]:
    steps = count(1)

    def of(rule: Any) -> Any:
        def run(*asked: object) -> Iterator[Any]:
            if next(steps) > _STEPS:
                raise StepError(
                    f"the schema did not come to an end within {_STEPS:,} steps",
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


@register_matcher(
    "jsonSchema",
    schema={"type": "object"},
    help="JSON that keeps to this JSON Schema; a text is parsed first",
    objection=_explain_bad_schema,
    raw=True,
)
def match_json_schema(operand: dict[str, Any], seen: ValueToCheck) -> Match:
    """Parse, then validate; nothing is fetched, and patterns have a time limit."""
    import jsonschema
    from referencing import Registry

    try:
        value = parse_actual_value_as_json(seen.actual)
    except (ValueError, RecursionError) as error:
        return Match(MatcherOutcomeKind.UNFIT, f"expected JSON, and this is none ({error}): {quote(seen.actual, 300)}")
    if value is ABSENT:
        return Match(MatcherOutcomeKind.UNFIT, "expected JSON, and there is no value")

    def pattern(_: object, wanted: str, instance: object, __: object) -> Any:
        if isinstance(instance, str) and not is_pattern_found(wanted, instance):
            yield jsonschema.ValidationError(f"{quote(instance)} does not match {wanted!r}")

    extend: Any = jsonschema.validators.extend
    base, names = _choose_validator(operand), _PatternPropertyExpander(value)
    made = extend(base, _limit_rule_steps({**base.VALIDATORS, "pattern": pattern}))
    checker = made(names.expand(operand), registry=Registry(), format_checker=_build_format_checker())
    errors = sorted(checker.iter_errors(value), key=lambda error: error.json_path)
    told = [f"at {error.json_path}: {names.rewrite_error(error.message):.200}" for error in errors[:5]]
    return Match.of(not errors, "; ".join(told))
