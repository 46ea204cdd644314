"""Near duplicates: requests that ask something else in a value that merely looks as if it varied from run to run.

Values of every volatile kind are planted as *literals* into a random run: they are part of what is asked, of what a tool was asked and of what it
answered, equal in the recorded run and in this one. A duplicate is this run's request with one of them changed: into another of its kind, into
a value that this run (or the recorded one) has elsewhere, or two of them swapped. None may ever be served.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from llmproxy.core.bindings import Bindings, RunVariable, VolatileField
from tests.support.renamings import REQUESTS, SLOTS, Run, Text, Turn, World

Json = Any


class Planted(str):
    __slots__ = ()


TWINS: tuple[tuple[str, str], ...] = (
    ("1f3a9c0de4b5a69788776655443322110ffeeddc", "2f3a9c0de4b5a69788776655443322110ffeeddc"),
    ("98e1ef2", "98e1ef3"),
    ("5f0c1e9a-1111-4222-8333-0123456789ab", "5f0c1e9a-1111-4222-8333-0123456789ac"),
    ("2025-03-04", "2025-03-05"),
    ("March 4, 2025", "March 5, 2025"),
    ("Tue Mar 04 2025", "Wed Mar 05 2025"),
    ("3/4/2025", "3/5/2025"),
    ("10:30:01", "10:30:02"),
    ("1741084201", "1741084202"),
    ("2 days", "3 days"),
    ("12.5 s", "12.6 s"),
    ("/etc/hosts", "/etc/passwd"),
    ("./src/main.py", "./src/name.py"),
    ("~/notes.txt", "~/other.txt"),
    ("C:\\temp\\a.txt", "C:\\temp\\b.txt"),
    ("/tmp/tmp1a2b3c4d", "/tmp/tmp1a2b3c4e"),
    ("$12.50", "$12.60"),
    ("7", "12"),
    ("order 7", "order 8"),
    ("port 8080", "port 8081"),
    ("pid 3222", "pid 3223"),
    ("total 24", "total 25"),
    ("app", "ann"),
    ("user kim", "user lee"),
    ("branch main", "branch next"),
    ("kim@example.org", "lee@example.org"),
    ("10.0.0.7", "10.0.0.8"),
    ("v1.2.3", "v1.2.4"),
    ("https://example.org/x?id=7", "https://example.org/x?id=8"),
    ("chunk_98e1ef", "chunk_98e1f0"),
    ("24", "25"),
    ("ord-2025-c3", "ord-2025-c4"),
)
"""A value, and another of its kind."""
_TWINS = dict(TWINS)


RECORDED = (RunVariable("user", "kim"), RunVariable("host", "box"), RunVariable("git_branch", "main"), RunVariable("task.id", "7"),
            RunVariable("service", "app"), RunVariable("order.id", "ord-2025-a1"))  # fmt: skip
PRESENT = (RunVariable("user", "ann"), RunVariable("host", "ci"), RunVariable("git_branch", "next"), RunVariable("task.id", "12"),
           RunVariable("service", "ann"), RunVariable("order.id", "ord-2026-b2"))  # fmt: skip
"""What else both runs declared: short values that stand anywhere by chance."""


def bind(recorded: World, present: World, slots: Sequence[VolatileField] = SLOTS) -> Bindings:
    return Bindings([*recorded.run_variables(), *RECORDED], [*present.run_variables(), *PRESENT], slots)


def plant(rng: random.Random, run: Run) -> Run:
    """Return a run with literals that look volatile in what the user typed, in arguments and in results."""
    turns = [_planted_turn(rng, turn) for turn in run.turns]
    return replace(run, question=[*run.question, " about ", *_some(rng, 5)], turns=turns)


def _some(rng: random.Random, most: int) -> Text:
    text: Text = []
    for value, _ in rng.sample(TWINS, rng.randint(2, most)):
        text += [rng.choice((" ", " the ", " of ", ": ")), Planted(value)]
    return [*text, " ok"]


def _planted_turn(rng: random.Random, turn: Turn) -> Turn:
    said = _some(rng, 3)
    members: Text = [
        '{"seats": ', Planted("7"), ', "owner": "', Planted("app"), '", "total": ', Planted("24"), ', "sha": "', Planted("98e1ef2"), '"}'
    ]  # fmt: skip
    result = turn.result

    def write(world: World) -> str:
        text = result(world)
        if text.startswith("{"):  # one JSON value: what is planted are members of it
            return f'{text[:-1]}, "of": {json.dumps(world.write(said))}, {world.write(members)[1:]}'
        return text + ("" if text.endswith("\n") else "\n") + world.write(said) + "\n" + world.write(members)

    arguments = {name: [*text, " for", *_some(rng, 2)] for name, text in turn.arguments.items()}
    arguments |= {"seats": [Planted("7")], "user": [Planted("app")]}
    return Planter(turn.tool, arguments, write, [said, members])


class Planter(Turn):
    def __init__(self, tool: str, arguments: dict[str, Text], result: Callable[[World], str], said: list[Text]) -> None:
        super().__init__(tool, arguments, result)
        self.said = said


class Duplicate(NamedTuple):
    why: str
    tree: Json


def list_duplicates(
    rng: random.Random, operation: str, run: Run, recorded: World, present: World
) -> Iterator[Duplicate]:
    """Yield requests of this run that ask something else than `run` does."""
    build = REQUESTS[operation]
    places = [(text, n) for text in _planted_texts(run) for n, part in enumerate(text) if isinstance(part, Planted)]
    known = [*present.values.values(), *recorded.values.values(), *(each.value for each in (*PRESENT, *RECORDED))]
    made = 0
    while made < 20 and places:
        text, n = rng.choice(places)
        before = str(text[n])
        kind = rng.choice(("twin", "twin", "known", "swap"))
        if kind == "twin":
            other, also = _TWINS[before], None
        elif kind == "known":
            other, also = rng.choice(known), None
        else:
            also = rng.choice(places)
            other = str(also[0][also[1]])
        if other == before:
            continue
        with_change = [(text, n, other), *([(also[0], also[1], before)] if also is not None else [])]
        yield Duplicate(f"{kind}: {before} -> {other}", _build(build, run, present, with_change))
        made += 1


def _planted_texts(run: Run) -> list[Text]:
    texts = [run.question]
    for turn in run.turns:
        texts += turn.arguments.values()
        if isinstance(turn, Planter):
            texts += turn.said
    return texts


def _build(build: Any, run: Run, world: World, changes: list[tuple[Text, int, str]]) -> Json:
    before = [(text, n, text[n]) for text, n, _ in changes]
    for text, n, other in changes:
        text[n] = Planted(other)
    try:
        return copy.deepcopy(build(run, world))
    finally:
        for text, n, value in before:
            text[n] = value


def prefixes(run: Run) -> Iterator[Run]:
    """Yield the run up to each of its requests, the first with no call."""
    for n in range(len(run.turns) + 1):
        yield replace(run, turns=run.turns[:n])


def differing(one: Json, other: Json, path: str = "$") -> Iterator[str]:
    """Yield the paths of the leaves in which two requests differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from differing(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for n, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differing(mine, theirs, f"{path}[{n}]")
    elif one != other:
        yield path
