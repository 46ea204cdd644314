"""Matchers of texts and collections: contains, notContains, containsAny, regex."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache, partial
from numbers import Number
from typing import Any

from llmproxy.advice import install_command
from llmproxy.errors import MachineError
from llmproxy.suite.matchers.json_equality import ABSENT, are_equal, name_kind, quote, to_json, to_nfc
from llmproxy.suite.matchers.match import Match, MatchKind, ValueToMatch, matcher
from llmproxy.suite.matchers.variables import StepError

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
            return f" takes a text, a number or a list of them, not {name_kind(each)}"
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
    return any(are_equal(each, word) for each in actual)


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


def _describe_null_or_absent(seen: ValueToMatch) -> str:
    return "null" if seen.actual is None else "no value" if seen.actual is ABSENT else ""


def _match_contained_values(name: str, operand: object, seen: ValueToMatch) -> Match:
    if missing_value := _describe_null_or_absent(seen):
        which = "one of " if name == "containsAny" else ""
        message = f"expected {which}{quote(operand)} in it, and there is {missing_value}"
        return Match.of(name == "notContains", message)
    actual = to_json(seen.actual)
    if not isinstance(actual, (str, list, Mapping)):
        said = f"`{name}` looks into a text, a list or an object, and the value is {name_kind(actual)}: {quote(actual)}"
        return Match(MatchKind.UNFIT, said)
    present: list[Any] = []
    missing: list[Any] = []
    for word in map(to_json, _to_list(operand)):
        has = None if word == "" else _contains_part(actual, word, ignore_case=seen.ignores_case)
        if has is None:
            why = "an empty text is in every text" if word == "" else f"cannot look for {name_kind(word)} in a text"
            return Match(MatchKind.UNCLEAR, f"`{name}`: {why}")
        (present if has else missing).append(word)
    hints = [_describe_near_text(actual, word, ignore_case=seen.ignores_case) for word in missing]
    told = ", ".join(f"{quote(word)} is not in it{hint}" for word, hint in zip(missing, hints, strict=True))
    holds, message = {
        "contains": (not missing, told),
        "containsAny": (bool(present), f"none of {quote(missing)} is in it{''.join(dict.fromkeys(hints))}"),
        "notContains": (not present, f"{', '.join(map(quote, present))} should not be in it"),
    }[name]
    return Match.of(holds, f"{message}; it is {quote(actual, 300)}")


_LOOKING = {
    "contains": "a text has this part, a list this member, an object this key; of a list: all",
    "containsAny": "as contains; of a list: at least one",
    "notContains": "the opposite of contains; of a list: none of them",
}
for _name, _help in _LOOKING.items():
    matcher(_name, schema=_WORDS, help=_help, objection=_explain_invalid_search_texts)(
        partial(_match_contained_values, _name)
    )


# -- patterns


@lru_cache(maxsize=512)
def compile_pattern(pattern: str, flags: str = "") -> Any:
    """Compile a Python pattern. Raises StepError: invalid, or the regex package is not installed."""
    try:
        import regex
    except ImportError as error:  # pragma: no cover (the extra brings it)
        raise MachineError("matching patterns needs the package `regex`", hint=install_command("runner")) from error
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


_ANYTHING = ("", "\n", "\N{SECTION SIGN}", "0 Zz", " a\n-b\n")
"""Texts without anything in common: a pattern found in all of them matches every text."""
_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""Escapes and character sets, in which a dollar sign is literal."""
_NAME_IN_PATTERN = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_][^}]*\})")


def explain_bad_pattern(operand: object, flags: str = "") -> str:
    if operand == []:
        return ": an empty list asserts nothing"
    for each in _to_list(operand):
        if not isinstance(each, str):
            return f" takes a pattern or a list of patterns, not {name_kind(each)}"
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
        if all(pattern.search(text) for text in _ANYTHING):
            return (
                f": {each!r:.60}{flags and f' with `flags: {flags}`'} is found in every text, so it asserts nothing "
                "({exists: true} says that there is one)"
            )
    return ""


@matcher(
    "regex",
    schema=_PATTERNS,
    help="the pattern is found anywhere in it (write ^ and $ to mean the whole); of a list: all. No $names inside",
    objection=explain_bad_pattern,
    raw=True,
)
def match_regex(operand: object, seen: ValueToMatch) -> Match:
    actual = to_json(seen.actual)
    if missing_value := _describe_null_or_absent(seen):
        message = f"expected a text that matches {quote(operand)}, and there is {missing_value}"
        return Match(MatchKind.FAILS, message)
    if isinstance(actual, (bool, list, Mapping)):
        message = f"`regex` looks into a text, and the value is {name_kind(actual)}: {quote(actual)}"
        return Match(MatchKind.UNFIT, message)
    flags = str(seen.modifiers.get("flags", "")) + ("i" if seen.ignores_case else "")
    text = str(actual)
    missing = [pattern for pattern in _to_list(operand) if not is_pattern_found(pattern, text, flags)]
    other = [pattern for pattern in missing if "i" not in flags and is_pattern_found(pattern, text, flags + "i")]
    hint = "; it is found in other case: `ignoreCase: true` would take it" if other else ""
    return Match.of(
        not missing, f"{', '.join(map(quote, missing))} is not found in it{hint}; it is {quote(actual, 300)}"
    )
