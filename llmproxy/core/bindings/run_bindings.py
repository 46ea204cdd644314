"""The bindings of one session: pairs of run variables in all their forms, and the volatile fields of its cassette."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from llmproxy.core.bindings.run_variables import (
    PATHS,
    RunVariable,
    RunVariablePair,
    ValueKind,
    is_run_specific_path,
    pair_run_variables,
)
from llmproxy.core.bindings.text_alignment import splice
from llmproxy.core.bindings.value_forms import FormScope, FormSearch, ValueForm, list_value_forms
from llmproxy.core.bindings.volatile_field_matching import LINE, TEXT, VolatileField
from llmproxy.core.traffic.canonical_json import dump, parse_json_container
from llmproxy.protocol import BindScope


class Bindings:
    def __init__(
        self,
        recorded: Iterable[RunVariable],
        present: Iterable[RunVariable],
        fields: Iterable[VolatileField] = (),
        scope: BindScope = BindScope.ALL,
    ) -> None:
        """Pair the run variables; `scope` PATHS keeps only cwd, home and tmp and no volatile fields, NONE nothing."""
        self.present = tuple(present)
        pairs = pair_run_variables(recorded, self.present) if scope is not BindScope.NONE else ()
        if scope is BindScope.PATHS:
            pairs = tuple(pair for pair in pairs if pair.name in PATHS)
        self.pairs: tuple[RunVariablePair, ...] = pairs
        self.fields: tuple[VolatileField, ...] = tuple(fields) if scope is BindScope.ALL else ()
        self.json_tools = frozenset(field.tool for field in self.fields if field.at.startswith("$"))
        self.text_slots: dict[str, tuple[VolatileField, ...]] = {}
        """Volatile fields in texts, by tool: a text without any need not be searched."""
        for field in self.fields:
            if field.at in (LINE, TEXT):
                self.text_slots[field.tool] = (*self.text_slots.get(field.tool, ()), field)
        self.of_many: tuple[VolatileField, ...] = tuple(field for field in self.fields if field.tool_name_prefix)
        self.changed = frozenset(pair.name for pair in pairs if pair.has_changed)
        self.values = {pair.name: (pair.recorded.value, pair.present.value) for pair in pairs}
        declared = {each.name: each.value for each in self.present} if scope is BindScope.ALL else {}
        self.git_user = declared.get("git_user", "")
        """This run's value, also if the recorded one was not kept: a file for pull requests names no person."""

    @cached_property
    def _all_forms(self) -> tuple[ValueForm, ...]:
        return tuple(list_value_forms(self.pairs))

    @cached_property
    def forms_in_system_text(self) -> FormSearch:
        """Every form: the agent's own text may contain any."""
        return FormSearch(self._all_forms)

    @cached_property
    def forms_of_present_values(self) -> FormSearch:
        """Search for present values in recorded text, where they are no variables."""
        return FormSearch(list_value_forms([RunVariablePair(pair.present, pair.recorded) for pair in self.pairs]))

    @cached_property
    def forms_outside_system_text(self) -> FormSearch:
        """Forms that count in arguments, results and the model's words: no dates, no blocks."""
        return FormSearch(form for form in self._all_forms if form.reach is not FormScope.AGENT)

    @cached_property
    def forms_in_user_text(self) -> FormSearch:
        return FormSearch(form for form in self._all_forms if form.reach is FormScope.EVERYWHERE)

    @cached_property
    def answer_forms(self) -> FormSearch:
        return FormSearch(form for form in self._all_forms if form.in_answers)

    @cached_property
    def limited_to_run_paths(self) -> Bindings:
        """Bindings that may change an exact hit's answer: cwd, home and tmp, if the recorded one is that run's own."""
        pairs = [
            pair
            for pair in self.pairs
            if pair.recorded.kind is not ValueKind.PATH or is_run_specific_path(pair.recorded.value)
        ]
        return Bindings((pair.recorded for pair in pairs), (pair.present for pair in pairs), scope=BindScope.PATHS)

    def __bool__(self) -> bool:
        """Return whether anything can be bound; if not, only equal requests fit."""
        return bool(self.changed or self.fields)


def write_arguments_with_placeholders(bindings: Bindings, arguments: object) -> str:
    """Return a recorded call's arguments as canonical JSON with ``{name}`` for bound values, as in anchors."""
    value = parse_json_container(arguments) if isinstance(arguments, str) else arguments
    text = dump(arguments if value is None else value).decode("ascii")
    spots = bindings.forms_in_user_text.find_matches(text)
    return splice(text, ((spot.start, spot.end, f"{{{spot.forms[0].name}}}") for spot in spots))
