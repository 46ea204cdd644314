"""Some channels live, the others recorded: what is served is true in the state in which it is asked for, and nothing else reaches a tool."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Chunk, Response
from tests.support.in_process import STEP, InProcess
from tests.support.live import Bench, Turn, Wish, World, scripted

SET, GET, TOGGLE, COUNT = (
    Wish("set", {"name": "a", "to": 1}), Wish("get", {"name": "a"}), Wish("toggle", {}), Wish("count", {}),
)  # fmt: skip
TALE = [Turn((GET,)), Turn((SET,)), Turn((GET,)), Turn((TOGGLE,)), Turn((TOGGLE,)), Turn(text="done")]


def record(store: Path, turns: list[Turn]) -> list[str | None]:
    with Bench(store, "record", model=scripted(turns), tools=World()) as bench:
        return [got for _, got in bench.run("do it").calls]


def replayed(store: Path, turns: list[Turn], **how: object) -> list[str | None]:
    with Bench(store, live=["llm"], model=scripted(turns), **how) as bench:  # type: ignore[arg-type]
        return [got for _, got in bench.run("do it").calls]


def test_a_new_model_meets_recorded_tools(store: Path) -> None:
    """The same calls get the same results, no tool runs, and the run is kept in a cassette of its own, which replays whole."""
    assert record(store, TALE) == ["0", "set", "1", "started", "stopped"]
    with Bench(store, live=["llm"], model=scripted([*TALE[:-1], Turn(text="other words")])) as bench:
        ran = bench.run("do it")
        assert [got for _, got in ran.calls] == ["0", "set", "1", "started", "stopped"]
        assert (ran.text, ran.report["misses"], ran.report["recorded"]) == ("other words", 0, 6)
        assert ran.report["live"]["cassette"] == "x@live-1"
        assert len(list(bench.interactions("x"))) == 12
        assert len(list(bench.interactions("x@live-1"))) == 12
    with Bench(store) as bench:
        again = bench.run("do it", session="x@live-1")
    assert (again.text, again.calls, again.report["misses"], again.report["unused"]) == (
        "other words", ran.calls, 0, [],
    )  # fmt: skip


@pytest.mark.parametrize(("turns", "told"), [
    ([Turn((SET,)), Turn((GET,)), Turn(text="x")], ["set", "1"]),
    ([Turn((GET,)), Turn((GET,)), Turn(text="x")], ["0", "0"]),
    ([Turn((TOGGLE,)), Turn((SET,)), Turn((TOGGLE,)), Turn(text="x")], [None, "set", "started"]),
    ([Turn((SET,)), Turn((TOGGLE,)), Turn((GET,)), Turn((TOGGLE,)), Turn((TOGGLE,)), Turn(text="x")], ["set", "started", None, "stopped", None]),
    ([Turn((SET,)), Turn((SET,)), Turn((GET,)), Turn(text="x")], ["set", None, "1"]),
    ([Turn((COUNT,)), Turn((GET,)), Turn(text="x")], [None, "0"]),
])  # fmt: skip
def test_a_result_is_told_only_in_its_state(tmp_path: Path, turns: list[Turn], told: list[str | None]) -> None:
    """What was recorded after a change is told after that change; what is refused changes nothing."""
    record(tmp_path / "x.db", TALE)
    assert replayed(tmp_path / "x.db", turns) == told
    with Bench(tmp_path / "x.db") as bench:
        assert len(list(bench.interactions("x"))) == 12


def test_what_is_declared_read_only_needs_no_order(tmp_path: Path) -> None:
    """A server that says nothing of its tools is taken to change something with each; the user may know better."""
    store, looks = tmp_path / "x.db", [Wish("get", {"name": name}) for name in "abc"]
    turns = [*(Turn((look,)) for look in looks), Turn(text="x")]
    with Bench(store, "record", model=scripted(turns), tools=World(reading=frozenset())) as bench:
        bench.run("do it")
    other = [*(Turn((look,)) for look in (looks[2], looks[0], looks[0])), Turn(text="x")]
    assert replayed(store, other) == [None, "0", None]
    assert replayed(store, other, read_only=["ge*"]) == ["0", "0", "0"]


def test_what_ran_at_once_is_served_when_it_is_asked_for_at_once(tmp_path: Path) -> None:
    """Parallel calls of tools that may change something: in any order if the model wants both again, else nobody knows their state."""
    store, turns = tmp_path / "x.db", [Turn((TOGGLE, COUNT)), Turn(text="x")]
    with Bench(store, "record", model=scripted(turns), tools=World(), lasting=60_000_000) as bench:
        assert [got for _, got in bench.run("do it").calls] == ["started", "1"]
    assert replayed(store, turns) == ["started", "1"]
    assert replayed(store, [Turn((COUNT, TOGGLE)), Turn(text="x")]) == ["1", "started"]
    assert replayed(store, [Turn((COUNT,)), Turn((TOGGLE,)), Turn(text="x")]) == [None, None]


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 64))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_walk_is_ever_told_a_wrong_state(store: Path, seed: int) -> None:
    """Whatever a model calls, in whatever order: each result that is served is what a real server says after the calls that were served."""
    chance = random.Random(seed)
    wishes = [SET, Wish("set", {"name": "a", "to": 2}), Wish("set", {"name": "b", "to": 1}), GET, Wish("get", {"name": "b"}), TOGGLE, COUNT, Wish("look", {})]  # fmt: skip
    old = [chance.choice(wishes) for _ in range(chance.randint(2, 10))]
    new = [each for each in old if chance.random() < 0.8]
    if chance.random() < 0.7:
        chance.shuffle(new)
    new = [chance.choice(wishes) if chance.random() < 0.2 else each for each in new]
    record(store, [*(Turn((each,)) for each in old), Turn(text="x")])
    with Bench(store, live=["llm"], model=scripted([*(Turn((each,)) for each in new), Turn(text="x")])) as bench:
        ran = bench.run("do it")
    truth = World()
    assert [got for _, got in ran.calls] == [None if got is None else truth.call(*wish) for wish, got in ran.calls]
    assert len(ran.report["live"]["unknown"]) == sum(got is None for _, got in ran.calls)
    if new == old:
        assert None not in [got for _, got in ran.calls]


JUMPS = (0, 0, -7200, 86_400, -30, 300, 3)


def _call(proxy: InProcess, name: str, number: int, says: str, jumps: tuple[int, int]) -> str:
    """Call a tool whose server asks under the id 0, as each new server does, and return its result."""
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    question = {"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "really?"}}
    result = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": f"{name} after {says}"}]}}
    pieces = [f"data: {json.dumps(each)}\n\n".encode() for each in (question, result)]
    chunks = tuple(Chunk(int(n * 2 * STEP * 1e6), piece) for n, piece in enumerate(pieces))
    answer = Response(200, "OK", (("content-type", "text/event-stream"),), chunks, chunked=True)

    def reply(_heard: bytes) -> None:
        proxy.jump += jumps[0]
        said = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"action": says}}).encode()
        proxy.ask("q", "/s/m/tools/mcp", said, lambda _: Response(202, "Accepted", (), ()), JSON)
        proxy.jump += jumps[1]

    got = proxy.ask("t", "/s/m/tools/mcp", json.dumps(call).encode(), lambda _: answer, JSON, reply)
    return got.body.decode().partition(f"{name} after ")[2].partition('"')[0]


JSON = (("content-type", "application/json"),)


@pytest.mark.parametrize("seed", range(12))
def test_a_call_goes_on_after_the_recorded_answer_only(seed: int, tmp_path: Path) -> None:
    """Some calls, some answers, a clock that is set between question and answer: as recorded it is told, else never."""
    rng, covered = random.Random(seed), Counter[bool]()
    asked = [(f"tool-{n}", n + 5, rng.choice(("accept", "decline"))) for n in range(3)]
    jumps = [(rng.choice(JUMPS), rng.choice(JUMPS)) for _ in asked]
    with InProcess(tmp_path / "x.db", "record", upstreams={"tools": "http://127.0.0.1:9"}) as proxy:
        for each, jump in zip(asked, jumps, strict=True):
            _call(proxy, *each, jump)
    for turned in itertools.product((False, True), repeat=len(asked)):
        with InProcess(tmp_path / "x.db", "replay", upstreams={"tools": "http://127.0.0.1:9"}) as proxy:
            for (name, number, said), other in zip(asked, turned, strict=True):
                says = {"accept": "decline", "decline": "accept"}[said] if other else said
                heard = _call(proxy, name, number, says, (0, 0))
                assert heard in ({""} if other else {"", said}), jumps
                covered[bool(heard)] += not other
    assert covered[True] > 0
