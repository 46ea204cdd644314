"""Comparison of a request with a recording that is not equal to it.

Wherever the recorded text has a recorded value, the present text has the present value (or the recorded one unchanged:
a committed file names another home). Volatile fields contain values of their kind. Everything else is equal: the
question is never bound. Volatile fields are read first, in both requests; their ids must map one to one without
contradicting the session's known pairs, and are then searched for everywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llmproxy.core.bindings.created_id_pairs import (
    IdPairs,
    RecordedIdTextMatcher,
    ShortValue,
    find_short_values_at_leaf,
    index_changed_id_pairs,
    list_changed_short_bindings,
)
from llmproxy.core.bindings.leaf_pairs import (
    Fit,
    Leaf,
    LeafPairVisitor,
    MatchedMessageCache,
    MessagePair,
    MisfitReason,
    Mismatch,
    ValueReplacementConsistency,
    VolatileFieldReader,
    build_id_pair_conflict_mismatch,
    build_recorded_value_mismatch,
    excerpt_line,
    find_ids_no_longer_distinct,
    pair_request_leaves,
)
from llmproxy.core.bindings.leaf_places import (
    Bindings,
    LeafPlace,
    RequestZoneMapper,
    Zone,
    derive_request_member_zone,
    find_volatile_matches,
    is_in_any_span,
    iterate_request_members,
    list_volatile_fields_for_leaf,
)
from llmproxy.core.bindings.text_alignment import (
    LISTING,
    FilledGap,
    PossibleSpanText,
    TextDivergence,
    VariableSpan,
    drop_llmproxy_files_from_ls,
    drop_llmproxy_git_status_lines,
    find_listing_variable_spans,
    list_varying_shell_output_spans,
    match_text_with_gaps,
    put_current_run_values_in_text,
    replace_text_spans,
)
from llmproxy.core.bindings.value_forms import (
    RunValueSpelling,
    SpellingSearchScope,
    ValueFormOccurrence,
    is_isolated_in_text,
)
from llmproxy.core.bindings.volatile_result_fields import (
    IN_TEXT,
    Names,
    VolatileFieldTextMatch,
    can_text_contain_volatile_field,
    matches_field_kind,
)
from llmproxy.core.dialects.messages import find_system_reminder_spans
from llmproxy.core.traffic.canonical_json import dump, split_text_by_json

_MOST_NAMES = 100
"""Maximum members of an object that are tried as the renamed form of an expected one."""
_TOOLS = frozenset({"tools", "functions"})
"""Members with tools, of which only descriptions are the agent's text: a day in an enum is a value to choose."""
_WHOLE_ID = 8
"""Minimum characters of an id that counts as leaked wherever it occurs, whatever is next to it."""


def match_requests_with_bindings(
    bindings: Bindings,
    recorded: object,
    present: object,
    known: IdPairs | None = None,
    fitted: MatchedMessageCache | None = None,
) -> Fit | Mismatch:
    """Compare the canonical trees of two requests. `known`: the id pairs of the session's earlier requests. `fitted`
    remembers the messages that fit: their trees must then not change.
    """
    paired = pair_request_leaves(recorded, present, fitted)
    leaves, fields = paired.leaves, VolatileFieldReader(bindings)
    if (wrong := fields.collect_field_values(leaves)) is not None:
        return wrong
    earlier = known or IdPairs()
    for each in fields.found:
        conflict = earlier.find_conflict(each)
        # A recording of another run has another id for the same thing; one that contains both ids is of one run.
        if conflict is not None and not (conflict.merges and not paired.is_in_recorded_request(conflict.other)):
            return build_id_pair_conflict_mismatch("$", each, conflict.other)
    comparing = BoundRequestComparer(bindings, fields.found, known)
    if any(pair.texts and comparing.depends_on_ids(pair) for pair in paired.messages):
        return match_requests_with_bindings(bindings, recorded, present, known)
    whole = fitted if paired.parted is None else None  # the leaves before a difference of shapes are not all
    for pair in paired.messages:
        if (wrong := comparing.compare_messages(pair, whole)) is not None:
            return wrong
    return paired.parted or comparing.find_unequal(leaves) or comparing.build_fit()


