"""One call of an adapter: what comes back is made sure of, time is limited, misses are found whatever the adapter did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from llmproxy import scenario
from llmproxy.calls_and_totals import Call
from llmproxy.errors import AgentError, MachineError, MissError, UpstreamError
from llmproxy.protocol import Decision
from llmproxy.scenario import AgentAdapter, AgentInput, AgentRole, CriterionResult, ScenarioResult
from llmproxy.scenario.running.agent_caller import (
    AdapterAnswer,
    AgentCaller,
    AgentTraffic,
    ConnectedAgentAdapter,
    Participants,
    convert_to_agent_adapters,
)
from llmproxy.scenario.running.executor import ScenarioExecutor
from tests.scenario.people import Agent, Ear, Judge, Person, User, executor, finished, play, said

# ruff: noqa: A002


def heard(seq: int, *, miss: bool = False, party: str = "agent", note: str = "") -> Call:
    """Return a call as the walk tells it; nothing of it was recorded."""
    return Call(Decision.REFUSE if miss else Decision.REPLAY, seq=seq, miss=miss, party=party, note=note)


class Session:
    """A session with what it will have seen; counts turns."""

    llm = None

    def __init__(self, *seen: Call, texts: tuple[str, ...] = (), waits: float = 0.0) -> None:
        self.seen, self.texts, self.waits = seen, texts, waits
        self.turns: list[str] = []
        self.asked: list[int] = []

    @asynccontextmanager
    async def speaking_turn(self, adapter: AgentAdapter) -> AsyncIterator[float]:
        self.turns.append(type(adapter).__name__)
        yield self.waits

    async def calls(self, after: int = 0) -> tuple[Call, ...]:
        self.asked.append(after)
        return tuple(each for each in self.seen if each.seq > after)

    async def misses(self, after: int = 0) -> tuple[str, ...]:
        return self.texts


def given() -> AgentInput:
    state = SimpleNamespace(messages=[])
    return AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=state)


def call(agent: AgentAdapter, limit: float | None = 20.0, session: Session | None = None) -> AdapterAnswer:
    return asyncio.run(AgentCaller(limit, AgentTraffic(cast("Any", session))).call_agent(agent, given()))


def test_messages_and_time_come_back() -> None:
    """Normalised, with the seconds it took; a result ends the run, and is not touched here."""
    ticks = iter([10.0, 12.5])
    caller = AgentCaller(None, clock=lambda: next(ticks))
    answer = asyncio.run(caller.call_agent(Agent("hi"), given()))
    assert answer == AdapterAnswer([{"role": "assistant", "content": "hi"}], 2.5)
    assert caller.busy is None
    result = ScenarioResult(success=True, messages=[])
    assert call(Judge(result)).returned is result


@pytest.mark.parametrize("told", [
    {"failed_criteria": ["polite"], "passed_criteria": ["short"]},
    {"inconclusive_criteria": ["polite"]},
    {"criteria": [CriterionResult(criterion="polite", status="failed")]},
])  # fmt: skip
def test_a_result_that_contradicts_itself_passes_nobody(told: dict[str, Any]) -> None:
    """A judge of one's own says success, and names a criterion that did not pass: an error that names it."""
    with pytest.raises(ValueError, match=r"Judge returned a result with success=True .* did not pass: 'polite'\."):
        call(Judge(ScenarioResult(success=True, messages=[], **told)))
    assert call(Judge(ScenarioResult(success=False, messages=[], **told))).returned


def test_what_is_no_message_is_an_error_that_names_the_class() -> None:
    """With what to return instead; what is no message is told in tests/scenario/values/test_messages.py."""
    with pytest.raises(ValueError, match="On the call method of the Agent agent adapter, you returned") as caught:
        call(Agent(lambda _given: ("a", "b")))
    assert "should return either a string, a dict" in str(caught.value)


def test_a_call_that_is_not_async_is_told_how() -> None:
    class Plain(Person):
        def call(self, input: AgentInput) -> str:  # type: ignore[override]
            return "hi"

    with pytest.raises(TypeError, match="probably forgot to add the async keyword"):
        call(Plain())


@pytest.mark.parametrize(("kind", "error"), [(Agent, AgentError), (User, UpstreamError), (Judge, UpstreamError)])
def test_who_hangs_is_given_up(kind: Callable[..., AgentAdapter], error: type[Exception]) -> None:
    """The agent's silence is its own error; the simulator's says nothing about the agent."""
    with pytest.raises(error, match=r"gave no answer in 0.05 s.\n.*call_timeout"):
        call(kind(lambda _given: asyncio.sleep(30)), limit=0.05)


