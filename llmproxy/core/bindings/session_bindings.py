"""The bindings of one session, and the key by which the recordings are found that they may fit."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmproxy.core.bindings.created_id_pairs import IdPair, IdPairs
from llmproxy.core.bindings.leaf_pairs import Fit, MatchedMessageCache
from llmproxy.core.bindings.leaf_places import ROLES, Bindings, Zone, iterate_request_members
from llmproxy.core.bindings.run_variables import RunVariable, deserialize_run_variables
from llmproxy.core.bindings.volatile_learning import LearnedField
from llmproxy.core.bindings.volatile_result_fields import OUTSIDE, VolatileField
from llmproxy.core.dialects.messages import find_system_reminder_spans
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.traffic.interaction import Response
from llmproxy.lazy_regex import late
from llmproxy.protocol import BindingPolicy

_SIGNS = late(r"[/\\~%\x1b]")
"""Characters of which every path contains one."""
_INSIDE = late(r"(?:[^\W_](?<!-[A-Za-z])|(?<!-)[A-Za-z]{2}:/?)\Z")
"""Text after which a separator begins no path: in ``docs/x`` and ``https://``, unlike ``-I/x`` and ``file:///x``."""
_DRIVE = late(r"(?:(?<![^\W_])[A-Za-z]:?){1,3}\Z")
_LONG = late(r"(?<!\S)(?:-\S*|\S*(?:[_-]|\d)\S*)")
"""Words that may contain an id or a folder's name derived from a path; masked from six characters on."""
_SHORTEST = 6
_COUNTED = ("type", "role", "name", "model")
_AGENTS = ("tool_result", "_output", "_call", "tool_use", "thinking", "reasoning")
"""Endings of the kinds of items and blocks that no user typed; their texts are left to the comparison."""
_BESIDE = frozenset({"toolResult", "functionResponse", "function_response", "toolUse", "functionCall",
    "function_call", "function",
                     "arguments", "args", "parameters", "id", "call_id", "tool_call_id", "tool_use_id"})  # fmt: skip
"""Members next to the user's text that no user typed."""


def build_value_independent_key(canonical: Canonical) -> str:
    """Return the bound key, which finds candidates: a digest of everything in a request that no binding can change.

    It covers the route, the model, significant headers, the order of roles and blocks, the names of tools, and the
    user's text before anything that can contain a bound value (a path, a long id: ``What do my 7 notes say?``). It
    depends on neither run variables nor volatile fields, so it is never recomputed.
    """
    parts = [canonical.provider, canonical.method, canonical.model or "", str(canonical.stream), canonical.kind]
    parts += [text for pair in (*canonical.headers, *canonical.query) for text in pair]
    parts.append(canonical.operation)
    for name, value, place in iterate_request_members(canonical.tree):
        parts.append(name)
        if place.zone is Zone.USER:
            parts += _iter_turns(value)
        elif place.zone is not Zone.SYSTEM:
            parts += _iter_parameters(name, value)
    return "b1:" + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _iter_parameters(name: str, node: object) -> Iterator[str]:
    """Yield names and numbers of parameters, and only those texts that name something."""
    if isinstance(node, dict):
        for each in sorted(node):
            yield each
            yield from _iter_parameters(each, node[each])
    elif isinstance(node, list):
        yield str(len(node))
        for one in node:
            yield from _iter_parameters("", one)
    elif not isinstance(node, str):
        yield repr(node)
    elif name in _COUNTED:
        yield node


def _iter_turns(node: object) -> Iterator[str]:
    if isinstance(node, list):
        yield str(len(node))
        for each in node:
            yield from _iter_turns(each)
    elif isinstance(node, str):
        if not find_system_reminder_spans(node):
            yield _LONG.sub(_blank_id_like_word, node[: _find_first_path_start(node)])
    elif isinstance(node, dict):
        yield from _list_turn_parts(node)
    else:
        yield repr(node)


def _find_first_path_start(text: str) -> int:
    """Return the position at which the first path may begin (its end is unknown); the text's length if none."""
    for sign in _SIGNS.finditer(text):
        at = sign.start()
        if sign[0] == "/" and _INSIDE.search(text, max(0, at - 4), at):
            continue
        drive = _DRIVE.search(text, max(0, at - 6), at)
        return drive.start() if drive else at
    return len(text)


def _blank_id_like_word(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) < _SHORTEST and "-" not in found[0] else "*"


def _list_turn_parts(node: dict[str, object]) -> Iterator[str]:
    role, kind = node.get("role"), node.get("type")
    if isinstance(role, str):
        yield role
        if ROLES.get(role, Zone.USER) is not Zone.USER:
            return
    if isinstance(kind, str):
        yield kind
        if kind.endswith(_AGENTS):
            return
    for name in sorted(node):
        yield name
        if name not in _BESIDE and name not in _COUNTED:
            yield from _iter_turns(node[name])


