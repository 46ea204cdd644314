"""Which cases run: tags by an expression, ids, words, the ones that failed last. Everything that is asked for must hold.

    --tags "smoke and not slow"     names of tags with and, or, not and parentheses, as pytest's -m
    --tag a --tag b                 both tags
    --id ID                         exactly this one (or all sets of parameters of it); repeated: any of them
    --grep TEXT                     in id, name or description, whatever the case

Nothing selected is no success: it ends with 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError

if TYPE_CHECKING:
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.schema.steps import StepBase

_WORD = re.compile(r"\s*(?:(\()|(\))|([^\s()]+))")
Holds = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    tags: str = ""
    tag: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    grep: str = ""
    label: str = ""
    only: Collection[str] | None = None
    """Ids of the cases that failed last; None: all."""


def select(cases: Sequence[SuiteCase], wanted: Wanted) -> list[SuiteCase]:
    """Return the cases that are wanted, in their order.

    Raises:
        SuiteError: an expression, an id or a label that cannot be meant.

    """
    holds = expression(wanted.tags) if wanted.tags else lambda _: True
    _known_tags(wanted, cases)
    for name in wanted.ids:
        if not any(_is(case, name) for case in cases):
            raise SuiteError(
                f"--id {name!r}: there is no such scenario{did_you_mean(name, [case.id for case in cases])}"
            )
    found = [
        case
        for case in cases
        if holds(case.tags)
        and set(wanted.tag) <= set(case.tags)
        and (not wanted.ids or any(_is(case, name) for name in wanted.ids))
        and (not wanted.grep or _mentions(case, wanted.grep))
        and (wanted.only is None or case.id in wanted.only)
    ]
    return _with_label(found, wanted.label) if wanted.label else found


def _is(case: SuiteCase, name: str) -> bool:
    return name in (case.id, case.scenario.id)


def _mentions(case: SuiteCase, text: str) -> bool:
    return any(text.casefold() in each.casefold() for each in (case.id, case.title, case.description))


def _with_label(cases: Sequence[SuiteCase], label: str) -> list[SuiteCase]:
    """Keep the cases that have a step of this label. Raises SuiteError if none has."""
    found = [case for case in cases if any(step.label == label for step in case.scenario.steps)]
    if cases and not found:
        known = {step.label for case in cases for step in case.scenario.steps if step.label}
        raise SuiteError(
            f"--step {label!r}: no selected scenario has a step with this label{did_you_mean(label, known)}"
        )
    return found


def _known_tags(wanted: Wanted, cases: Iterable[SuiteCase]) -> None:
    """Refuse tags that no scenario has: a misspelt one would select nothing, or with `not` everything."""
    known = {tag for case in cases for tag in case.tags}
    for name in (*wanted.tag, *(_names(wanted.tags) if wanted.tags else ())):
        if name not in known:
            there = f"There are {', '.join(sorted(known))}." if known else "No scenario has any tag."
            raise SuiteError(f"no scenario has the tag {name!r}{did_you_mean(name, known)}", hint=there)


def until(case: SuiteCase, label: str) -> tuple[StepBase, ...]:
    """Return the steps up to the one with this label; all of them without one."""
    steps: tuple[StepBase, ...] = tuple(case.scenario.steps)
    if not label:
        return steps
    at = next((n for n, step in enumerate(steps) if step.label == label), None)
    if at is None:
        raise SuiteError(f"{case.id} has no step with the label {label!r}.")
    return steps[: at + 1]


# -- expressions -----------------------------------------------------------------------------------------------------------

_KEYWORDS = ("and", "or", "not")


def _names(text: str) -> list[str]:
    return [word for word in _words(text) if word not in ("(", ")", *_KEYWORDS)]


def _words(text: str) -> list[str]:
    return [next(part for part in match.groups() if part) for match in _WORD.finditer(text)]


def expression(text: str) -> Holds:
    """Read an expression over tags. Raises SuiteError where it ends or goes on wrongly."""
    parser = _Parser(text)
    made = parser.either()
    if parser.rest:
        raise parser.wrong(f"{parser.rest[0]!r} does not belong here")
    return made


class _Parser:
    """``or`` binds least, then ``and``, then ``not``."""

    def __init__(self, text: str) -> None:
        self.text, self.rest = text, _words(text)

    def wrong(self, why: str) -> SuiteError:
        return SuiteError(f"--tags {self.text!r}: {why}", hint='It is like "smoke and not (slow or flaky)".')

    def either(self) -> Holds:
        made = self.both()
        while self._take("or"):
            made = _or(made, self.both())
        return made

    def both(self) -> Holds:
        made = self.one()
        while self._take("and"):
            made = _and(made, self.one())
        return made

    def one(self) -> Holds:
        if self._take("not"):
            inner = self.one()
            return lambda tags: not inner(tags)
        if self._take("("):
            inner = self.either()
            if not self._take(")"):
                raise self.wrong("a parenthesis is not closed")
            return inner
        if not self.rest or self.rest[0] in (")", *_KEYWORDS):
            raise self.wrong(
                f"a tag is missing before {self.rest[0]!r}" if self.rest else "a tag is missing at the end"
            )
        name = self.rest.pop(0)
        return lambda tags: name in tags

    def _take(self, word: str) -> bool:
        if self.rest and self.rest[0] == word:
            self.rest.pop(0)
            return True
        return False


def _or(one: Holds, other: Holds) -> Holds:
    return lambda tags: one(tags) or other(tags)


def _and(one: Holds, other: Holds) -> Holds:
    return lambda tags: one(tags) and other(tags)
