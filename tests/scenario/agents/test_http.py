"""One request to an agent, and everything that can go wrong with it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agents.http import read_url
from llmproxy.scenario.agents.http_json import HttpAgent
from llmproxy.scenario.types import AgentReturnTypes
from tests.scenario.agents_fixtures import Served, given, http_agent
from tests.support import free_port


def ask(agent: HttpAgent, times: int = 1) -> AgentReturnTypes:
    """Ask an agent, and close it."""

    async def run() -> AgentReturnTypes:
        await agent.open(None)
        try:
            for _ in range(times - 1):
                await agent.call(given())
            return await agent.call(given())
        finally:
            await agent.close()

    return asyncio.run(run())


WRONG = {
    "/500": ["HTTP 500", "the database is gone"],
    "/502": ["HTTP 502", "a web page ('Bad Gateway')"],
    "/html": ["a web page ('Sign in'), not with JSON", "the right URL"],
    "/empty": ["an empty answer"],
    "/silent": ["an empty answer"],
    "/prose": ["no JSON", "Hello there"],
    "/null": ["null, which is neither"],
    "/error": ["with an error", "quota"],
    "/moved": ["HTTP 302", "/login", "not followed"],
    "/break": ["broke off"],
}


@pytest.mark.parametrize("path", WRONG)
def test_an_agent_that_was_reached_and_answers_nonsense_is_at_fault(path: str, agent: Served) -> None:
    """The error names the agent, and shows what came."""
    with pytest.raises(AgentError) as caught:
        ask(HttpAgent(agent.url + path))
    for part in (agent.url + path, *WRONG[path]):
        assert part in str(caught.value)


def test_an_agent_that_hangs_is_at_fault(agent: Served) -> None:
    """It had its time."""
    with pytest.raises(AgentError, match=r"did not answer within 0\.5 s"):
        ask(HttpAgent(agent.url + "/hang", timeout=0.5))


def test_a_port_that_nobody_listens_on_was_never_reached() -> None:
    """Nothing was tested, so it is the environment's fault."""
    with pytest.raises(AgentUnreachable, match="cannot be reached") as caught:
        ask(HttpAgent(f"http://127.0.0.1:{free_port()}/ask"))
    assert caught.value.exit_code == 3


def test_a_host_that_does_not_exist_was_never_reached() -> None:
    """The name cannot be resolved."""
    with pytest.raises(AgentUnreachable):
        ask(HttpAgent("http://no-such-host.invalid/ask"))


def test_an_agent_that_is_killed_in_the_middle_of_an_answer_is_at_fault(tmp_path: Path) -> None:
    """The connection was there, and broke off."""
    with http_agent(tmp_path) as running, pytest.raises(AgentError, match="broke off"):
        ask(HttpAgent(running.url + "/die"))


def test_an_agent_that_answered_and_is_gone_has_crashed(tmp_path: Path) -> None:
    """In the same conversation: it was reached, so it counts. In the next run it was never reached."""

    async def run(url: str, running: Served) -> None:
        mine = HttpAgent(url)
        await mine.open(None)
        await mine.call(given())
        running.popen.kill()
        running.popen.wait()
        with pytest.raises(AgentError, match="answered before"):
            await mine.call(given())
        await mine.close()
        await mine.open(None)
        with pytest.raises(AgentUnreachable):
            await mine.call(given())
        await mine.close()

    with http_agent(tmp_path) as running:
        asyncio.run(run(running.url + "/echo", running))


def test_nothing_is_asked_twice() -> None:
    """An agent that breaks off gets one connection: what it did may not be done again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        arrived = 0

        def serve() -> None:
            nonlocal arrived
            try:
                while True:
                    connection, _ = server.accept()
                    arrived += 1
                    connection.recv(65536)
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(AgentError):
            ask(HttpAgent(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert arrived == 1


def test_proxy_variables_do_not_stand_between_us_and_this_machine(
    agent: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may name our own proxy, which would record the agent itself."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    assert ask(HttpAgent(agent.url + "/plain")) == "Just text."


def test_errors_show_no_key() -> None:
    """An address may hold one."""
    with pytest.raises(AgentUnreachable) as caught:
        ask(HttpAgent(f"http://me:s3cret@127.0.0.1:{free_port()}/ask?key=s3cret"))
    assert "s3cret" not in str(caught.value)
    assert "/ask" in str(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x/y", "http://", "http://x:port/", "http://x:0/"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(SuiteError, match="no address"):
        read_url(url)


def test_two_runs_in_loops_of_their_own_do_not_share_connections(agent: Served) -> None:
    """A clone can be used while the original is."""
    mine = HttpAgent(agent.url + "/plain")
    found: list[AgentReturnTypes] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(ask(each, times=3))) for each in (mine, mine.clone())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["Just text."] * 2


def test_the_module_costs_no_http_library() -> None:
    """The library is imported by the first request."""
    import subprocess

    code = (
        "import sys, llmproxy.scenario.agents.config, llmproxy.scenario.agents.http_json; print('httpx' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False"
