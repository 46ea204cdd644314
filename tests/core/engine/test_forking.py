"""A session on a recording that is not quite its own: what is overridden, where it forks, what its child holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.control.endpoints import ControlApiContext, ControlRequest, answer_control_request
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.forking import ForkInterceptor, ForkState
from llmproxy.core.forks.fork_rows import Fork, find_fork, store_fork_with_copies
from llmproxy.core.forks.overrides import AnswerOverrides, parse_answer_override_options
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import LiveSessionForbidden, Session, SessionInUse
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import MissError, RefusedError
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import answered, engine as run_engine, send
from tests.support.chats import NOW
from tests.support.messages import said as says, used, user
from tests.support.narrowing import known

Json = Any
"""A value of JSON."""
FIRST: list[Json] = [user("Oslo?")]
SECOND: list[Json] = [*FIRST, *used("get_weather", "{}", "21", "c1")]
CALLED = SECOND[1]
THIRD: list[Json] = [*SECOND, says("Warm."), user("Sure?")]
SURE = [*SECOND, says("Cold."), user("Sure?")]
COLD = parse_answer_override_options(["get_weather=5"], [])
Make = Callable[..., Engine]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Make]:
    """Return a maker of engines over one store, and record the cassette `a` with the first: a call, its answer, a question."""
    store = tmp_path / "x.db"
    with run_engine(store) as recorder:
        for messages, said in ((FIRST, CALLED), (SECOND, {"content": "Warm."}), (THIRD, {"content": "Yes."})):
            ask(recorder, messages, upstream=said)
    with ExitStack() as running:
        yield lambda mode=Mode.REPLAY, **config: running.enter_context(run_engine(store, mode, **config))


def ask(engine: Engine, messages: list[Json], *, upstream: Json = None, session: str = "a", **more: Json) -> Exchange:
    """Let the agent ask; what goes upstream is answered with `upstream`, a message of the model."""
    body = json.dumps({"model": "gpt-4o", "messages": messages, **more}).encode()
    exchange = send(engine, body, f"/s/{session}/v1/chat/completions", (("content-type", "application/json"),))
    status = 404
    if exchange.decision is Decision.RECORD:
        said = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", **(upstream or {})}}]}).encode()
        answered(engine, exchange, said)
        status = 200
    elif exchange.decision is Decision.REPLAY:
        status = engine.answering.serve_recorded(exchange).status
    engine.accounting.record_end(exchange, status)
    return exchange


def texts(engine: Engine, cassette: str) -> list[str]:
    assert engine.store is not None
    return [
        json.loads(each.response.body)["choices"][0]["message"].get("content") or ""
        for each in engine.store.iter_interactions(cassette)
    ]


def said(exchange: Exchange) -> str:
    assert exchange.answer.made is not None
    return str(json.loads(exchange.answer.made.body)["choices"][0]["message"]["content"])


def opened(engine: Engine, overrides: AnswerOverrides, name: str = "a", **fork: Json) -> ForkState:
    child = fork.pop("child", None)
    return overridden(
        engine.sessions.open_session(name, forking=ForkState(given=overrides, **fork), child=child)
    ).forking


def overridden(session: Session) -> ForkInterceptor:
    return known(session.find_interceptor(ForkInterceptor))


def test_a_swapped_result_is_another_request(engine: Make) -> None:
    """Offline that is a miss that says why, where, and what to type; what is the same is played before and after it."""
    one = engine()
    forking = opened(one, COLD)
    assert ask(one, FIRST).decision is Decision.REPLAY
    exchange = ask(one, SECOND)
    assert (exchange.decision, exchange.request.rewritten, type(exchange.error)) == (Decision.REFUSE, True, MissError)
    forks = "forks here, at request 2 of the agent: the result of get_weather (call 1) was overridden."
    assert forks in str(exchange.error)
    assert str(exchange.error).count("\n") == 1, "an override made it, so no learn and no auto"
    assert "--override-llm 1=" in str(exchange.error)
    assert forking.fork is not None
    assert (forking.fork.cassette, forking.fork.step, forking.fork.path) == ("", 2, "$.messages[2].content")
    told = forking.to_json()
    assert (told["tools"][0]["used"], told["seen"], told["fork"]["cassette"]) == (1, ["get_weather"], None)


def test_an_overridden_answer_needs_no_recording(engine: Make) -> None:
    """Sent in place of one that there is, and of one that there is not; it cost nothing."""
    one = engine()
    forking = opened(one, parse_answer_override_options(["get_weather=5"], ["0=Early.", "1=Cold."]))
    assert [said(ask(one, messages)) for messages in (FIRST, SECOND)] == ["Early.", "Cold."]
    tally = one.sessions.get_session("a").calls.totals
    assert (tally.saved.input, tally.saved.unpriced, tally.misses) == (0, 0, 0)
    assert forking.to_json()["answers"] == [{"call": 0, "used": True}, {"call": 1, "used": True}]
    asked = ControlRequest("GET", "/_llmproxy/calls?session=a", (("host", "localhost"),), b"", loopback=True)
    told = json.loads(answer_control_request(one, asked, ControlApiContext())[1])
    assert ["Early." in told["calls"][0]["recording"]["response_body"], told["calls"][0]["interaction"]] == [True, None]


def test_a_live_fork_records_its_child(engine: Make) -> None:
    """Shared requests are copied, what differs goes upstream with the swap in it, the parent stays; its child replays with its swap."""
    one = engine(allow_live=True)
    forking = opened(one, COLD, live=True)
    ask(one, FIRST)
    second = ask(one, SECOND, upstream={"content": "Cold."})
    third = ask(one, SURE, upstream={"content": "Sure."})
    assert [second.decision, third.decision] == [Decision.RECORD] * 2
    assert b'"content":"5"' in (third.request.body or b"")
    assert forking.fork is not None
    assert forking.fork.cassette == "a@fork-1"
    assert forking.fork.why == "the result of get_weather (call 1) was overridden"
    with pytest.raises(SessionInUse, match="has forked"):
        one.sessions.reset_session("a")
    closed = one.sessions.close_session("a")
    assert (closed.cassette, one.list_unused(closed)) == ("a@fork-1", [])
    assert texts(one, "a@fork-1") == ["", "Cold.", "Sure."]
    assert texts(one, "a") == ["", "Warm.", "Yes."]
    again = engine()
    for messages in (FIRST, SECOND, SURE):
        assert ask(again, messages, session="a@fork-1").decision is Decision.REPLAY
    assert overridden(again.sessions.get_session("a@fork-1")).forking.to_json()["tools"][0]["inherited"] is True


def test_an_overridden_answer_is_in_the_child(engine: Make) -> None:
    """Before the fork and after it; the child replays it without an override."""
    one = engine(allow_live=True)
    opened(one, parse_answer_override_options([], ["1=Cold.", "3=The end."]), live=True, child="mine")
    ask(one, FIRST)
    ask(one, SECOND)
    ask(one, SURE, upstream={"content": "Sure."})
    assert said(ask(one, [*SURE, {"role": "user", "content": "Bye."}])) == "The end."
    assert texts(one, "mine") == ["", "Cold.", "Sure.", "The end."]
    assert one.store is not None
    found = known(find_fork(one.store, "mine", 1))
    assert (found.why, found.step) == ("the answer of LLM call 1 was overridden", 3)


def test_a_fork_at_a_request_that_is_equal(engine: Make) -> None:
    """`at` counts the agent's requests from 1; the same key recorded twice does not replace what is shared."""
    one = engine(allow_live=True)
    forking = opened(one, AnswerOverrides(), live=True, at=2)
    ask(one, FIRST)
    assert ask(one, FIRST, upstream={"content": "Anew."}).decision is Decision.RECORD
    assert forking.fork is not None
    assert (forking.fork.why, forking.fork.path) == ("--from 2", None)
    assert texts(one, "a@fork-1") == ["", "Anew."]


