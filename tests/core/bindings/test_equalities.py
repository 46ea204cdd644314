"""A variable keeps which values are equal: coincidences planted on purpose, of which none may be served."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from llmproxy.core.bindings import Bindings, Fit, Misfit, Mismatch, RunVariable, create_expectations, fit_request

Json = Any
CASES = int(os.environ.get("CASES", "600"))
"""In the suite; `CASES=10000 uv run pytest tests/core/bindings/test_equalities.py` for more."""
DAYS = [f"2026-11-{day:02}" for day in range(10, 29)]
FOLDERS = ["/tmp/a", "/srv/b", "/home/kim/work", "/var/data/job", "/data/c d"]
TOKENS = ["order-4711-a", "order-4712-b", "job_98ab12cd", "job_98ab12ce", "run-2026x77"]
NUMBERS = [str(n) for n in range(3, 40)]
POOLS = {"day": DAYS, "folder": FOLDERS, "token": TOKENS, "number": NUMBERS}
NAMES = {"day": ("date",), "folder": ("cwd", "tmp"), "token": ("order", "job"), "number": ("task.id",)}


class Place(NamedTuple):
    """Where an entity is named: how, and by which kind of text."""

    kind: str
    entity: int


class Case(NamedTuple):
    """A conversation of places, and the value of each entity in the two runs."""

    places: list[Place]
    recorded: dict[tuple[str, int], str]
    present: dict[tuple[str, int], str]
    """By place: what stands there now."""


def _write(places: list[Place], values: list[str]) -> Json:
    """Return a request that names each place's value: in system text, in the user's words, in arguments and results."""
    system, user = ["You help."], ["Look."]
    calls: list[tuple[str, Json, Json]] = []
    for n, (place, value) in enumerate(zip(places, values, strict=True)):
        if place.kind == "day":
            system.append(f"Day {n} is {value}.")
        elif place.kind == "number":
            calls.append(("get_task", {"task_id": int(value)}, {"task_id": int(value), "place": f"p{n}"}))
        elif n % 2:
            user.append(f"Compare {value}{'/x' if place.kind == 'folder' else ''} at {n}.")
        else:
            calls.append(("read", {"what": value}, {"read": f"p{n}"}))
    messages: list[Json] = [{"role": "user", "content": " ".join(user)}]
    for n, (tool, asked, told) in enumerate(calls):
        call = {"id": f"@{n}", "type": "function", "function": {"name": tool, "arguments": json.dumps(asked)}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"@{n}", "content": json.dumps(told)})
    return {"model": "m", "messages": [{"role": "system", "content": " ".join(system)}, *messages]}


def _make(rng: random.Random) -> tuple[list[Place], Bindings, dict[tuple[str, int], str], dict[tuple[str, int], str]]:
    """Return places of declared entities (the first of a kind) and of others, with the values of both runs."""
    recorded, present, before, now = {}, {}, [], []
    for kind, pool in POOLS.items():
        drawn = rng.sample(pool, min(len(pool), 5))
        for n, name in enumerate(NAMES[kind]):
            recorded[kind, n], present[kind, n] = drawn[n], drawn[n + 2]
            before.append(RunVariable(name, drawn[n]))
            now.append(RunVariable(name, drawn[n + 2]))
        recorded[kind, 9] = present[kind, 9] = drawn[4]  # nobody declared it
    places = [Place(kind, entity) for kind, entity in recorded for _ in range(rng.randint(1, 3))]
    rng.shuffle(places)
    return places, Bindings(before, now), recorded, present


def _break(
    rng: random.Random, places: list[Place], recorded: dict[tuple[str, int], str], present: dict[tuple[str, int], str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield pairs of recorded and present values by place in which equal became different, or different equal."""
    was, now = [recorded[place] for place in places], [present[place] for place in places]
    target = rng.choice([place for place in places if place.entity != 9])
    spots = [n for n, place in enumerate(places) if place == target]
    if len(spots) > 1:
        stays = rng.choice(spots)
        yield "one place stays", was, [was[n] if n == stays else value for n, value in enumerate(now)]
    # What stood elsewhere under no variable is what the variable is now.
    others = [n for n, place in enumerate(places) if place.kind == target.kind and place.entity == 9]
    merged = present[target]
    yield (
        "a present value stood there already",
        [merged if n in others else value for n, value in enumerate(was)],
        [merged if n in others else value for n, value in enumerate(now)],
    )