def test_a_timeout_of_the_adapters_own_comes_out_unchanged() -> None:
    """Not every TimeoutError is ours; a cancellation must not look as if the caller was cancelled."""
    with pytest.raises(TimeoutError, match="my own"):
        call(Agent(TimeoutError("my own")))
    with pytest.raises(AgentError, match="Agent raised CancelledError, although nobody cancelled it"):
        call(Agent(asyncio.CancelledError()))


async def test_whoever_cancels_the_call_is_obeyed() -> None:
    task = asyncio.create_task(AgentCaller(None).call_agent(Agent(lambda _given: asyncio.sleep(30)), given()))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_everybody_takes_turns_and_waiting_is_nobodys_time() -> None:
    """A judge of one's own may ask a model as an agent does; the seconds waited are kept apart."""
    session = Session(waits=3.0)
    caller = AgentCaller(None, AgentTraffic(cast("Any", session)))
    for person in (User(), Agent(), Judge([])):
        answer = asyncio.run(caller.call_agent(person, given()))
        assert answer.seconds < 3
    assert session.turns == ["User", "Agent", "Judge"]
    assert caller.waited == 9.0


def test_a_miss_without_a_text_tells_its_note() -> None:
    with pytest.raises(MissError, match="the note"):
        call(Agent(), session=Session(heard(1, miss=True, note="the note")))


async def test_exchanges_are_looked_at_once() -> None:
    """Each look goes on where the last one ended."""
    session = Session(heard(1), heard(2))
    caller = AgentCaller(None, AgentTraffic(cast("Any", session)))

    await caller.call_agent(Agent(), given())
    await caller.call_agent(Agent(), given())
    assert session.asked == [0, 2]
    assert [each.seq for each in caller.traffic.calls] == [1, 2]
    assert list(caller.traffic.wire_observer.list_tool_uses()) == []


def test_whose_misses_raise_is_not_asked_about() -> None:
    """The simulator's and the judge's calls say it by themselves."""

    class Ours(User):
        raises_misses = True

    session = Session()
    call(Ours(), session=session)
    assert session.asked == []


@pytest.mark.parametrize(("who", "error"), [(Agent, AgentError), (Judge, MachineError), (User, MachineError)])
def test_who_calls_sys_exit_ends_no_program(who: Callable[..., AgentAdapter], error: type[Exception]) -> None:
    """With the status 0 it would look as if all were well."""
    with pytest.raises(error, match=r"called sys.exit\(0\) instead of answering"):
        call(who(SystemExit(0)))


def test_whoever_is_about_to_look_sees_what_came_since() -> None:
    """However short a time after the agent's answer: on a quick machine a whole call fits into a few milliseconds."""
    session = Session(heard(1))
    caller = AgentCaller(5, AgentTraffic(cast("Any", session)), clock=lambda: 1.0)
    asyncio.run(caller.call_agent(Agent("ok"), given()))
    session.seen = (heard(1), heard(2))
    asyncio.run(caller.traffic.mark_calls_not_late())
    assert (session.asked, caller.traffic.answered) == ([0, 1], 2)


def test_what_came_last_is_told_with_the_end_of_the_session() -> None:
    """Misses in it are errors; a proxy that does not say what came is one, too."""
    traffic, session = AgentTraffic(), cast("Any", Session(texts=("never recorded",)))
    assert asyncio.run(traffic.find_late_calls(session, ())) == []
    with pytest.raises(MissError, match="never recorded"):
        asyncio.run(traffic.find_late_calls(session, cast("Any", (heard(3, miss=True),))))
    late = asyncio.run(traffic.find_late_calls(session, cast("Any", (heard(4), heard(5, party="user")))))
    assert [call.seq for call in late] == [3, 4]
    with pytest.raises(MachineError, match="earlier version"):
        asyncio.run(traffic.find_late_calls(session, None))


class Plain:
    name = "plain"

    def invoke(self, call: Any) -> Any:
        return {"output": f"{len(call.messages)} heard", "session": len(call.messages)}


def test_it_need_not_be_callable_or_async() -> None:
    """A name and `invoke` are enough."""
    script = [scenario.user(), scenario.agent(), scenario.succeed()]
    assert said(play(User("hi"), Plain(), script=script)) == ["hi", "1 heard"]


def test_sessions_belong_to_a_conversation() -> None:
    """A clone begins without any; an object that has no name and `invoke` is refused."""
    adapter = ConnectedAgentAdapter(Plain())
    given = scenario.AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None)
    assert asyncio.run(adapter.call(given)) == "0 heard"
    assert (adapter.session_for("t"), adapter.session_for("u"), adapter.clone().session_for("t")) == (0, None, None)
    with pytest.raises(TypeError, match="takes an object with a name and a method invoke"):
        ConnectedAgentAdapter(object())


