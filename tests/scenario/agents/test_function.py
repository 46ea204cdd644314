"""Python callables as agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.agents.function import FunctionAgent
from llmproxy.scenario.types import AdapterModelAccessThroughProxy, AgentInput, AgentReturnTypes, AgentRole
from tests.scenario.agents_fixtures import ask as ask_agent, given

LLM_HERE = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather")
BEFORE = ({"role": "assistant", "content": "hello"},)


def ask(agent: FunctionAgent, text: str | None = "hi") -> Any:
    return ask_agent(agent, given(text, thread="t9", llm=LLM_HERE, before=BEFORE))[0]


def sole(text: str) -> str:
    return f"heard {text}"


def takes_input(input: AgentInput) -> str:  # noqa: A002
    return input.thread_id


def annotated(request: AgentInput) -> str:
    return request.last_new_user_message_str()


async def waits(message: str, *, llm: AdapterModelAccessThroughProxy) -> str:
    await asyncio.sleep(0)
    return f"{message} by {llm.session}"


class Callee:
    async def __call__(self, message: str) -> str:
        return message.upper()


@pytest.mark.parametrize(("target", "said"), [
    (sole, "heard hi"),
    (takes_input, "t9"),
    (annotated, "hi"),
    (lambda messages, thread_id, message="": f"{len(messages)} {thread_id} {message}", "2 t9 hi"),
    (waits, "hi by weather"),
    (lambda message: waits(message, llm=LLM_HERE), "hi by weather"),
    (lambda *args, **more: f"{args} {more}", "() {}"),
    (Callee(), "HI"),
    (lambda: "nothing asked", "nothing asked"),
    (lambda text, /: text, "hi"),
    (lambda message, /, thread_id: message + thread_id, "hit9"),
])  # fmt: skip
def test_a_callable_gets_what_it_asks_for_by_name(target: Callable[..., Any], said: str) -> None:
    """Sync or async, a function or an object; one argument of another name is the message."""
    assert ask(FunctionAgent(target)) == said


def test_a_parameter_that_we_have_nothing_for_is_refused() -> None:
    agent = FunctionAgent(lambda mesage, thread_id: mesage + thread_id)
    with pytest.raises(SuiteError, match="'mesage', and there is no such argument; did you mean 'message'"):
        ask(agent)


def test_nobody_having_spoken_is_none() -> None:
    assert ask(FunctionAgent(lambda message: message is None), None) is True


def test_what_a_callable_raises_is_not_touched() -> None:
    """The author knows that exception; a TimeoutError says something else than that it was too slow."""
    with pytest.raises(ZeroDivisionError):
        ask(FunctionAgent(lambda message: 1 / 0))

    def late(message: str) -> str:
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        ask(FunctionAgent(late, timeout=30))


def test_a_blocking_callable_holds_nobody_up_and_runs_out_of_time() -> None:
    free = threading.Event()
    over = threading.Event()

    def block(message: str) -> None:
        free.wait(30)
        over.set()

    agent = FunctionAgent(block, timeout=0.3)
    with pytest.raises(AgentError, match=r"within 0\.3 s"):
        ask(agent)
    assert not over.is_set(), "it was waited for"
    free.set()


async def test_context_variables_are_seen_in_the_thread() -> None:
    name: ContextVar[str] = ContextVar("name", default="")

    name.set("mine")
    assert (await FunctionAgent(lambda message: name.get()).call(given())) == "mine"


class Adapter(AgentAdapter):
    uses_session: ClassVar[bool] = True
    opened = closed = 0

    async def open(self, session: object) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002
        return f"opened {self.opened}"


def test_an_adapter_stays_one() -> None:
    """Opened, closed, cloned and described as it is."""
    inner = Adapter()
    agent = FunctionAgent(inner)
    assert ask(agent) == "opened 1"
    assert (inner.opened, inner.closed) == (1, 1)
    assert (agent.uses_session, agent.in_process, agent.role) == (True, True, AgentRole.AGENT)
    assert agent.clone()._found is not inner


@pytest.mark.parametrize(("target", "uses"), [(waits, True), (sole, False), (takes_input, False)])
def test_a_callable_that_takes_llm_needs_no_turn(target: Callable[..., Any], uses: bool) -> None:
    assert FunctionAgent(target).uses_session is uses


def write(folder: Path, text: str) -> None:
    """Write a module that has a name of its own for each test."""
    (folder / f"mod_{folder.name}.py").write_text(text, "utf-8")


def test_a_callable_is_named_by_module_or_file(tmp_path: Path) -> None:
    """Both are found from the folder on, and what lies beside them can be imported."""
    write(tmp_path, "from helper_of_mine import WORD\nclass Kit:\n    def answer(message): return WORD + message\n")
    (tmp_path / "helper_of_mine.py").write_text("WORD = 'so: '", "utf-8")
    assert ask(FunctionAgent(f"mod_{tmp_path.name}:Kit.answer", folder=tmp_path)) == "so: hi"
    assert ask(FunctionAgent(f"mod_{tmp_path.name}.py:Kit.answer", folder=tmp_path)) == "so: hi"


def test_nothing_is_imported_before_the_first_run(tmp_path: Path) -> None:
    """A suite can be checked without running anybody's code."""
    write(tmp_path, "raise SystemExit('ran')")
    FunctionAgent(f"mod_{tmp_path.name}:answer", folder=tmp_path)


@pytest.mark.parametrize(("text", "target", "kind", "said"), [
    ("", "no_such_module_here:answer", AgentUnreachable, "no module 'no_such_module_here'"),
    ("", "no_such_file.py:answer", AgentUnreachable, "no file no_such_file.py"),
    ("def answer(message): ...", "MODULE:anser", AgentUnreachable, "did you mean 'answer'"),
    ("import no_such_thing", "MODULE:answer", AgentError, "no_such_thing"),
    ("1 / 0", "MODULE:answer", AgentError, "ZeroDivisionError"),
    ("open('no_data')", "MODULE.py:answer", AgentError, "crashed while it was imported: FileNotFoundError"),
    ("answer = 5", "MODULE:answer", SuiteError, "neither a callable"),
])  # fmt: skip
def test_what_cannot_be_imported_says_why(
    tmp_path: Path, text: str, target: str, kind: type[Exception], said: str
) -> None:
    """Not there: the environment's fault. Crashes when imported: the agent's."""
    write(tmp_path, text)
    with pytest.raises(kind, match=said):
        ask(FunctionAgent(target.replace("MODULE", f"mod_{tmp_path.name}"), folder=tmp_path))


@pytest.mark.parametrize("target", ["answer", ":answer", "module:", ""])
def test_a_name_that_cannot_be_one_is_refused_at_once(target: str) -> None:
    with pytest.raises(SuiteError, match=r"package\.module:agent"):
        FunctionAgent(target)
