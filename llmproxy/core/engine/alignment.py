"""Two recordings of one run, made in two places.

The older one in the words of the newer, so that a comparison tells only what differs.

recordings, other recordings, volatile fields -> the former as a replay would have given them under the latter's folder,
day and ids (`Alignment`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    Identities,
    Mismatch,
    VolatileField,
    bound_key,
    fit_request,
    read_run_variables,
    rewrite_answer,
)
from llmproxy.core.cassettes.stand_ins import rename
from llmproxy.core.keys.normalize import Canonical, canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.store.rederive import route_of
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import RefusedError


class Alignment(NamedTuple):
    """Recordings in the words of others."""

    interactions: list[Interaction]
    names: tuple[str, ...]
    """Run variables and volatile fields that were exchanged, sorted."""


def align(
    old: Sequence[Interaction],
    new: Sequence[Interaction],
    slots: Sequence[VolatileField],
    rules: Rules,
    upstreams: Mapping[str, str],
) -> Alignment:
    """Return the older recordings in the words of the newer; of what nothing was declared stays as it is."""
    waiting = defaultdict(list)
    for n, each in enumerate(new):
        if (canonical := _canonical(each, rules, upstreams)) is not None:
            waiting[bound_key(canonical)].append((n, each, canonical))
    same = {each.key for each in old} & {each.key for each in new}
    known, names = Identities(), set[str]()
    used = {n for n, each in enumerate(new) if each.key in same}
    told = []
    for one in old:
        made = one
        canonical = _canonical(one, rules, upstreams) if one.key not in same else None
        for n, other, theirs in waiting[bound_key(canonical)] if canonical is not None else ():
            if n in used or canonical is None:
                continue
            fit = fit_between(one, other, slots, canonical, theirs, known)
            if isinstance(fit, Fit) and (found := _as_asked(one, other, slots, fit, known)) is not None:
                used.add(n)
                names |= set(fit.names)
                made = found
                break
        else:
            made = one if one.key in same else _rename_folders(one, new, names)
        told.append(made)
    return Alignment(told, tuple(sorted(names)))


def compare_requests(
    one: Interaction, other: Interaction, slots: Sequence[VolatileField], rules: Rules, upstreams: Mapping[str, str]
) -> Fit | Mismatch | None:
    """Return whether the first would answer what the second asked, under its run variables; None for
    what is no JSON.
    """
    mine, theirs = _canonical(one, rules, upstreams), _canonical(other, rules, upstreams)
    return None if mine is None or theirs is None else fit_between(one, other, slots, mine, theirs, None)


def fit_between(
    one: Interaction,
    other: Interaction,
    slots: Sequence[VolatileField],
    mine: Canonical,
    theirs: Canonical,
    known: Identities | None,
) -> Fit | Mismatch:
    """Hold one recording against the request of another."""
    return fit_request(_table(one, other, slots), mine.tree, theirs.tree, known)


def _table(one: Interaction, other: Interaction, slots: Sequence[VolatileField] = ()) -> Bindings:
    return Bindings(read_run_variables(one.run_variables), read_run_variables(other.run_variables), slots)


def _as_asked(
    one: Interaction, other: Interaction, slots: Sequence[VolatileField], fit: Fit, known: Identities
) -> Interaction | None:
    response = rewrite_answer(_table(one, other, slots), fit, one.response, known)
    if isinstance(response, Mismatch):
        return None
    for each in fit.identities:
        known.record(each)
    return replace(one, key=other.key, request=other.request, response=response)


def _rename_folders(one: Interaction, new: Sequence[Interaction], names: set[str]) -> Interaction:
    """Return a recording that fits none of the others, with the folders of their run."""
    other = next((each for each in new if each.run_variables), None)
    if other is None or not one.run_variables:
        return one
    renamed = rename(one, bindings := _table(one, other))
    if renamed.request != one.request or renamed.response != one.response:
        names |= bindings.changed
    return renamed


def _canonical(one: Interaction, rules: Rules, upstreams: Mapping[str, str]) -> Canonical | None:
    try:
        canonical = canonicalize(one.request, route_of(one, upstreams), rules, lambda _: None)
    except RefusedError:
        return None
    return canonical if canonical.kind == "json" else None