class Service(Agent):
    """An agent with a life: it notes what happens to it."""

    def __init__(self, log: list[str], *lines: Any, name: str = "A") -> None:
        super().__init__(*(lines or ("x",)))
        self.log, self.name, self.clones = log, name, 0

    async def open(self, session: object) -> None:
        self.log.append(f"open {self.name} {session}")

    async def close(self) -> None:
        self.log.append(f"close {self.name}")

    def clone(self) -> Self:
        self.clones += 1
        return type(self)(self.log, *self.lines, name=f"{self.name}{self.clones}")


def test_classes_and_functions_make_an_adapter_for_each_run() -> None:
    """A factory stands for one adapter per run."""
    made: list[Agent] = []

    def factory() -> Agent:
        made.append(Agent("made"))
        return made[-1]

    assert said(play(factory, Agent, max_turns=1)) == ["made", "agent"]
    play(factory, max_turns=1)
    assert len(made) == 2


@pytest.mark.parametrize("wrong", ["my agent", None, lambda: None, {"role": "agent"}])
def test_what_is_no_agent_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"agents\[1\] is .* no agent; wrap it in a class") as caught:
        convert_to_agent_adapters([Agent(), wrong])
    assert "async def call(self" in str(caught.value)


def test_adapters_are_opened_once_and_closed_in_reverse() -> None:
    """Before the first call and after the last, whatever happened; also when listed twice; without a proxy the session is None."""
    log: list[str] = []
    first, second = Service(log), Service(log, name="B")
    play(first, second, first, max_turns=1)
    assert log == ["open A None", "open B None", "close B", "close A"]
    log = []
    with pytest.raises(ValueError, match="broken"):
        play(Service(log, ValueError("broken")))
    assert log[-1] == "close A"


def test_an_adapter_that_cannot_open_ends_the_run_and_the_others_are_closed() -> None:
    """The error comes out; it is the fault of whose adapter it is."""
    log: list[str] = []

    class Broken(Agent):
        async def open(self, session: object) -> None:
            raise ConnectionError("no such machine")

    ear = Ear()
    with pytest.raises(ConnectionError, match="no such machine"):
        play(Service(log), Broken(), ear=ear)
    assert log == ["open A None", "close A"]
    assert finished(ear).status == "agent_error"


def test_an_adapter_that_cannot_close_changes_no_verdict() -> None:
    """It is told as a label, and the others are closed."""
    log: list[str] = []

    class Sticky(Agent):
        async def close(self) -> None:
            raise OSError("file is busy")

    result = play(Service(log), Sticky(), max_turns=1)
    assert result.labels == ("Sticky could not close: file is busy",)
    assert log[-1] == "close A"


def test_an_object_with_a_life_belongs_to_one_run_at_a_time() -> None:
    """A run that starts meanwhile works with a clone, one for all its places in the list."""
    log: list[str] = []

    async def meanwhile(_given: object) -> str:
        while sum(line.startswith("open") for line in log) < 2:
            await asyncio.sleep(0.01)
        return "x"

    service = Service(log, meanwhile)

    async def both() -> None:
        await asyncio.gather(*(executor(service, User(), service, max_turns=1).run() for _ in range(2)))

    asyncio.run(both())
    assert sorted(log) == ["close A", "close A1", "open A None", "open A1 None"]
    asyncio.run(executor(service, max_turns=1).run())
    assert log[-1] == "close A", "free again"


async def test_other_objects_are_shared() -> None:
    """Users look into the agent that they handed in."""
    agent = Agent(lambda _given: asyncio.sleep(0.02, "x"))

    await asyncio.gather(*(executor(agent, max_turns=1).run() for _ in range(3)))
    assert len(agent.inputs) == 3


def test_the_default_clone_is_a_shallow_copy() -> None:
    """Enough for adapters without state of their own."""
    agent = Agent("x")
    copy = agent.clone()
    assert copy is not agent
    assert copy.lines is agent.lines


async def test_a_cast_can_be_entered_again() -> None:
    cast, log = Participants([Service([])]), []

    for _ in range(2):
        cast.claim_adapters()
        await cast.open_adapters(None)
        log.append(await cast.close_adapters())
    assert log == [[], []]


def test_an_adapter_without_call_cannot_be_made() -> None:
    """`call` is abstract; the role is AGENT unless it says otherwise."""
    with pytest.raises(TypeError, match="call"):
        AgentAdapter()  # type: ignore[abstract]
    assert AgentAdapter.role is AgentRole.AGENT
    assert isinstance(executor(), ScenarioExecutor)