def test_what_is_renamed_as_a_whole_fits() -> None:
    """The control: the same conversations with every place of every variable renamed are hits."""
    rng = random.Random(1)
    for n in range(CASES // 10):
        places, bindings, recorded, present = _make(rng)
        before, now = (_write(places, [world[place] for place in places]) for world in (recorded, present))
        expectations = create_expectations(bindings)
        for _ in range(3):
            result = fit_request(bindings, before, now, None, expectations)
            assert isinstance(result, Fit), (n, str(result))


def test_no_coincidence_is_served() -> None:
    """Whatever stays or becomes equal: a miss, also when the messages are known."""
    rng = random.Random(2)
    seen = dict[str, int]()
    for n in range(CASES):
        places, bindings, recorded, present = _make(rng)
        for why, was, now in _break(rng, places, recorded, present):
            before, asked = _write(places, was), _write(places, now)
            expectations = create_expectations(bindings)
            for again in range(3):
                result = fit_request(bindings, before, asked, None, expectations)
                assert isinstance(result, Mismatch), (n, again, why, before, asked)
            seen[why] = seen.get(why, 0) + 1
    assert min(seen.values()) > CASES // 4


def _system(text: str, question: str = "Is it due?") -> Json:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": question}]}


DATES = Bindings([RunVariable("date", "2026-11-25")], [RunVariable("date", "2026-11-26")])
PATHS = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/b")])
TASKS = Bindings([RunVariable("task.id", "7")], [RunVariable("task.id", "9")])


def _about(asked: int, *told: int) -> Json:
    call = {"id": "@0", "type": "function", "function": {"name": "get", "arguments": json.dumps({"task_id": asked})}}
    result = {"role": "tool", "tool_call_id": "@0", "content": json.dumps([{"task_id": each} for each in told])}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}, result]}


BRANCHES = Bindings([RunVariable("git_branch", "main")], [RunVariable("git_branch", "topic")])
FOLDERS_OF_ONE = Bindings(
    [RunVariable("cwd", "/tmp/a"), RunVariable("tmp", "/tmp/b")],
    [RunVariable("cwd", "/srv/x"), RunVariable("tmp", "/srv/x")],
)


@pytest.mark.parametrize(("bindings", "recorded", "present", "why"), [
    (DATES, _system("Today is 2026-11-25. The contract ends on 2026-11-25."),
     _system("Today is 2026-11-26. The contract ends on 2026-11-25."), Misfit.UNEVEN),
    (DATES, _system("Today is 2026-11-25. The contract ends on 2026-11-26."),
     _system("Today is 2026-11-26. The contract ends on 2026-11-26."), Misfit.MERGED),
    (DATES, _system("Today is 2026-11-25.", "Is 2026-11-26 today?"),
     _system("Today is 2026-11-26.", "Is 2026-11-26 today?"), Misfit.MERGED),
    (PATHS, _system("", "Compare /tmp/a/x with /srv/b/x"), _system("", "Compare /srv/b/x with /srv/b/x"), Misfit.MERGED),
    (PATHS, _system("In /tmp/a.", "Read /tmp/a/x"), _system("In /srv/b.", "Read /tmp/a/x"), Misfit.UNEVEN),
    (TASKS, _about(7, 7), _about(9, 7), Misfit.UNEVEN),
    (TASKS, _about(7, 7, 9), _about(9, 9, 9), Misfit.MERGED),
    (FOLDERS_OF_ONE, _system("", "cp /tmp/a /tmp/b"), _system("", "cp /srv/x /srv/x"), Misfit.MERGED),
    # In results and system text a path may stay as it was recorded: that is what a committed file says.
    (PATHS, _system("In /tmp/a. Notes of /tmp/a/old."), _system("In /srv/b. Notes of /tmp/a/old."), None),
    # "November 2026" says the same on both days; on the branch "topic" the main branch is still called "main".
    (DATES, _system("Today is 2026-11-25, in November 2026."), _system("Today is 2026-11-26, in November 2026."), None),
    (BRANCHES, *(_system(f"Current branch: {now}\nMain branch: main\nStatus:\n(clean)") for now in ("main", "topic")),
     None),
])  # fmt: skip
def test_what_stays_or_becomes_equal_is_another_question(
    bindings: Bindings, recorded: Json, present: Json, why: Misfit | None
) -> None:
    """Each that is refused was a hit once, and its answer wrong; each that fits says the same of something else."""
    result = fit_request(bindings, recorded, present)
    assert (result.why if isinstance(result, Mismatch) else None) is why, str(result)
