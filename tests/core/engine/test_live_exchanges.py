"""Some channels live, the others recorded: what is served is true in the state in which it is asked for, and nothing else reaches a tool."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.keys.mcp import STREAM
from llmproxy.core.mixed_live_replay import LiveChannelSettings
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Chunk, Response
from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.protocol import Channel
from tests.support.in_process import STEP, InProcess
from tests.support.live import Bench, Turn, Wish, World, scripted
from tests.support.narrowing import known

SET, GET, TOGGLE, COUNT = (
    Wish("set", {"name": "a", "to": 1}), Wish("get", {"name": "a"}), Wish("toggle", {}), Wish("count", {}),
)  # fmt: skip
TALE = [Turn((GET,)), Turn((SET,)), Turn((GET,)), Turn((TOGGLE,)), Turn((TOGGLE,)), Turn(text="done")]


def record(store: Path, turns: list[Turn], **how: Any) -> list[str | None]:
    with Bench(store, "record", model=scripted(turns), tools=World(), **how) as bench:
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


@pytest.mark.parametrize(("at_once", "asked", "told"), [
    ((TOGGLE, COUNT), [(TOGGLE, COUNT)], ["started", "1"]),
    ((TOGGLE, COUNT), [(COUNT, TOGGLE)], ["1", "started"]),
    ((TOGGLE, COUNT), [(COUNT,), (TOGGLE,)], [None, None]),
    ((COUNT, COUNT), [(COUNT, COUNT)], ["1", "2"]),
    ((COUNT, COUNT), [(COUNT,)], [None]),
])  # fmt: skip
def test_what_ran_at_once_is_served_when_it_is_asked_for_at_once(
    at_once: tuple[Wish, ...], asked: list[tuple[Wish, ...]], told: list[str | None], store: Path
) -> None:
    """Parallel calls of tools that may change something: in any order if the model wants both again, else nobody knows their state, or which came first."""
    record(store, [Turn(at_once), Turn(text="x")], lasting=60_000_000)
    assert replayed(store, [*map(Turn, asked), Turn(text="x")]) == told


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 24))]
WISHES = [
    SET, Wish("set", {"name": "a", "to": 2}), Wish("set", {"name": "b", "to": 1}), GET, Wish("get", {"name": "b"}),
    TOGGLE, COUNT, Wish("look", {}),
]  # fmt: skip


def turned(calls: list[Wish], chance: random.Random) -> list[Wish]:
    """Return some of these calls and some others, mostly in another order."""
    new = [each for each in calls if chance.random() < 0.8]
    if chance.random() < 0.7:
        chance.shuffle(new)
    return [chance.choice(WISHES) if chance.random() < 0.2 else each for each in new]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_walk_is_ever_told_a_wrong_state(store: Path, seed: int) -> None:
    """Whatever a model calls, in whatever order: each result that is served is what a real server says after the calls that were served.

    That holds for the tools of a live run's own cassette too, in which some calls were refused, and all took no time.
    """
    chance = random.Random(seed)
    old = [chance.choice(WISHES) for _ in range(chance.randint(2, 10))]
    slow = {"lasting": 8_000_000, "thinking": 10} if seed % 2 else {}
    record(store, [*(Turn((each,)) for each in old), Turn(text="x")], **slow)
    for session in ("x", "x@live-1"):
        new = turned(old, chance)
        turns = [Turn(tuple(each)) for each in itertools.batched(new, chance.choice((1, 1, 2, 3)))]
        with Bench(store, live=["llm"], model=scripted([*turns, Turn(text="x")])) as bench:
            ran = bench.run("do it", session=session)
        truth = World()
        assert [got for _, got in ran.calls] == [None if got is None else truth.call(*wish) for wish, got in ran.calls]
        assert len(ran.report["live"]["unknown"]) == sum(got is None for _, got in ran.calls)
        if new == old and session == "x":
            assert None not in [got for _, got in ran.calls]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_guess_makes_the_tools_forget(store: Path, seed: int) -> None:
    """Who opens no session and lists the tools again in the middle, as at the begin of a run, goes on in the same state."""
    chance, truth = random.Random(seed), World()
    old = [chance.choice(WISHES) for _ in range(chance.randint(2, 10))]
    record(store, [*(Turn((each,)) for each in old), Turn(text="x")])
    with Bench(store, live=["llm"]) as bench:
        for wish in old if seed % 2 else turned(old, chance):
            if chance.random() < 0.4:
                bench.list_tools("x")
            got = bench.tool("x", wish)
            assert got is None or got == truth.call(*wish)
        assert truth.asked or seed % 2 == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_recorded_beside_live_tools_has_their_state(store: Path, seed: int) -> None:
    """Tools are live, a service that reads what they set is recorded: it is told what it says of these tools, or nothing."""
    chance, tools, told = random.Random(seed), World(), 0
    old = [chance.choice([*WISHES, None]) for _ in range(chance.randint(2, 10))]
    with Bench(store, "record", tools=World()) as bench:
        bench.list_tools("x")
        for wish in old:
            bench.look("x") if wish is None else bench.tool("x", wish)
    with Bench(store, live=["mcp"], tools=tools) as bench:
        new: list[Wish | None] = [*old] if seed % 2 else [*turned([each for each in old if each], chance)]
        for wish in new:
            if wish is not None:
                bench.tool("x", wish)
            if (got := bench.look("x") if wish is None or chance.random() < 0.5 else None) is not None:
                assert got == World.call(tools, "look", {})
                told += 1
        assert told or None not in new


@pytest.mark.parametrize("said", [
    None, {"error": {"code": -32001, "message": "log in first"}}, {"result": {"isError": True, "content": []}},
])  # fmt: skip
def test_a_live_change_that_failed_leaves_no_known_state(store: Path, said: dict[str, object] | None) -> None:
    """The tool's server was not reached, or says that it failed: nobody knows what it did, so nothing recorded holds after it."""
    with Bench(store, "record", tools=World()) as bench:
        recorded = [bench.look("x"), bench.tool("x", SET), bench.look("x")]
    assert recorded[0] != recorded[2]
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "set", "arguments": SET.arguments}}
    with Bench(store, live=["mcp"]) as bench:
        assert bench.look("x") == recorded[0]
        body = json.dumps(message).encode()
        if said is None:
            sent = bench.engine.begin_exchange("POST", "/s/x/tools/mcp", None, JSON)
            bench.engine.stages.identify_and_decide(sent, body)
            bench.engine.accounting.record_end(sent, 502)
        else:
            answer = json.dumps({"jsonrpc": "2.0", "id": 7, **said}).encode()
            assert bench.ask("x", "/tools/mcp", body, lambda _: answer)[0] == answer
        assert [bench.look("x"), bench.look("x")] == [None, None]


