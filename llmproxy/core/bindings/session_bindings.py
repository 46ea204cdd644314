"""The bindings of one session: its run variables, its cassette's volatile fields, and the ids of its tools so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmproxy.core.bindings import (
    Bindings,
    BindScope,
    Fit,
    FittedMessageCache,
    IdPair,
    IdPairs,
    Mismatch,
    RunVariable,
    VolatileField,
    dump_run_variables,
    load_run_variables,
    rewrite_answer,
)
from llmproxy.core.bindings.binding_independent_key import read_literal_ends
from llmproxy.core.bindings.volatile_learning import LearnedField
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.traffic.interaction import Response

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
    scope: BindScope = BindScope.ALL
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
    _fitted: dict[Bindings, FittedMessageCache] = field(default_factory=dict)

    def declare_variables(self, run_variables: Iterable[RunVariable]) -> None:
        self.declared |= {each.name: each for each in run_variables}
        self._forget_bindings()
        self.untouched.clear()

    @property
    def dump_declared_variables(self) -> str:
        """The run variables in the form that recordings contain."""
        return dump_run_variables(self.declared.values())

    def build_bindings(self, recorded: str) -> Bindings:
        """Return the bindings for a recording with these run variables, as `dump_run_variables` wrote them."""
        if (known := self._tables.get(recorded)) is None:
            if len(self._tables) >= _REMEMBERED:
                self._forget_bindings()
            known = Bindings(load_run_variables(recorded), self.declared.values(), self.fields, self.scope)
            self._tables[recorded] = known
        return known

    def get_fitted_messages(self, table: Bindings) -> FittedMessageCache:
        if (known := self._fitted.get(table)) is None:
            known = self._fitted[table] = FittedMessageCache()
        return known

    def may_match_last_user_text(self, id_: int, recorded: Canonical, table: Bindings, text: str) -> bool:
        """Return whether a recording may have this last user text under these bindings; true if that is unclear."""
        if (which := (id_, table)) not in self._typed:
            if len(self._typed) >= _MOST_TYPED:
                self._typed.clear()
            self._typed[which] = read_literal_ends(recorded, table)
        head, tail = self._typed[which]
        return text.startswith(head) and text.endswith(tail)

    def build_answer(self, table: Bindings, fit: Fit, recorded: Response) -> BoundAnswer | Mismatch:
        response = rewrite_answer(table, fit, recorded, self.known)
        return response if isinstance(response, Mismatch) else BoundAnswer(response, fit)

    def _forget_bindings(self) -> None:
        self._tables.clear()
        self._fitted.clear()
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