def test_a_fork_at_an_overridden_request_begins_after_it(engine: Make) -> None:
    """Its answer is given; what is asked next goes to the provider, even if it is what the parent was asked."""
    one = engine(allow_live=True)
    forking = opened(one, parse_answer_override_options([], ["1=Warm."]), live=True, at=2)
    assert [ask(one, each).decision for each in (FIRST, SECOND)] == [Decision.REPLAY] * 2
    assert ask(one, THIRD, upstream={"content": "Anew."}).decision is Decision.RECORD
    assert (known(forking.fork).why, known(forking.fork).step) == ("--from 2", 3)
    assert texts(one, "a@fork-1") == ["", "Warm.", "Anew."]


def test_a_child_has_one_run(engine: Make) -> None:
    """What was overridden before the session began again is not of the run that forks."""
    one = engine(allow_live=True)
    opened(one, parse_answer_override_options([], ["1=Cold."]), live=True)
    for each in (FIRST, SECOND):
        ask(one, each)
    one.sessions.reset_session("a")
    for each in (FIRST, SECOND):
        ask(one, each)
    ask(one, SURE, upstream={"content": "Sure."})
    assert texts(one, "a@fork-1") == ["", "Cold.", "Sure."]


def test_a_secret_is_no_override_of_a_fork(engine: Make) -> None:
    """It would not be stored, and its child would ask for something else than was recorded; a replay stores nothing."""
    one, secret = engine(allow_live=True), parse_answer_override_options(["get_weather=ghp_" + "aB3dE5fG7h" * 4], [])
    with pytest.raises(RefusedError, match="get_weather looks like a secret"):
        opened(one, secret, live=True)
    assert one.sessions.open_sessions == {}
    opened(one, secret)