class BoundRequestComparer(LeafPairVisitor):
    def __init__(self, bindings: Bindings, found: IdPairs, known: IdPairs | None) -> None:
        super().__init__(bindings)
        whole = IdPairs((*found, *(known or ())))  # this pair takes precedence; conflicts were checked
        self._identities = whole
        self._tokens = RecordedIdTextMatcher(whole)
        self._shorts = list_changed_short_bindings(bindings.pairs, whole)
        self._forbidden = [text for text in index_changed_id_pairs(whole) if len(text) >= _WHOLE_ID]
        self.equalities = ValueReplacementConsistency(bindings, whole, self._shorts)
        self._heads = (*self._tokens.heads, *self._forbidden, *self.equalities.id_prefilter_texts)
        self._used: set[str] = set()
        self._chosen: dict[str, set[str]] = {}
        self._unchanged: set[str] = set()
        self._found = found
        self._filled: list[tuple[FilledGap, str, LeafPlace]] = []
        self._names: Names = tuple((pair.name, (pair.recorded.value,)) for pair in bindings.pairs)

    def depends_on_ids(self, pair: MessagePair) -> bool:
        return bool(self._shorts) or pair.contains_any(self._heads)

    def compare_messages(self, pair: MessagePair, fitted: MatchedMessageCache | None) -> Mismatch | None:
        """Compare two messages; `fitted` remembers them if nothing but their run variables counted."""
        if pair.texts:
            self._filled += pair.filled
            return None
        begun = len(self._filled)
        if (wrong := self.visit(pair.leaves)) is not None or fitted is None or not isinstance(pair.recorded, dict):
            return wrong
        texts = "\0".join(text for leaf in pair.leaves for text in leaf[:2] if isinstance(text, str))
        if texts and not self._may_hold_other_values(pair.leaves, texts):
            pair.remember(texts, self._filled[begun:])
            fitted.add_pair(pair)
        return None

    def _may_hold_other_values(self, leaves: list[Leaf], texts: str) -> bool:
        """Return whether leaves that fit may contain ids, short values, volatile fields or misplaced present values."""
        if self._shorts or "llmproxy.db" in texts or any(head in texts for head in self._heads):
            return True
        for recorded, present, place in leaves:
            if isinstance(recorded, dict) or self.has_volatile_json_fields(place):
                return True
            sides = [text for text in (recorded, present) if isinstance(text, str)]
            fields = list_volatile_fields_for_leaf(self.bindings, place) if sides else ()
            if any(can_text_contain_volatile_field(each, text) for text in sides for each in fields):
                return True
        find_gaps, changed = self.list_spans_that_may_differ, self.bindings.changed
        return any(True for _ in self.equalities.find_newly_equal_values(leaves, find_gaps, changed))

    def find_unequal(self, leaves: list[Leaf]) -> Mismatch | None:
        for each in self._filled:
            self.equalities.record_filled_gap(*each)
        merged = find_ids_no_longer_distinct(self._found)
        return merged or self.equalities.find_unequal(leaves, self.list_spans_that_may_differ, self._found)

    def build_fit(self) -> Fit:
        for chosen, recorded, _ in self._filled:
            before = chosen.gap.label or recorded[chosen.gap.start : chosen.gap.end]
            if chosen.option is None and chosen.text != before:
                self._used.add(chosen.gap.name)
            elif chosen.option is None:
                continue
            elif not chosen.option.unchanged:
                self._used.add(chosen.option.name)
                self._chosen.setdefault(before, set()).add(chosen.text)
            elif chosen.option.name in self.bindings.changed:
                self._unchanged.add(before)
        below = frozenset(self.equalities.below)
        return Fit(tuple(sorted(self._used)), tuple(self._found), self._chosen, self._unchanged, below)

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str] | Mismatch:
        names, left = dict[str, str](), set(present)
        for name in sorted(recorded):
            ids = self._find_known_id_spans(name, accepts=False)
            gaps = _add_nonoverlapping_gaps(ids, self._list_bound_value_gaps(name, place))
            if (told := self._find_present_name(name, gaps, left, place)) is None:
                if name in left and gaps:
                    return Mismatch(MisfitReason.LEAKED, place.path, name, "", gaps[0].name)
                mine, theirs = recorded.keys(), present.keys()
                return build_recorded_value_mismatch(place.path, sorted(mine - theirs), sorted(theirs - mine))
            names[name] = told
            left.remove(told)
        return build_recorded_value_mismatch(place.path, [], sorted(left)) if left else names

    def _find_present_name(self, name: str, gaps: list[VariableSpan], left: set[str], place: LeafPlace) -> str | None:
        """Return which remaining member has this name in this run: the expected one, else any that fits."""
        told = put_current_run_values_in_text(name, gaps)
        others = sorted(left) if len(left) <= _MOST_NAMES else [name] if name in left else []
        for other in dict.fromkeys([each for each in (told,) if each in left] + (others if gaps else [])):
            if not isinstance(aligned := match_text_with_gaps(name, gaps, other), TextDivergence):
                self._filled += ((each, name, place) for each in aligned)
                return other
        return None

    def visit_value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        told = self._compare_member(recorded, present, place)
        if told is False and not (type(recorded) is type(present) and recorded == present):
            return build_recorded_value_mismatch(place.path, recorded, present)
        return told if isinstance(told, Mismatch) else None

    def _compare_member(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | bool:
        """Compare leaves that are a short value or a volatile field as a whole; return whether they are one."""
        mine, theirs, option = str(recorded), str(present), None
        same = type(recorded) is type(present) and recorded == present
        short, field = self._find_short_value_at_leaf(recorded, place, present), self.find_volatile_field_at(place)
        if short is None and same and place.json:
            self.equalities.record_unchanged_member(recorded, place)
        told = (
            field is not None
            and _are_values_of_kind(field.kind, recorded, present)
            and not (field.is_id and self._identities.get_present_value(field.name, mine) != theirs)
        )
        # A number may be a field's and look like a short id by its member's name: the field is the more exact.
        if short is not None and same and not (told and not isinstance(recorded, str)):
            if short.identity:
                return Mismatch(MisfitReason.LEAKED, place.path, mine, short.present, short.name)
            option = PossibleSpanText(mine, is_isolated_in_text, short.name, unchanged=True)
        elif short is not None and short.equals_present(recorded, present):
            option = PossibleSpanText(theirs, is_isolated_in_text, short.name)
        elif not told:
            return False if short is None else build_recorded_value_mismatch(place.path, recorded, present)
        label = short.comparison_label if short is not None and option is not None else ""
        gap = VariableSpan(0, len(mine), name=field.name if field is not None else "", label=label)
        self._filled.append((FilledGap(gap, option, theirs), mine, place))
        return True

    def _find_short_value_at_leaf(self, value: object, place: LeafPlace, present: object = None) -> ShortValue | None:
        """Return the short value at a leaf; of several the one with this run's present value."""
        if not place.json or place.zone not in (Zone.ARGUMENTS, Zone.RESULT) or not self._shorts:
            return None
        tool = place.call.tool if place.call else ""
        found = find_short_values_at_leaf(self._shorts, tool, place.subpath, place.member, value)
        return next((each for each in found if each.present == str(present)), found[0] if found else None)

    def visit_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        if recorded == present and not self._may_hold_bound_value(recorded, place):
            return None
        if place.zone in (Zone.RESULT, Zone.SYSTEM) and not place.json:
            if place.zone is Zone.RESULT:
                mine, theirs = drop_llmproxy_files_from_ls(recorded, present)
            else:
                mine, theirs = drop_llmproxy_git_status_lines(recorded), drop_llmproxy_git_status_lines(present)
            if recorded != present and mine == theirs:
                self._used.add(LISTING)
            recorded, present = mine, theirs
        if (told := self._compare_member(recorded, present, place)) is not False:
            return told if isinstance(told, Mismatch) else None
        if place.zone is Zone.RESULT and (not place.json or "\n" in recorded):
            return self._compare_json_texts(recorded, present, place)
        return self._compare_plain_text(recorded, present, place)

    def _may_hold_bound_value(self, text: str, place: LeafPlace) -> bool:
        """Return whether a text equal in both may contain a leaked value, or one that stayed unchanged."""
        if self._shorts and (place.json or place.zone is Zone.RESULT):
            return True
        if list_volatile_fields_for_leaf(self.bindings, place) or self.has_volatile_json_fields(place):
            return True
        is_prompt = place.zone in (Zone.SYSTEM, Zone.USER)
        forms = self.bindings.forms_in_system_text if is_prompt else self.bindings.forms_outside_system_text
        return any(stem in text for stem in forms.stems) or any(head in text for head in self._heads)

    def _compare_json_texts(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        """Compare JSON inside a result as values; texts without any as they are."""
        must = self.has_volatile_json_fields(place) or (place.call is not None and self._shorts)
        if (recorded == present and not must) or ("{" not in recorded and "[" not in recorded):
            return self._compare_plain_text(recorded, present, place)
        mine, theirs = split_text_by_json(recorded), split_text_by_json(present)
        if len(mine) != len(theirs) or all(isinstance(each, str) for each in mine):
            return self._compare_plain_text(recorded, present, place)
        for one, other in zip(mine, theirs, strict=True):
            if isinstance(one, str) and isinstance(other, str):
                wrong = self._compare_plain_text(one, other, place)
            elif place.json:  # JSON in a text in JSON: no volatile field has a path in it
                wrong = self._compare_plain_text(dump(one).decode(), dump(other).decode(), place)
            else:
                wrong = self.descend(one, other, place.enter_json())
            if wrong is not None:
                return wrong
        return None

    def _compare_plain_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        gaps = self.list_spans_that_may_differ(recorded, place)
        if place.zone is not Zone.THINKING:
            for text in self._forbidden:
                if text in present and not any(
                    option.text == text and not option.leaks for gap in gaps for option in gap.options
                ):
                    name = next(each.name for each in self._identities if each.recorded == text)
                    return Mismatch(MisfitReason.LEAKED, place.path, text, "", name)
        if isinstance(aligned := match_text_with_gaps(recorded, gaps, present), TextDivergence):
            if aligned.leaked:
                gap = next(gap for gap in gaps if gap.start <= aligned.recorded <= gap.end)
                return Mismatch(MisfitReason.LEAKED, place.path, recorded[gap.start : gap.end], "", gap.name)
            return self.describe_text_difference(place, recorded, present, aligned.recorded, aligned.present)
        self._filled += ((each, recorded, place) for each in aligned)
        return None

    def describe_text_difference(self, place: LeafPlace, recorded: str, present: str, at: int, there: int) -> Mismatch:
        """Describe the first difference of two texts; name a short value at that position."""
        for short in self._shorts:
            before = recorded[max(0, at - len(short.recorded)) :]
            if short.recorded in before[: 2 * len(short.recorded) + 1] and short.present in present:
                return Mismatch(MisfitReason.SHORT, place.path, short.recorded, short.present, short.name)
        return Mismatch(MisfitReason.DIFFERENT, place.path, excerpt_line(recorded, at), excerpt_line(present, there))

    def list_spans_that_may_differ(self, recorded: str, place: LeafPlace) -> list[VariableSpan]:
        """Return the gaps of a recorded text: listings, then volatile fields, then ids, then run variables."""
        gaps = list[VariableSpan]()
        if place.zone is Zone.RESULT:  # fields are anchored behind listings
            values, elsewhere = self.bindings.values, "cwd" in self.bindings.changed
            gaps = list_varying_shell_output_spans(recorded, values, self.bindings.git_user, elsewhere=elsewhere)
        if fields := list_volatile_fields_for_leaf(self.bindings, place):
            call = place.call if place.zone is Zone.RESULT else None
            found = find_volatile_matches(fields, call, recorded, self._names, self.write_arguments_with_placeholders)
            gaps = _add_nonoverlapping_gaps(gaps, [self._build_volatile_gap(each) for each in found])
        gaps = _add_nonoverlapping_gaps(gaps, self._find_known_id_spans(recorded, accepts=place.zone is Zone.THINKING))
        return _add_nonoverlapping_gaps(gaps, self._list_bound_value_gaps(recorded, place))

    def _find_known_id_spans(self, recorded: str, *, accepts: bool) -> list[VariableSpan]:
        gaps = list[VariableSpan]()
        for token in self._tokens.find_matches(recorded):
            name, same = token.identity.name, recorded[token.start : token.end]
            options = [PossibleSpanText(token.present, is_isolated_in_text, name)]
            if token.present != same:
                options.append(PossibleSpanText(same, is_isolated_in_text, name, unchanged=True, leaks=not accepts))
            gaps.append(VariableSpan(token.start, token.end, tuple(options), name=name))
        return gaps

    def _list_bound_value_gaps(self, recorded: str, place: LeafPlace) -> list[VariableSpan]:
        return [
            VariableSpan(spot.start, spot.end, _list_gap_options(spot.forms), None, spot.forms[0].name, spot.in_answers)
            for spot in find_run_variables_in_text(self.bindings, recorded, place)
        ]

    def _build_volatile_gap(self, found: VolatileFieldTextMatch) -> VariableSpan:
        field = found.field
        if not field.is_id:
            return VariableSpan(found.start, found.end, free=IN_TEXT[field.kind], name=field.name)
        present = self._identities.get_present_value(field.name, found.value)
        options = [PossibleSpanText(present, is_isolated_in_text, field.name)] if present is not None else []
        if present is None or present != found.value:
            options.append(PossibleSpanText(found.value, is_isolated_in_text, field.name, unchanged=True, leaks=True))
        return VariableSpan(found.start, found.end, tuple(options), name=field.name)


@lru_cache(2_000)
def _list_gap_options(forms: tuple[RunValueSpelling, ...]) -> tuple[PossibleSpanText, ...]:
    """Return the texts possible in place of these forms: present values, longest first, then the recorded one."""
    options = [PossibleSpanText(text, form.border, form.name) for form in forms for text in form.present]
    options.sort(key=lambda option: -len(option.text))
    alike = any(option.text == forms[0].recorded for option in options)
    same = PossibleSpanText(forms[0].recorded, forms[0].border, forms[0].name, unchanged=True, same=alike)
    if forms[0].reach is SpellingSearchScope.AGENT or len({form.name for form in forms}) > 1:
        *options, same = (
            option._replace(readings=frozenset((form.name, form.way) for form in forms if option.text in form.present))
            for option in (*options, same)
        )
    return (*(option for option in options if option.text != same.text), same)


def _add_nonoverlapping_gaps(gaps: list[VariableSpan], more: list[VariableSpan]) -> list[VariableSpan]:
    if not gaps or not more:
        return gaps or more
    starts = [gap.start for gap in gaps]
    kept = []
    for each in more:
        n = bisect_right(starts, each.start)
        if not (n and gaps[n - 1].end > each.start) and not (n < len(gaps) and gaps[n].start < each.end):
            kept.append(each)
    return sorted([*gaps, *kept], key=lambda gap: gap.start)


def _are_values_of_kind(kind: str, *values: object) -> bool:
    return all(
        not isinstance(value, bool) and isinstance(value, (str, int, float)) and matches_field_kind(kind, str(value))
        for value in values
    )


def find_run_variables_in_text(bindings: Bindings, recorded: str, place: LeafPlace) -> list[ValueFormOccurrence]:
    if place.zone is Zone.SYSTEM and (place.member == "description" or _TOOLS.isdisjoint(place.list_steps())):
        return bindings.forms_in_system_text.find_matches(recorded)
    if place.zone is not Zone.USER:
        return bindings.forms_outside_system_text.find_matches(recorded)
    if not (spans := find_system_reminder_spans(recorded)):
        return bindings.forms_in_user_text.find_matches(recorded)
    return bindings.forms_in_system_text.find_matches(
        recorded, lambda form, at: form.reach is SpellingSearchScope.EVERYWHERE or is_in_any_span(spans, at)
    )


def rewrite_request_to_this_run(bindings: Bindings, tree: object) -> object:
    """Return a request's tree (as sent, or canonical) with present values in place of recorded ones."""
    if not isinstance(tree, dict):
        return tree
    reader, wrapped = RequestZoneMapper(), tree.get("request")
    made: dict[Any, Any] = {**tree, "request": {**wrapped}} if isinstance(wrapped, dict) else {**tree}
    for _, value, place in iterate_request_members(tree):
        into = made["request"] if place.parent is not None and place.parent.step else made
        into[place.step] = _rewrite_node(bindings, reader, value, place)
    return made


def rewrite_chat_message_with_bindings(bindings: Bindings, member: str, message: object) -> object:
    """Return one element of a body's member, rewritten alone: it contains its own role and form."""
    return _rewrite_node(bindings, RequestZoneMapper(), message, derive_request_member_zone({}, member).enter_child(0))


def _rewrite_node(bindings: Bindings, reader: RequestZoneMapper, node: object, place: LeafPlace) -> object:
    user = bindings.values["user"] if "user" in bindings.changed else None

    def rewrite_text(text: str, place: LeafPlace) -> str:
        spots = find_run_variables_in_text(bindings, text, place)
        changes = [(spot.start, spot.end, spot.forms[0].present[0]) for spot in spots]
        if user is not None and place.zone is Zone.RESULT:
            rows = find_listing_variable_spans(text, elsewhere=False, users=user)
            changes += [(part.start, part.end, user[1]) for part in rows if part.name == "user"]
        disjoint = list[tuple[int, int, str]]()
        for change in sorted(changes):
            if not disjoint or change[0] >= disjoint[-1][1]:
                disjoint.append(change)
        return replace_text_spans(text, disjoint)

    def rewrite_leaf(value: object, place: LeafPlace) -> object:
        return rewrite_text(value, place) if isinstance(value, str) else value

    return reader.transform_leaves(node, place, rewrite_leaf, rewrite_text)