def test_a_session_that_lost_its_child_can_be_closed(store: Path) -> None:
    """Another one has its cassette by now, as after a sleep: it is not complete, and the next session is open to all."""
    record(store, TALE)
    with Bench(store, live=["llm"]) as bench:
        bench.engine.sessions.open_session("x")
        assert bench.tool("x", SET) == "set"
        with sqlite3.connect(store) as other:
            other.execute("UPDATE cassettes SET holder = 'other', pid = 1, host = 'elsewhere' WHERE name = 'x@live-1'")
        other.close()
        assert bench.engine.sessions.close_session("x").is_clean is False
        assert bench.engine.sessions.open_session("x").leased_cassette == ("x@live-2", 1)


JUMPS = (0, 0, -7200, 86_400, -30, 300, 3)


def _call(
    proxy: InProcess, name: str, number: int, says: str, jumps: tuple[int, int], session: str = "m",
    meanwhile: Callable[[], object] = lambda: None,
) -> str:  # fmt: skip
    """Call a tool whose server asks under the id 0, as each new server does, and return its result."""
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    question = {"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "really?"}}
    result = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": f"{name} after {says}"}]}}
    pieces = [f"data: {json.dumps(each)}\n\n".encode() for each in (question, result)]
    chunks = tuple(Chunk(int(n * 2 * STEP * 1e6), piece) for n, piece in enumerate(pieces))
    answer = Response(200, "OK", (("content-type", "text/event-stream"),), chunks, chunked=True)

    def reply(_heard: bytes) -> None:
        proxy.jump += jumps[0]
        meanwhile()
        said = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"action": says}}).encode()
        proxy.ask("q", f"/s/{session}/tools/mcp", said, lambda _: Response(202, "Accepted", (), ()), JSON)
        proxy.jump += jumps[1]

    got = proxy.ask("t", f"/s/{session}/tools/mcp", json.dumps(call).encode(), lambda _: answer, JSON, reply)
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


def _look(proxy: InProcess, session: str, number: int, says: str) -> str:
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "look", "arguments": {}}}
    said = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": f"after {says}"}]}}
    answer = Response(200, "OK", JSON, (Chunk(0, json.dumps(said).encode()),))
    got = proxy.ask("t", f"/s/{session}/tools/mcp", json.dumps(call).encode(), lambda _: answer, JSON)
    return got.body.decode().partition('"after ')[2].partition('"')[0]