@pytest.mark.parametrize("named", [False, True])
def test_calls_are_counted_in_their_conversation(*, named: bool, tmp_path: Path) -> None:
    """The provider keeps the histories of two, named by their last answer or once: the second call of a tool is that of one of them.

    That holds while another call of the session is open.
    """
    headers = (("content-type", "application/json"),)

    def talk(one: Engine) -> list[bool]:
        changed = []
        for city, calls in (("Oslo", 1), ("Rome", 2)):
            kept: Json = {"conversation": f"conv_{city}"} if named else {}
            body: Json = {"model": "gpt-4o", "input": city, **kept}
            for n in range(calls + 1):
                exchange = send(one, json.dumps(body).encode(), "/s/a/v1/responses", headers)
                called = {"type": "function_call", "call_id": f"{city}-{n}", "name": "get_weather", "arguments": "{}"}
                made = {"id": f"resp_{city}-{n}", "object": "response", "status": "completed", "output": [called]}
                if exchange.decision is Decision.RECORD:
                    answered(one, exchange, json.dumps(made).encode())
                elif exchange.decision is Decision.REPLAY:
                    one.answering.serve_recorded(exchange)
                one.accounting.record_end(exchange, 200)
                changed.append(exchange.request.rewritten)
                output = {"type": "function_call_output", "call_id": f"{city}-{n}", "output": "21"}
                body |= kept or {"previous_response_id": f"resp_{city}-{n}"}
                body["input"] = [output]
        return changed

    with run_engine(tmp_path / "y.db") as one:
        talk(one)
    with run_engine(tmp_path / "y.db", Mode.REPLAY) as one:
        opened(one, parse_answer_override_options(["get_weather#2=5"], []))
        one.begin_exchange("POST", "/s/a/v1/chat/completions", None, ())
        assert talk(one) == [False, False, False, False, True]


def test_a_retry_is_the_call_that_it_retries(engine: Make) -> None:
    """An SDK that asks again after a 429 has not asked twice: answer 1 is the next one."""
    forking = ForkState(overrides=parse_answer_override_options([], ["1=Cold."]))

    def count(key: str, status: int) -> int | None:
        exchange = ask(engine(), FIRST)
        exchange.identity = replace(exchange.identity, key=Key(key))
        number = forking.assign_llm_call_number(exchange)
        forking.mark_failed_for_retry(exchange, status)
        return number

    assert [count("k", 429), count("k", 0), count("k", 200), count("k", 200), count("l", 200)] == [0, 0, 0, 1, 2]


def test_a_result_whose_call_the_server_keeps_is_found(engine: Make) -> None:
    """`previous_response_id`: the call stands in an answer of this session only."""
    one = engine()
    forking = opened(one, COLD)
    ask(one, FIRST)
    output = {"type": "function_call_output", "call_id": "c1", "output": "21"}
    assert ask(one, [{"role": "user", "content": "x"}], input=[output]).request.rewritten
    assert forking.to_json()["tools"][0]["used"] == 1


@pytest.mark.parametrize("mode", [Mode.RECORD, Mode.AUTO, Mode.ONCE, Mode.PASSTHROUGH])
def test_overrides_are_for_replay(engine: Make, mode: Mode) -> None:
    """Anywhere else they would end up in the recording."""
    one = engine(Mode.AUTO)
    with pytest.raises(RefusedError, match="overrides and forks are for"):
        one.sessions.open_session("a", mode=mode, forking=ForkState(given=COLD))
    assert one.sessions.open_sessions == {}


def test_a_replay_proxy_forks_only_with_leave(engine: Make) -> None:
    """It was promised that nothing leaves the machine."""
    one = engine()
    with pytest.raises(LiveSessionForbidden, match="that forks"):
        opened(one, COLD, live=True)
    assert one.sessions.open_sessions == {}


def test_a_live_session_that_never_forks_leaves_nothing(engine: Make) -> None:
    """No cassette, no lease; the name is free again."""
    one = engine(allow_live=True)
    for _ in range(2):
        assert opened(one, COLD, live=True).child == "a@fork-1"
        ask(one, FIRST)
        one.sessions.renew_recording_leases()
        one.sessions.close_session("a")
    assert one.store is not None
    assert not one.store.has_recordings("a@fork-1", 1)
    assert one.store.conn.execute("SELECT count(*) FROM cassettes WHERE holder IS NOT NULL").fetchone() == (0,)


def test_overrides_on_a_child_go_above_those_that_it_has(engine: Make, tmp_path: Path) -> None:
    """A what-if of a what-if: the given one counts for its tool, the inherited ones for theirs."""
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as store:
        store_fork_with_copies(
            store,
            Fork("b", "a", 1, "x", overrides=parse_answer_override_options(["get_weather=1", "add=2"], [])),
            [],
            NOW,
        )
    forking = opened(engine(), parse_answer_override_options(["get_weather=9"], []), name="b")
    assert [(each["tool"], each["result"], each["inherited"]) for each in forking.to_json()["tools"]] == [
        ("add", "2", True),
        ("get_weather", "9", False),
    ]


def test_a_call_whose_answer_nobody_can_write_has_no_number(engine: Make) -> None:
    forking = ForkState(overrides=parse_answer_override_options([], ["0=x"]))
    exchange = ask(engine(), FIRST)
    exchange.place = exchange.place._replace(operation="embeddings")
    assert forking.assign_llm_call_number(exchange) is None
