"""Known agents over sockets, a provider that answers as written, a real proxy: the walk that it tells, and whole suites.

A suite has late calls, histories, rows and a service with pages. It is recorded, then replayed from the recording: what passes and
what fails is the same, and true, both times.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llmproxy.client.control import ControlApiClient
from llmproxy.report.events import Status
from llmproxy.trace.observing.agent_activity import ModelCallObserver
from tests.oracle.acting import ACTOR, Part
from tests.oracle.agents import Exchange, World
from tests.oracle.history import Life, claim, recalls
from tests.oracle.places import PAGES, SIZE, Service, served
from tests.oracle.product import judge
from tests.oracle.rows import ME, Clerk, Moment, Shape, claim_created, claim_rows, in_view, is_there, was_created
from tests.oracle.test_behaviour import ASSERTIONS, FIRST, judged
from tests.oracle.truth import Json, holds, in_sight, think_of
from tests.oracle.upstream import NAMES, Upstream, perform, send
from tests.suite.rig import Result, cases_of, run
from tests.support import Proxy, proxy

RUNS = int(os.environ.get("ORACLE_SUITE_RUNS", "5"))
"""How many suites; `scripts/lab/oracle` asks for hundreds."""
SOCKET_RUNS = int(os.environ.get("ORACLE_SOCKET_RUNS", "12"))
"""How many agents without a suite, likewise."""


@dataclass
class Claim:
    """Something that a suite says, by which assertions it is told, and whether it is true."""

    step: int
    names: tuple[str, ...]
    said: Json
    true: bool | None
    must: bool
    """Whether it can be decided."""


@dataclass
class Play:
    """A suite, its agent, and what is true of it."""

    parts: list[Part] = field(default_factory=list)
    after_end: Sequence[Exchange] = ()
    steps: list[Json] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


def written(seed: int, service: Service) -> Play:
    """Write a suite: for each step of its agent something about calls or history, new rows, and rows that are there."""
    random, play = Random(seed), Play()
    shape = Shape(random.choice(("again", "counted", "named")), random.random() < 0.7, random.choice(PAGES))
    service.shape = shape
    exchanges, spans, wires = _agent(seed, random)
    moments = list[Moment]()
    clerk = Clerk(seed, shape)
    ledger = clerk.play()
    service.put(ledger.start)
    while len(moments) < len(spans):
        moments += ledger.steps if not moments else [clerk.step()]
    for number, ((after, until), moment) in enumerate(zip(spans, moments, strict=False)):
        late = random.randint(after, until) if random.random() < 0.4 else until
        last = moment.states[-1]
        play.parts.append(
            Part(
                exchanges[after:late], partial(service.put, moment.states[0]), exchanges[late:until],
                partial(service.put, last),
            )
        )  # fmt: skip
        said, true, must = wires(number)
        talk = {"chat": f"step {number}", **said}
        about = claim_created(random)
        about.pop("within", None)
        seen = in_view(shape, moment.before, SIZE) and in_view(shape, moment.states[0], SIZE) and moment.plain
        place = len(play.steps)
        names = ("tools", "toolOrder", "totalToolCalls", "onlyTools", "usage", "messageProcessing")
        play.claims.append(Claim(place, names, said, true, must))
        play.claims.append(Claim(place, ("created",), about, was_created(about, shape, moment), seen))
        there = claim_rows(random, list(last))
        play.claims.append(
            Claim(place + 2, ("verify",), there, is_there(there, shape, last), in_view(shape, last, SIZE))
        )
        go_on = {"verify": {"entity": "later", "filters": {"id": 1}, "count": 0}}
        play.steps += [{**talk, "created": [about]}, go_on, {"verify": there}]
    if random.random() < 0.3:
        play.after_end = World(seed + 1_000_000, overlaps=False).play().exchanges[:2]
    return play


def _agent(seed: int, random: Random) -> tuple[list[Exchange], list[tuple[int, int]], Any]:
    """Return what an agent sends, the spans of its steps, and what says something about one of them."""
    if random.random() < 0.3:
        memoir = Life(seed).play()

        def of_history(number: int) -> tuple[Json, bool | None, bool]:
            step = memoir.steps[number]
            said = {**claim(random, step), "continueConversation": step.continues}
            return said, recalls(said, step), False

        return memoir.exchanges, [(each.after, each.until) for each in memoir.steps], of_history
    made = World(seed, overlaps=False).play()

    def of_calls(number: int) -> tuple[Json, bool | None, bool]:
        said, step = think_of(random), made.steps[number]
        true, must = holds(said, step), in_sight(said, step)
        if "callCount" in said:
            said = {"usage": said}
        elif "onlyTools" in said:
            said = {"tools": {name: {"count": {"lte": 999}} for name in said["onlyTools"]}, "onlyTools": True}
        return said, true, must

    return made.exchanges, [(each.after, each.until) for each in made.steps], of_calls


def played(play: Play, folder: Path, name: str, address: str, service: Service, px: Proxy, mode: str) -> Result:
    ACTOR.parts, ACTOR.after_end, ACTOR.send = play.parts, play.after_end, partial(send, px.url)
    service.later = ACTOR.go_on
    suite = {
        "name": name,
        "agent": {"python": "tests.oracle.acting:ACTOR"},
        "store": {"http": address, "reset": "none", "entities": {"tasks": service.entity, "later": "/later"}},
        "scenarios": [{"id": "one", "userId": ME, "steps": play.steps}],
    }
    return run(cases_of(folder, json.dumps(suite), f"{name}.suite.yaml"), proxy=px.url, mode=mode, keep_going=True)


def wrong(play: Play, result: Result, tally: Counter[str]) -> list[str]:
    (finished,), found = result.told.finished, list[str]()
    told = {step.index: step for step in result.told.steps}
    for each in play.claims:
        step = told.get(each.step)
        if step is None or step.status is Status.SKIPPED:
            tally["not reached"] += 1
            continue
        mine = {one.status for one in step.assertions if one.name.partition(".")[0].partition("[")[0] in each.names}
        status = next((one for one in (Status.FAILED, Status.ENVIRONMENT_ERROR) if one in mine), Status.PASSED)
        why = "; ".join(one.message for one in step.assertions if one.message)
        found += judged(f"step {each.step} ({why}): {each.said}", each.true, status, tally, must=each.must)
    if finished.status is Status.PASSED and (play.after_end or any(each.true is False for each in play.claims)):
        found.append("the run passed")
    if play.after_end and "after the end of the scenario" not in f"{finished.error}{finished.labels}":
        found.append(f"nobody named the calls after the end: {finished.error} {finished.labels}")
    return found


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Upstream]]:
    upstream = Upstream()
    store = tmp_path_factory.mktemp("oracle") / "x.db"
    with proxy("record", store, upstreams=dict.fromkeys(NAMES, upstream.url)) as made:
        yield made, upstream
    upstream.shutdown()
    upstream.server_close()


def test_what_a_real_proxy_tells_is_judged_as_truly(px: tuple[Proxy, Upstream]) -> None:
    """Framing, streams, cuts and retries as they arrive: nothing passes that is not true, nothing fails that is."""
    made, upstream = px
    control, tally, found = ControlApiClient(made.url), Counter[str](), list[str]()
    for seed in range(FIRST, FIRST + SOCKET_RUNS):
        run, random, name = World(seed).play(), Random(seed), f"oracle-{seed}"
        control.open_session(name)
        for exchange in run.exchanges:
            upstream.answers[exchange.request].append(exchange)
        perform(made.url, name, run.exchanges)
        calls = control.calls(name)
        assert [call.attempt for call in calls] == [each.attempt for each in run.exchanges]
        wire = ModelCallObserver()
        wire.add_calls_with_recordings(calls)
        for step in run.steps:
            measured = wire.build_step(step.after, step.until)
            for _ in range(ASSERTIONS):
                said = think_of(random)
                what, must = f"seed {seed}, calls {step.after} to {step.until}: {said}", in_sight(said, step)
                found += judged(what, holds(said, step), judge(said, measured), tally, must=must)
        control.close_session(name)
    upstream.answers.clear()
    print(dict(tally))
    assert not found, "\n".join(found[:20])
    assert min(tally["True passed"], tally["False failed"]) > SOCKET_RUNS


@pytest.mark.slow
def test_what_suites_say_is_judged_as_truly(tmp_path: Path, px: tuple[Proxy, Upstream]) -> None:
    """Calls, late calls, histories, rows and pages, recorded and replayed."""
    (made, upstream), tally, found = px, Counter[str](), list[str]()
    for seed in range(FIRST, FIRST + RUNS):
        service = Service(Shape("counted", owned=True))
        with served(service) as address:
            outcomes = []
            for mode in ("record", "replay"):
                play = written(seed, service)
                if mode == "record":
                    for each in [*(e for part in play.parts for e in (*part.now, *part.later)), *play.after_end]:
                        upstream.answers[each.request].append(each)
                result = played(play, tmp_path, f"s{seed}", address, service, made, mode)
                found += [f"seed {seed}, {mode}: {each}" for each in wrong(play, result, tally)]
                outcomes.append(
                    [
                        (step.index, [(one.name, one.status.value) for one in step.assertions])
                        for step in result.told.steps
                    ]
                )
            upstream.answers.clear()
            found += (
                [] if outcomes[0] == outcomes[1] else [f"seed {seed}: replay differs from the recording: {outcomes}"]
            )
    print(dict(tally))
    assert not found, "\n".join(found[:20])
    assert min(tally["True passed"], tally["False failed"]) > RUNS
