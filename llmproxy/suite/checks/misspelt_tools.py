"""Detection of misspelt tool and argument names, which would otherwise pass as not called (`deleteTask: 0`).

Near names are equal without case, ``_``, ``-`` and ``.``, without a server's prefix, or differ in one letter. Any other
unknown name passes at 0, with a remark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from llmproxy.report.events import Assertion
from llmproxy.suite.matchers.apply import assertion, build_unclear
from llmproxy.suite.schema.response_assertions import ToolExpect
from llmproxy.trace.observing.agent_activity import AgentActivity
from llmproxy.trace.observing.tool_calls import WireCall
from llmproxy.trace.reading.decoded_exchange import list_declared_argument_names

_PREFIX = re.compile(r"__|[./:]")
"""Separator of a server and its tool: ``mcp__github__search``, ``github.search``, ``github/search``."""
_IGNORED = re.compile(r"[_\-.\s]")
_LONG = 6
"""Least letters of a server's name for which one edit is a misspelling, not another server."""
_NAME = re.compile(r"[^.\[\]$]+")
"""A name, or an index, in the path of an argument."""
_DEEPEST = 8
"""Maximum depth of compared arguments."""


def check_tool_names(tools: Mapping[str, ToolExpect], step: AgentActivity, run: Sequence[WireCall]) -> list[Assertion]:
    """Return errors for names that are probably misspelt, and results of `offered`; `run` is all so far."""
    before = _collect_offered_tools(run)
    now, called = _collect_offered_tools(step.seen), {use.name for use in step.tools}
    arguments: dict[str, _Names] = {}
    for each in run:
        arguments |= {} if each.exchange is None else list_declared_argument_names(each.exchange.tree)
    made: list[Assertion] = []
    for name, wanted in tools.items():
        if name == "*":
            continue
        known = before | called
        if name not in known and (meant := find_near_name(name, known, spelling_only=wanted.offered is False)):
            message = f"no tool is called {name!r}: {_describe_tools(known)}; did you mean {meant!r}?"
            made.append(build_unclear(f"tools.{name}", message))
            continue
        if wanted.offered is not None:
            made.append(_check_offered_assertion(name, now, called, offered=wanted.offered))
        made += _check_expected_argument_names(name, wanted, arguments.get(name, {}), step)
    return made


def find_never_offered_tools(
    tools: Mapping[str, ToolExpect], step: AgentActivity, run: Sequence[WireCall]
) -> list[str]:
    """Return the step's tools that were never offered or called: not calling them proves little."""
    known = _collect_offered_tools(run) | {use.name for use in step.tools}
    return [name for name, wanted in tools.items() if name != "*" and name not in known and wanted.offered is None]


def find_near_name(name: str, known: Iterable[str], *, spelling_only: bool = False) -> str:
    """Return the known name nearest to one, spelling variants first; empty if there is none."""
    names = sorted(known)
    alike = next((each for each in names if _is_same_spelling(name, each)), "")
    return alike or ("" if spelling_only else next((each for each in names if is_near_name(name, each)), ""))


def is_near_name(one: str, other: str) -> bool:
    return _is_same_spelling(one, other) or _is_one_typo_apart(one, other)


def _is_same_spelling(one: str, other: str) -> bool:
    """Return whether two names differ only in spelling style and in a prefix of one of them."""
    return _fold_name(one) in _strip_possible_prefixes(other) or _fold_name(other) in _strip_possible_prefixes(one)


def _is_one_typo_apart(one: str, other: str) -> bool:
    """Return whether two names are one edit apart; servers' names must also be long enough."""
    (server, tool), (other_server, other_tool) = _split_prefix(one), _split_prefix(other)
    if not (server and other_server) or server == other_server:
        return _is_one_edit(tool, other_tool)
    return tool == other_tool and len(server) >= _LONG and _is_one_edit(server, other_server)


