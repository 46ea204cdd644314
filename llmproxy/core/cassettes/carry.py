"""A cassette from one store into another, whole: between a file and a team's server, or two files.

What is compared and carried are the live recordings, of all samples, with their slots. A cassette that is there already and says
something else is replaced only where that was asked for, in one transaction; what it held stays as replaced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from llmproxy.core.forks.table import CassetteExists, fork_of
from llmproxy.core.keys.normalize import TAG
from llmproxy.core.store.queries import put_slots, slots_of
from llmproxy.core.store.store import Addition, Store
from llmproxy.core.traffic.advice import look, quote_word
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound, SettingsError
from llmproxy.store_server import show_store


class Carried(NamedTuple):
    interactions: int
    replaced: int
    """Live recordings that the cassette had there before."""
    same: bool
    """It was there already, and nothing was written."""


def carry(source: Store, target: Store, name: str, new: str, *, instead: bool, holder: str) -> Carried:
    """Bring cassette `name` of one store into another one as `new`; `instead` of what it holds there.

    Raises:
        CassetteNotFound: nothing is recorded under that name.
        CassetteExists: there is another cassette of the new name, and it is not to be replaced.
        SettingsError: it cannot be carried as it is.
        CassetteBusy: somebody records it there just now.

    """
    found = [replace(each, cassette=new) for each in source.interactions(name)]
    if not found:
        raise CassetteNotFound(
            f"The store {show_store(source.path)} holds nothing of cassette {name}.", hint=look("ls", source.path)
        )
    _check(source, name, found)
    slots, there = slots_of(source, name), list(target.interactions(new))
    ours, theirs = Counter(map(_content, found)), Counter(map(_content, there))
    if there and ours == theirs and slots == slots_of(target, new):
        return Carried(len(found), 0, same=True)
    if there and not instead:
        raise CassetteExists(
            f"llmproxy: {show_store(target.path)} has another cassette {new!r}: {(ours - theirs).total()} of {len(found)} recordings "
            f"are new, {(theirs - ours).total()} of {len(there)} there are not among them.",
            hint="Replace it with --replace, or give this one another name: --as NAME",
        )
    samples = sorted({each.sample for each in found})
    for sample in samples:
        target.begin(new, sample, exclusive=True, holder=holder)
    clean: set[int] = set()
    try:
        target.add_all([Addition(each) for each in found], instead_of=new)
        if slots or slots_of(target, new):
            put_slots(target, new, slots)
        clean = {sample for sample in samples if source.closed_cleanly(name, sample)}
    finally:
        for sample in samples:
            target.end(new, sample, holder, clean=sample in clean)
    return Carried(len(found), len(there), same=False)


def _content(each: Interaction) -> Interaction:
    """Return all that two recordings must share to be one."""
    return replace(each, id=None)


def _check(source: Store, name: str, found: list[Interaction]) -> None:
    """Raise SettingsError for a cassette that would not replay there as it does here."""
    if any(not each.key.startswith(TAG) for each in found):
        raise SettingsError(
            f"cassette {name} was recorded by an older version, with keys of its time.",
            hint=f"Bring them up to date first: {look('verify --rekey', source.path)}",
        )
    for sample in {each.sample for each in found}:
        if (fork := fork_of(source, name, sample)) is not None and fork.overrides.tools:
            raise SettingsError(
                f"cassette {name} is a fork whose results of tools are overridden, and that stays in files.",
                hint=f"A file can be sent: {look(f'export fork.yaml --cassette {quote_word(name)}', source.path)}",
            )