@pytest.mark.parametrize("turned_ones", [*itertools.product((False, True), repeat=3)])
def test_a_change_that_was_declined_is_none(turned_ones: tuple[bool, ...], tmp_path: Path) -> None:
    """A client answers a server's question otherwise than recorded: that call changed nothing, and the child tells so again."""
    settings: dict[str, Any] = {"upstreams": {"tools": "http://127.0.0.1:9"}}
    live = LiveChannelSettings(frozenset({Channel.LLM}), read_only=("look",))
    says = ["decline" if other else "accept" for other in turned_ones]

    def run(proxy: InProcess, session: str, answers: Sequence[str], *, impatient: bool = True) -> list[str]:
        heard, early = [_look(proxy, session, 1, "0")], list[str]()

        def look_early() -> None:
            early.extend([_look(proxy, session, 9, "unknown")] if impatient else [])

        for n, each in enumerate(answers):
            heard.append(_call(proxy, f"tool-{n}", n + 5, each, (0, 0), session, look_early))
            heard.append(_look(proxy, session, n + 50, str(n + 1)))
        assert not any(early), "what waits for an answer has changed nothing yet"
        return heard

    with InProcess(tmp_path / "x.db", "record", **settings) as proxy:
        run(proxy, "m", ["accept"] * 3, impatient=False)
    with InProcess(tmp_path / "x.db", "replay", live=live, **settings) as proxy:
        heard = run(proxy, "m", says)
        proxy.engine.sessions.close_session("m")
    good = next((n for n, other in enumerate(turned_ones) if other), 3)
    told = [each for n in range(good) for each in ("accept", str(n + 1))]
    assert heard == ["0", *told, *["", str(good)] * (3 - good)]
    with InProcess(tmp_path / "x.db", "replay", **settings) as proxy:
        assert run(proxy, "m@live-1", says) == heard


@pytest.mark.parametrize("early", [False, True])
def test_a_stream_is_kept_as_far_as_it_was_told(*, early: bool, tmp_path: Path) -> None:
    """A server's own stream says something after each of two calls, of which the live run makes one; its session may end before it."""
    settings: dict[str, Any] = {"upstreams": {"tools": "http://127.0.0.1:9"}}
    accepts = (("accept", "text/event-stream"), ("mcp-session-id", "s1"))

    def open_stream(proxy: InProcess, session: str) -> Exchange:
        place = proxy.engine.dispatcher.place_request("GET", f"/s/{session}/tools/mcp", None, accepts)
        stream = proxy.engine.stages.begin_exchange(place)
        proxy.engine.stages.identify_and_decide(stream, b"")
        return stream

    def replay(proxy: InProcess, session: str) -> list[int]:
        proxy.engine.sessions.open_session(session)
        stream, client = open_stream(proxy, session), ClientFramingTraits("GET")
        proxy.engine.answering.plan_recorded(stream, client)
        playback, _ = known(proxy.engine.answering.plan_playback_head(stream, client))
        told = [len(playback.take_ready_parts(lambda: 0.0)[0])]
        _look(proxy, session, 1, "0")
        told.append(len(playback.take_ready_parts(lambda: 0.0)[0]))
        for close in (True, False) if early else (False, True):
            if close:
                proxy.engine.sessions.close_session(session)
            else:
                proxy.engine.accounting.record_end(stream, 200)
        return told

    with InProcess(tmp_path / "x.db", "record", **settings) as proxy:
        stream, begun = open_stream(proxy, "m"), proxy.time
        stream.recording.on_head(10, 200, "OK", (("content-type", "text/event-stream"),))
        for n in (1, 2):
            _look(proxy, "m", n, str(n))
            proxy.time += 1
            stream.recording.on_data(int((proxy.time - begun) * 1e6), b'data: {"jsonrpc": "2.0", "method": "said"}\n\n')
        proxy.time += 1
        proxy.engine.writer.store_answer(stream, proper=True)
        proxy.engine.accounting.record_end(stream, 200)
    live = LiveChannelSettings(frozenset({Channel.LLM}), read_only=("look",))
    with InProcess(tmp_path / "x.db", "replay", live=live, **settings) as proxy:
        assert replay(proxy, "m") == [0, 1]
    with InProcess(tmp_path / "x.db", "replay", **settings) as proxy:
        assert replay(proxy, "m@live-1") == [0, 1]
        (kept,) = [one for one in known(proxy.engine.store).iter_interactions("m@live-1") if one.operation == STREAM]
        assert len(kept.response.chunks) == 1