def _split_prefix(name: str) -> tuple[str, str]:
    ends = [found.span() for found in _PREFIX.finditer(name)]
    return (_fold_name(name[: ends[-1][0]]), _fold_name(name[ends[-1][1] :])) if ends else ("", _fold_name(name))


def _fold_name(name: str) -> str:
    return _IGNORED.sub("", unicodedata.normalize("NFKC", name)).casefold()


def _strip_possible_prefixes(name: str) -> set[str]:
    return {_fold_name(name), *(_fold_name(name[found.end() :]) for found in _PREFIX.finditer(name))} - {""}


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether two texts differ in one inserted, deleted or changed letter, or one swap."""
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or not short:
        return False
    at = next((n for n, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    swapped = short[:at] + short[at + 1 : at + 2] + short[at : at + 1] + short[at + 2 :]
    return short[at + 1 :] == long[at + 1 :] or swapped == long


# -- what was offered --------------------------------------------------------------------------------------------------


def _collect_offered_tools(seen: Iterable[WireCall]) -> set[str]:
    return {name for each in seen if each.exchange is not None for name in each.exchange.tools}


def _describe_tools(known: Iterable[str]) -> str:
    names = sorted(known)
    return f"there are {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _check_offered_assertion(name: str, now: set[str], called: set[str], *, offered: bool) -> Assertion:
    right = (name in now) is offered and (offered or name not in called)
    what = "was offered" if name in now else "was not offered" + (", and called all the same" if name in called else "")
    message = f"{name} {what} to a model in this step; {_describe_tools(now) if now else 'no tool was'}"
    return assertion(f"tools.{name}.offered", message, holds=right, expected=offered, actual=name in now)


def _check_expected_argument_names(
    name: str, wanted: ToolExpect, schema: _Names, step: AgentActivity
) -> list[Assertion]:
    known: dict[tuple[str, ...], frozenset[str]] = dict(schema)
    uses = [use for use in step.tools if use.name == name]
    for use in uses:
        _add_argument_names(known, use.arguments)
    made: list[Assertion] = []
    for key, paths in (("input", wanted.input), ("every", wanted.every if isinstance(wanted.every, Mapping) else None)):
        for path in paths or ():
            if (unknown := _find_unknown_argument(path, known)) is None:
                continue
            *place, last = unknown
            said, there = ".".join(unknown), sorted(schema.get(tuple(place), ()))
            if meant := find_near_name(last, known.get(tuple(place), ())):
                told = f"{name} has no argument {said!r}; did you mean {'.'.join((*place, meant))!r}?"
                made.append(build_unclear(f"tools.{name}.{key}", told))
            elif there and key == "input" and uses and wanted.count in (0, {"eq": 0}):
                others = ", ".join(".".join((*place, each)) for each in there)
                told = f"{name} has no argument {said!r}; it has {others}, so no call could have this input"
                made.append(build_unclear(f"tools.{name}.{key}", told))
    return made


type _Names = Mapping[tuple[str, ...], frozenset[str]]
"""Names of arguments, by where they stand; () is the top."""


def _add_argument_names(
    known: dict[tuple[str, ...], frozenset[str]], value: object, place: tuple[str, ...] = ()
) -> None:
    """Add a call's argument names; an object with arbitrary names may have others in the next call."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Mapping) and len(place) < _DEEPEST:
            known[place] = known.get(place, frozenset()) | frozenset(map(str, item))
            for name, inner in item.items():
                _add_argument_names(known, inner, (*place, str(name)))


def _find_unknown_argument(path: str, known: _Names) -> tuple[str, ...] | None:
    """Return the beginning of a path up to the first name that is not known; None where all are."""
    place: tuple[str, ...] = ()
    for name in _NAME.findall(path) if path not in known.get((), ()) else ():
        if name.isdecimal():
            continue
        if name not in known.get(place, ()):
            return (*place, name)
        place = (*place, name)
    return None
