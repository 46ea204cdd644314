"""Random conversations: renamed one to one they replay as the renamed recording, and what asks something else is a miss."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    MatchedMessageCache,
    MisfitReason,
    Mismatch,
    RunVariable,
    build_value_independent_key,
    match_requests_with_bindings,
    rewrite_answer,
)
from llmproxy.core.bindings.volatile_learning import infer_volatile_fields_from_pair
from llmproxy.core.keys.normalize import canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import RoutedRequest, route
from llmproxy.core.traffic.interaction import Request
from tests.support.duplicates import bind, differing, list_duplicates, plant, prefixes
from tests.support.messages import used, user as said_by
from tests.support.narrowing import narrow
from tests.support.renamings import (
    REQUESTS,
    SLOTS,
    Forgetful,
    Run,
    World,
    is_named_again,
    list_alike,
    make_run,
    make_world,
    said,
    swap_ids,
    write_answer,
)

SEEDS = range(24)
"""Each in five dialects, whole and streamed; `scripts/lab/bindings` runs ten thousand."""


def make_worlds(rng: random.Random) -> tuple[Run, list[str], World, World, Bindings]:
    run, made = make_run(rng)
    recorded, present = make_world(rng, made), make_world(rng, made)
    return run, made, recorded, present, Bindings(recorded.run_variables(), present.run_variables(), SLOTS)


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_renamed_run_gets_the_renamed_answer(operation: str) -> None:
    """Whatever the folders, days and ids: what the tools made this time stands in the answer, and nothing of the recorded run."""
    differed = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = make_worlds(random.Random(seed))
        if seed % 4 == 0:
            present = swap_ids(made, recorded, present)
        fit = match_requests_with_bindings(
            bindings, REQUESTS[operation](run, recorded), REQUESTS[operation](run, present)
        )
        assert isinstance(fit, Fit), (seed, str(fit))
        for stream in (False, True):
            worlds = (recorded, present)
            before, wanted = (write_answer(operation, run, world, stream=stream, seed=seed) for world in worlds)
            if not before.body:
                continue
            got = rewrite_answer(bindings, fit, before)
            assert not isinstance(got, Mismatch), (seed, stream, str(got))
            assert said(operation, got) == said(operation, wanted), (seed, stream)
            differed += said(operation, before) != said(operation, wanted)
    assert differed > len(SEEDS)


@pytest.mark.parametrize("operation", REQUESTS)
def test_what_is_not_one_to_one_fits_nothing(operation: str) -> None:
    """Two recorded ids that are one now, or one that became two, are a miss."""
    seen = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = make_worlds(random.Random(seed))
        for one, other in list_alike(made):
            joined = World({**present.values, one: present.values[other]}, present.shuffled)
            parted = World({**recorded.values, one: recorded.values[other]}, recorded.shuffled)
            for before, now in ((recorded, joined), (parted, present)):
                result = match_requests_with_bindings(
                    bindings, REQUESTS[operation](run, before), REQUESTS[operation](run, now)
                )
                assert narrow(Mismatch, result).why is MisfitReason.NOT_ONE_TO_ONE, (seed, one, other, str(result))
                seen += 1
    assert seen > 3


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_value_that_was_left_behind_is_a_leak(operation: str) -> None:
    """A later turn that names an id of the recorded run is a miss that says so."""
    seen = 0
    for seed in SEEDS:
        run, made, recorded, present, bindings = make_worlds(random.Random(seed))
        for name in made:
            if not is_named_again(run, name):
                continue
            leaky = Forgetful(present, name, recorded.values[name])
            result = match_requests_with_bindings(
                bindings, REQUESTS[operation](run, recorded), REQUESTS[operation](run, leaky)
            )
            assert narrow(Mismatch, result).why is MisfitReason.LEAKED, (seed, name, str(result))
            seen += 1
    assert seen > 2


TARGETS = {
    "chat.completions": "/v1/chat/completions", "messages": "/anthropic/v1/messages", "responses": "/v1/responses",
    "generateContent": "/gemini/v1beta/models/gemini-3:generateContent", "converse": "/bedrock/model/nova/converse",
}  # fmt: skip


@pytest.mark.parametrize("operation", TARGETS)
def test_the_bound_key_is_the_same_in_every_world(operation: str) -> None:
    """Nothing that can be bound is in the key that finds candidates, and another number of turns is another key."""
    where = route(TARGETS[operation], (), {})
    for seed in SEEDS[:20]:
        run, _, recorded, present, _ = make_worlds(random.Random(seed))
        keys = {_key(where, REQUESTS[operation](run, world)) for world in (recorded, present)}
        assert len(keys) == 1, seed
        if run.turns:
            shorter = Run(run.system, run.question, run.turns[:-1])
            assert _key(where, REQUESTS[operation](shorter, recorded)) not in keys


def _key(where: RoutedRequest, body: object) -> str:
    request = Request("POST", "/x", (), json.dumps(body).encode())
    return build_value_independent_key(canonicalize_request(request, where, Rules(), lambda _: None))


SEEDS_DUPLICATES = (1, 5)
"""`scripts/lab/bindings` takes thousands."""


@pytest.mark.parametrize("operation", REQUESTS)
def test_nothing_that_asks_something_else_is_served(operation: str) -> None:
    """With the volatile fields of the cassette and with learned ones, for the first and the last request of a run; compared once and again."""
    learned = 0
    for seed in SEEDS_DUPLICATES:
        rng = random.Random(seed)
        run, made = make_run(rng)
        run = plant(rng, run)
        recorded, present = make_world(rng, made), make_world(rng, made)
        parts = list(prefixes(run))
        for part in (parts[0], parts[-1]):
            before, now = (REQUESTS[operation](part, world) for world in (recorded, present))
            lessons = infer_volatile_fields_from_pair(bind(recorded, present, ()), before, now)
            assert not isinstance(lessons, Mismatch), str(lessons)
            learned += len(lessons)
            for bindings in (bind(recorded, present), bind(recorded, present, [each.field for each in lessons])):
                fitted = MatchedMessageCache()
                for _ in range(3):
                    fit = match_requests_with_bindings(bindings, before, now, None, fitted)
                    assert isinstance(fit, Fit), (seed, str(fit))
                for each in list_duplicates(rng, operation, part, recorded, present):
                    result = match_requests_with_bindings(bindings, before, each.tree, None, fitted)
                    assert isinstance(result, Mismatch), (seed, each.why)
                    places = list(differing(now, each.tree))
                    assert any(result.path.startswith(place) for place in places), (each.why, str(result), places)
    assert learned > 0


Json = Any
CASES = int(os.environ.get("CASES", "300"))
"""In the suite; `CASES=10000 uv run pytest tests/core/bindings/test_property.py` for more."""
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
    messages = [said_by(" ".join(user))]
    for n, (tool, asked, told) in enumerate(calls):
        messages += used(tool, asked, json.dumps(told), f"@{n}")
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
    was, now = ([present[target] if n in others else value for n, value in enumerate(values)] for values in (was, now))
    yield "a present value stood there already", was, now


def test_what_is_renamed_as_a_whole_fits() -> None:
    """The control: the same conversations with every place of every variable renamed are hits."""
    rng = random.Random(1)
    for n in range(CASES // 10):
        places, bindings, recorded, present = _make(rng)
        before, now = (_write(places, [world[place] for place in places]) for world in (recorded, present))
        fitted = MatchedMessageCache()
        for _ in range(3):
            result = match_requests_with_bindings(bindings, before, now, None, fitted)
            assert isinstance(result, Fit), (n, str(result))


def test_no_coincidence_is_served() -> None:
    """Whatever stays or becomes equal: a miss, also when the messages are known."""
    rng = random.Random(2)
    seen = dict[str, int]()
    for n in range(CASES):
        places, bindings, recorded, present = _make(rng)
        for why, was, now in _break(rng, places, recorded, present):
            before, asked = _write(places, was), _write(places, now)
            fitted = MatchedMessageCache()
            for again in range(3):
                result = match_requests_with_bindings(bindings, before, asked, None, fitted)
                assert isinstance(result, Mismatch), (n, again, why, before, asked)
            seen[why] = seen.get(why, 0) + 1
    assert min(seen.values()) > CASES // 4


def _system(text: str, question: str = "Is it due?") -> Json:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": question}]}


DATES = Bindings([RunVariable("date", "2026-11-25")], [RunVariable("date", "2026-11-26")])
PATHS = Bindings([RunVariable("cwd", "/tmp/a")], [RunVariable("cwd", "/srv/b")])
TASKS = Bindings([RunVariable("task.id", "7")], [RunVariable("task.id", "9")])


def _about(asked: int, *told: int) -> Json:
    return {"messages": used("get", {"task_id": asked}, json.dumps([{"task_id": each} for each in told]))}


def _days(recorded: str, present: str) -> Bindings:
    """Return bindings of local and UTC day: ``25 24`` and ``26``, both of November."""
    before, now = (RunVariable("date", *(f"2026-11-{day}" for day in days.split())) for days in (recorded, present))
    return Bindings([before], [now])


def _ends(*days: int) -> Json:
    return _system("Today is 2026-11-{}. The contract ends on 2026-11-{}.".format(*days))


def _chooses(member: str, day: int) -> Json:
    return {"tools": [{"name": "book", "input_schema": {"properties": {"on": {member: f"2026-11-{day}"}}}}]}


FOLDER_TWICE = Bindings(
    [RunVariable("cwd", "/tmp/a"), RunVariable("home", "/tmp/a")],
    [RunVariable("cwd", "/srv/x"), RunVariable("home", "/tmp/a")],
)
BRANCHES = Bindings([RunVariable("git_branch", "main")], [RunVariable("git_branch", "topic")])
FOLDERS_OF_ONE = Bindings(
    [RunVariable("cwd", "/tmp/a"), RunVariable("tmp", "/tmp/b")],
    [RunVariable("cwd", "/srv/x"), RunVariable("tmp", "/srv/x")],
)


@pytest.mark.parametrize(("bindings", "recorded", "present", "why"), [
    (DATES, _system("Today is 2026-11-25. The contract ends on 2026-11-25."),
     _system("Today is 2026-11-26. The contract ends on 2026-11-25."), MisfitReason.UNEVEN),
    (DATES, _system("Today is 2026-11-25. The contract ends on 2026-11-26."),
     _system("Today is 2026-11-26. The contract ends on 2026-11-26."), MisfitReason.MERGED),
    (DATES, _system("Today is 2026-11-25.", "Is 2026-11-26 today?"),
     _system("Today is 2026-11-26.", "Is 2026-11-26 today?"), MisfitReason.MERGED),
    (PATHS, _system("", "Compare /tmp/a/x with /srv/b/x"), _system("", "Compare /srv/b/x with /srv/b/x"), MisfitReason.MERGED),
    (PATHS, _system("In /tmp/a.", "Read /tmp/a/x"), _system("In /srv/b.", "Read /tmp/a/x"), MisfitReason.UNEVEN),
    (TASKS, _about(7, 7), _about(9, 7), MisfitReason.UNEVEN),
    (TASKS, _about(7, 7, 9), _about(9, 9, 9), MisfitReason.MERGED),
    (FOLDERS_OF_ONE, _system("", "cp /tmp/a /tmp/b"), _system("", "cp /srv/x /srv/x"), MisfitReason.MERGED),
    (_days("25", "26 25"), _ends(25, 25), _ends(26, 25), MisfitReason.UNEVEN),
    (_days("20", "26 25"), _ends(20, 20), _ends(26, 25), MisfitReason.NOT_ONE_TO_ONE),
    (_days("25 24", "29"), _ends(25, 24), _ends(29, 29), MisfitReason.NOT_ONE_TO_ONE),
    (_days("25 24", "29 28"), _ends(25, 24), _ends(28, 29), MisfitReason.DIFFERENT),
    (_days("25 24", "29 28"), _ends(25, 24), _ends(29, 28), None),
    (_days("25 24", "29"), _ends(24, 24), _ends(29, 29), None),
    (DATES, _chooses("description", 25), _chooses("description", 26), None),
    (DATES, _chooses("const", 25), _chooses("const", 26), MisfitReason.DIFFERENT),
    (FOLDER_TWICE, _system("", "mv /tmp/a/x /tmp/a/y"), _system("", "mv /srv/x/x /tmp/a/y"), MisfitReason.AMBIGUOUS),
    (FOLDER_TWICE, _system("", "mv /tmp/a/x /tmp/a/y"), _system("", "mv /srv/x/x /srv/x/y"), None),
    (FOLDER_TWICE, _system("In /tmp/a, of /tmp/a", "rm x"), _system("In /srv/x, of /tmp/a", "rm x"), None),
    # In results and system text a path may stay as it was recorded: that is what a committed file says.
    (PATHS, _system("In /tmp/a. Notes of /tmp/a/old."), _system("In /srv/b. Notes of /tmp/a/old."), None),
    # "November 2026" says the same on both days; on the branch "topic" the main branch is still called "main".
    (DATES, _system("Today is 2026-11-25, in November 2026."), _system("Today is 2026-11-26, in November 2026."), None),
    (BRANCHES, *(_system(f"Current branch: {now}\nMain branch: main\nStatus:\n(clean)") for now in ("main", "topic")),
     None),
])  # fmt: skip
def test_what_stays_or_becomes_equal_is_another_question(
    bindings: Bindings, recorded: Json, present: Json, why: MisfitReason | None
) -> None:
    """Each that is refused was a hit once, and its answer wrong; each that fits says the same of something else."""
    result = match_requests_with_bindings(bindings, recorded, present)
    assert (result.why if isinstance(result, Mismatch) else None) is why, str(result)
