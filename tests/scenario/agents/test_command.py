"""Commands that speak JSON lines: recorded through a real proxy, replayed without a provider, and every way to go wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any, ClassVar, Literal

import pytest

from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agent_adapter import OptionalAdapterAttributes
from llmproxy.scenario.agents.command import AgentProcess, CommandAgent, ProcessEnded
from llmproxy.scenario.types import AdapterModelAccessThroughProxy
from tests.provider import Provider
from tests.scenario.agents_fixtures import ANSWER, NODE_LINES, PYTHON_LINES, TOOLS, ask, dialogue, given, one_run
from tests.support import near


def faulty(name: str, **more: Any) -> CommandAgent:
    """Return the Python agent with one of its faults."""
    return CommandAgent([*PYTHON_LINES, name], **more)


@pytest.mark.parametrize("command", [PYTHON_LINES, NODE_LINES], ids=["Python", "Node"])
def test_an_agent_in_any_language_is_recorded_and_replayed_without_a_provider(
    command: Sequence[str], tmp_path: Path
) -> None:
    """Same answer and same tool calls from another proxy over the same store, and nothing goes upstream."""
    with Provider(dialogue()) as provider, near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px:
        recorded = asyncio.run(one_run(px.url, CommandAgent(command), "weather", "record"))
        provider.finish()
    with near("replay", tmp_path / "x.db") as px:
        replayed = asyncio.run(one_run(px.url, CommandAgent(command), "weather", "replay"))
    assert recorded == (ANSWER, TOOLS, 2)
    assert replayed == (*recorded[:2], 0)


def test_a_frame_says_everything() -> None:
    """Conversation, message, history, and where the models are; nothing is made up."""
    llm = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather~2")
    before = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    (said,) = ask(faulty("echo"), given("and now?", thread="t9", llm=llm, before=before))
    frame = json.loads(said)
    assert frame["conversation"] == "t9"
    assert frame["message"] == "and now?"
    assert frame["messages"] == [*before, {"role": "user", "content": "and now?"}]
    assert frame["llm"]["base_urls"]["openai"] == "http://127.0.0.1:8080/s/weather~2/v1"
    assert frame["llm"]["headers"] == {"x-llmproxy-session": "weather~2"}
    frame = json.loads(ask(faulty("echo"), given(None))[0])
    assert (frame["message"], frame["messages"], frame["llm"]) == (None, [], None)


def test_a_process_gets_the_sessions_variables_over_those_that_were_given() -> None:
    """So an agent that knows nothing of sessions is recorded all the same."""
    llm = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather", replay=True)
    agent = faulty("env", env={"OPENAI_BASE_URL": "http://elsewhere/v1", "COLOUR": "red"})
    env = json.loads(ask(agent, given(llm=llm))[0])
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:8080/s/weather/v1"
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080/s/weather/anthropic"
    assert env["LLMPROXY_URL"] == "http://127.0.0.1:8080"
    assert env["COLOUR"] == "red"


@pytest.mark.parametrize(("process", "same"), [("run", True), ("conversation", False)])
def test_a_process_lives_for_a_run_or_for_a_conversation(process: Literal["run", "conversation"], same: bool) -> None:
    """Two conversations share one process, or have one each."""
    script = "import sys, os, json\nfor line in sys.stdin: print(json.dumps({'text': str(os.getpid())}), flush=True)"
    agent = CommandAgent([sys.executable, "-c", script], process=process)
    one, two, again = ask(agent, given(thread="a"), given(thread="b"), given(thread="a"))
    assert (one == two) is same
    assert one == again


def test_messages_are_given_on_as_they_are() -> None:
    """An agent that reports its messages is believed."""
    assert ask(faulty("messages"), given()) == [[{"role": "assistant", "content": "I looked."}]]


WRONG = {
    "crash": ["ended with exit code 1 without an answer", "RuntimeError: the database is gone"],
    "garbage": ["no JSON: INFO starting up", "print everything else on standard error", "lines: false"],
    "number": ["no object: 42"],
    "empty": ["gave an empty answer"],
    "nothing": ["answered {}, which has none of them"],
    "other-id": ["answered message 99 when it was asked message 1"],
    "error": ['answered with an error: "no such tool"'],
    "close": ["closed its standard output in the middle"],
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_agent_that_was_started_and_goes_wrong_is_at_fault(fault: str) -> None:
    """The error says what it did, and shows the end of what it complained of."""
    with pytest.raises(AgentError) as caught:
        ask(faulty(fault), given())
    for part in WRONG[fault]:
        assert part in str(caught.value)


def test_an_agent_that_hangs_is_killed_with_everything_that_it_started() -> None:
    said = ""
    for seconds in (1, 4, 16, 64):  # enough for it to say where it sleeps, however busy this machine is
        if "sleeping " not in said:
            with pytest.raises(AgentError, match=f"did not answer within {seconds} s, and was killed") as caught:
                ask(faulty("hang", timeout=float(seconds)), given())
            said = str(caught.value)
    assert gone(int(said.rpartition("sleeping ")[2].split()[0]))


def running(group: int) -> bool:
    """Return whether a process of the group is alive (one that is dead and not yet collected is not)."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def gone(group: int) -> bool:
    deadline = time.monotonic() + 60
    while running(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(group)


def test_close_ends_what_a_process_started() -> None:
    """Children that outlive their parent are killed, too."""
    script = (
        "import sys, os, json, subprocess\n"
        "subprocess.Popen(['sleep', '60'])\n"
        "for line in sys.stdin: print(json.dumps({'text': str(os.getpid())}), flush=True)"
    )
    (said,) = ask(CommandAgent([sys.executable, "-c", script]), given())
    assert gone(int(said))


def test_an_agent_killed_in_the_middle_of_a_conversation_is_at_fault() -> None:
    """The first answer came, then kill -9: it was reached, so it counts."""
    with pytest.raises(AgentError, match="was killed by signal 9 without an answer"):
        ask(faulty("second-crash"), given(), given())


async def test_a_second_line_is_not_taken_for_the_next_answer() -> None:
    """What nobody asked for is an error, not the answer to something else."""
    agent = faulty("twice")
    assert await agent.call(given()) == "one"
    await asyncio.sleep(0.3)
    with pytest.raises(AgentError, match="said something that nobody asked for"):
        await agent.call(given())
    await agent.close()


@pytest.mark.parametrize(("command", "more", "part"), [
    (["no-such-agent-anywhere"], {}, "Is it installed"),
    ([sys.executable], {"cwd": "/no/such/folder"}, "in /no/such/folder"),
    ([*PYTHON_LINES, "127"], {}, "exit code 127"),
    (["/etc/hostname"], {}, "cannot be started"),
    (["node agent.mjs"], {}, "list of words"),
])  # fmt: skip
def test_an_agent_that_cannot_be_started_was_never_reached(command: list[str], more: dict[str, Any], part: str) -> None:
    """The environment is to blame, and the text says with what."""
    with pytest.raises(AgentUnreachable) as caught:
        ask(CommandAgent(command, **more), given())
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [({"command": ""}, "no program"), ({"command": "a 'b"}, "split"), ({"command": "a", "process": "runs"}, "'run'")],
)
def test_what_cannot_be_meant_is_refused_at_once(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(SuiteError, match=part):
        CommandAgent(**arguments)


def test_a_plain_program_is_started_for_each_message() -> None:
    """Its input is the message, its whole output the answer."""
    agent = CommandAgent("tr a-z A-Z", lines=False)
    assert ask(agent, given("good morning\nworld"), given("bye")) == ["GOOD MORNING\nWORLD", "BYE"]


@pytest.mark.parametrize(
    ("script", "seconds", "part"),
    [("exit 3", 60, "exit code 3"), ("true", 60, "empty answer"), ("sleep 60", 0.2, "within 0.2 s")],
)
def test_a_plain_program_that_fails_is_at_fault(script: str, seconds: float, part: str) -> None:
    """By its exit code, by silence, by the clock."""
    with pytest.raises(AgentError, match=part):
        ask(CommandAgent(["sh", "-c", script], lines=False, timeout=seconds), given())


def test_a_large_message_reaches_an_agent_that_answers_at_length() -> None:
    """Pipes that are full on both sides do not lock up."""
    big = "ä" * 200_000
    (said,) = ask(faulty("echo"), given(big))
    assert json.loads(said)["message"] == big


async def test_a_clone_has_processes_of_its_own() -> None:
    """Ending the one does not end the other."""
    agent = faulty("echo")
    other = agent.clone()
    await agent.call(given())
    await other.call(given())
    await agent.close()
    said = str(await other.call(given("still there?")))
    await other.close()
    assert json.loads(said)["message"] == "still there?"


class SlowChild(AgentProcess):
    """A process that runs for a while before whoever starts it has it in hand, and is not given long to end."""

    begun: ClassVar[Queue[int]]
    go: ClassVar[Event]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun.put(self.popen.pid)
        self.go.wait(60)

    def end_process(self, grace: float = 0.1) -> None:
        super().end_process(grace)


class SlowAgent(CommandAgent):
    child = SlowChild


@pytest.mark.parametrize(
    ("started", "lines"),
    [(False, True), (True, True), (True, False)],
    ids=["being started", "in the middle of an answer", "a plain program"],
)
async def test_a_run_that_is_cancelled_leaves_no_process(started: bool, lines: bool) -> None:
    """Nobody else would have ended it, and its answer would have been waited for."""
    begun, go = Queue[int](), Event()
    SlowChild.begun, SlowChild.go = begun, go
    agent = SlowAgent([sys.executable, "-c", "import time; time.sleep(600)"], lines=lines)
    task = asyncio.create_task(agent.call(given()))
    process = await asyncio.to_thread(begun.get)
    if started:
        go.set()
        await asyncio.sleep(0.2)
    task.cancel()
    await agent.close()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(gone, process)


def test_ctrl_c_while_processes_end_leaves_no_complaint() -> None:
    """`asyncio.run` cancels every task then: the end goes on in its thread, and no exception is left that nobody asks for."""
    complaints: list[dict[str, Any]] = []

    async def run() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        agent = CommandAgent([sys.executable, "-c", "import json, os\nwhile input(): print(json.dumps({'text': str(os.getpid())}), flush=True)"])  # fmt: skip
        said = int(str(await agent.call(given())))
        closing = asyncio.ensure_future(agent.close())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        return said

    process = asyncio.run(run())
    gc.collect()
    assert (complaints, running(process)) == ([], False)


def test_who_never_answered_is_told_what_it_is_given() -> None:
    """A program that reads to the end waits for ever; one that has answered knows the form."""
    waits = CommandAgent(["cat"])
    assert "lines: false" in OptionalAdapterAttributes.of_adapter(waits).silence_hint
    assert OptionalAdapterAttributes.of_adapter(CommandAgent(["cat"], lines=False)).silence_hint == ""
    answers = faulty("echo")
    ask(answers, given())
    assert OptionalAdapterAttributes.of_adapter(answers).silence_hint == ""


@contextmanager
def child(code: str) -> Iterator[AgentProcess]:
    """Run Python code as a child, killed at the end."""
    made = AgentProcess([sys.executable, "-u", "-c", code], None, dict(os.environ))
    try:
        yield made
    finally:
        made.kill_group()


def test_a_line_that_does_not_come_is_a_timeout_and_its_end_stays_its_end() -> None:
    """Waiting ends in time; after the last line every question gets the same answer."""
    with child("import sys; sys.stdin.read()") as made:
        with pytest.raises(TimeoutError):
            made.read_next_line(0.1)
        assert made.popen.stdin is not None
        made.popen.stdin.close()
        for _ in range(2):
            with pytest.raises(ProcessEnded):
                made.read_next_line(10)


def test_the_end_of_its_complaints_is_kept() -> None:
    """However many there are: the last lines, not the first."""
    with child("import sys\nfor n in range(5000): print(n, file=sys.stderr)") as made:
        made.wait_for_exit(20)
        assert made.stderr_tail.endswith("4999\n")
        assert "\n1000\n" not in made.stderr_tail


def test_a_process_that_ends_by_itself_is_not_killed() -> None:
    """Closing its input is enough; it may tidy up."""
    with child("import sys; sys.stdin.read(); sys.exit(7)") as made:
        made.end_process()
        assert made.popen.returncode == 7


def test_a_process_that_ignores_everything_is_killed() -> None:
    """Its input, SIGTERM, then SIGKILL."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
    with child(code) as made:
        made.read_next_line(10)
        made.end_process(grace=0.2)
        assert made.popen.returncode == -9  # not 0, as by itself after a minute


def test_an_unasked_line_can_be_seen() -> None:
    """And nothing is seen where there is none."""
    with child("print('hello'); import time; time.sleep(60)") as made:
        assert made.read_next_line(10) == b"hello\n"
        assert made.take_unread_line() is None