_RESULTS = re.compile(rb'tool_result|_output"|"role":"(?:tool|function|TOOL)"|unction_?[rR]esponse|toolResult')
_LISTS = ("messages", "input", "contents")


def get_user_text_around_bound_values(recorded: Canonical, table: Bindings) -> tuple[str, str]:
    """Return the literal start and end of a recording's last user text, to exclude candidates; empty if unclear."""
    if (text := read_last_user_text(recorded)) is None or table.text_slots.get(OUTSIDE):
        return "", ""
    spots = table.forms_in_user_text.find_matches(text)
    return (text[: spots[0].start], text[spots[-1].end :]) if spots else (text, text)


def read_last_user_text(canonical: Canonical) -> str | None:
    """Return the last user text; None if a tool has answered or the author is unclear."""
    if not isinstance(tree := canonical.tree, dict) or _RESULTS.search(canonical.body):
        return None
    said = next((tree[name] for name in _LISTS if name in tree), None)
    if isinstance(said, list) and said and isinstance(said[-1], dict):
        turn: Mapping[str, object] = said[-1]
        said = turn.get("content", turn.get("parts")) if turn.get("role") == "user" else None
    if isinstance(said, list):
        texts = [each.get("text") if isinstance(each, dict) else None for each in said]
        said = "\0".join(each for each in texts if isinstance(each, str)) if texts and None not in texts else None
    return said if isinstance(said, str) and not find_system_reminder_spans(said) else None


_REMEMBERED = 64
_MOST_TYPED = 100_000


class BoundAnswer(NamedTuple):
    response: Response
    fit: Fit
    """Its ids are known once the answer is served."""


@dataclass(slots=True)
class FieldLearningResults:
    lessons: list[LearnedField] = field(default_factory=list)
    served: int = 0


@dataclass(slots=True)
class SessionBindings:
    scope: BindingPolicy = BindingPolicy.ALL
    declared: dict[str, RunVariable] = field(default_factory=dict)
    fields: tuple[VolatileField, ...] = ()
    """Fields of the cassette, fields of a trial, and built-in ones."""
    trial: FieldLearningResults | None = None
    known: IdPairs = field(default_factory=IdPairs)
    named: set[str] = field(default_factory=set)
    """Path variables below which an earlier request named something with this run's value."""
    untouched: set[int] = field(default_factory=set)
    """Recordings whose answer an exact hit serves unchanged."""
    _typed: dict[tuple[int, Bindings], tuple[str, str]] = field(default_factory=dict)
    """Literal ends of the last user texts of recorded requests, by recording and bindings."""
    _tables: dict[str, Bindings] = field(default_factory=dict)
    fitted: defaultdict[Bindings, MatchedMessageCache] = field(default_factory=lambda: defaultdict(MatchedMessageCache))
    """Messages that fitted, by bindings."""

    def declare_variables(self, run_variables: Iterable[RunVariable]) -> None:
        self.declared |= {each.name: each for each in run_variables}
        self._forget_bindings()
        self.untouched.clear()

    def build_bindings(self, recorded: str) -> Bindings:
        """Return the bindings for a recording with these run variables, as `dump_run_variables` wrote them."""
        if (known := self._tables.get(recorded)) is None:
            if len(self._tables) >= _REMEMBERED:
                self._forget_bindings()
            known = Bindings(deserialize_run_variables(recorded), self.declared.values(), self.fields, self.scope)
            self._tables[recorded] = known
        return known

    def may_match_last_user_text(self, id_: int, recorded: Canonical, table: Bindings, text: str) -> bool:
        """Return whether a recording may have this last user text under these bindings; true if that is unclear."""
        if (which := (id_, table)) not in self._typed:
            if len(self._typed) >= _MOST_TYPED:
                self._typed.clear()
            self._typed[which] = get_user_text_around_bound_values(recorded, table)
        head, tail = self._typed[which]
        return text.startswith(head) and text.endswith(tail)

    def _forget_bindings(self) -> None:
        self._tables.clear()
        self.fitted.clear()
        self._typed.clear()

    def add_id_pairs(self, identities: Iterable[IdPair], below: frozenset[str] = frozenset()) -> None:
        """Record the id pairs of a served answer's requests; they were checked already."""
        if not below <= self.named:
            self.named |= below
            self.untouched.clear()
        for each in identities:
            if each.recorded != each.present and self.known.record_new_pair(each):
                self.untouched.clear()

    def add_learned_fields(self, lessons: Sequence[LearnedField]) -> None:
        if self.trial is None:
            raise AssertionError("taught outside of a trial")
        self.trial.lessons += lessons
        self.fields = (*(lesson.field for lesson in lessons), *self.fields)
        self._forget_bindings()

    def forget_id_pairs(self) -> None:
        self.known = IdPairs()
        self.named.clear()
        self.untouched.clear()
