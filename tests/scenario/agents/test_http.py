"""Agents over HTTP: any JSON endpoint, an OpenAI-compatible one, and everything that can go wrong with a request."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.control import ControlApiClient
from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agents.http import (
    PROBE,
    AgentRequestTemplate,
    HttpAgent,
    OpenAIAgent,
    ServiceAgent,
    build_agent_template_values,
    validate_agent_url_syntax,
)
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AdapterModelAccessThroughProxy, AgentReturnTypes
from tests.provider import Provider, step
from tests.scenario.agents_fixtures import ANSWER, TOOLS, Served, ask, dialogue, given, http_agent, one_run
from tests.support import free_port, near
from tests.support.proxy import ask_chat

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
    with pytest.raises(AgentError, match=r"did not answer within 0\.5 s"):
        ask(HttpAgent(agent.url + "/hang", timeout=0.5))


def test_a_port_that_nobody_listens_on_was_never_reached() -> None:
    """Nothing was tested, so it is the environment's fault."""
    with pytest.raises(AgentUnreachable, match="cannot be reached") as caught:
        ask(HttpAgent(f"http://127.0.0.1:{free_port()}/ask"))
    assert caught.value.exit_code == 3
    with pytest.raises(AgentUnreachable):
        ask(HttpAgent("http://no-such-host.invalid/ask"))


def test_an_agent_that_is_killed_in_the_middle_of_an_answer_is_at_fault(tmp_path: Path) -> None:
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
    assert ask(HttpAgent(agent.url + "/plain")) == ["Just text."]


def test_errors_show_no_key() -> None:
    with pytest.raises(AgentUnreachable) as caught:
        ask(HttpAgent(f"http://me:s3cret@127.0.0.1:{free_port()}/ask?key=s3cret"))
    assert "s3cret" not in str(caught.value)
    assert "/ask" in str(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x/y", "http://", "http://x:port/", "http://x:0/"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SuiteError, match="no address"):
        validate_agent_url_syntax(url)


def test_two_runs_in_loops_of_their_own_do_not_share_connections(agent: Served) -> None:
    """A clone can be used while the original is."""
    mine = HttpAgent(agent.url + "/plain")
    found: list[AgentReturnTypes] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(ask(each, given(), given(), given())[-1]))
        for each in (mine, mine.clone())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["Just text."] * 2


def test_what_is_sent_is_the_template_filled_in(agent: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_KEY", "s3cret")
    mine = HttpAgent(
        agent.url + "/echo?user=$thread_id",
        body={"q": "$message", "all": "$messages"},
        headers={"Authorization": "Bearer $env.AGENT_KEY", "x-conversation": "$thread_id"},
    )
    (said,) = ask(mine, given("hi", thread="a/b c"))
    sent = json.loads(said)
    assert sent["body"] == {"q": "hi", "all": [{"role": "user", "content": "hi"}]}
    assert sent["path"] == "/echo?user=a%2Fb%20c"
    assert sent["headers"]["Authorization"] == "Bearer s3cret"
    assert sent["headers"]["x-conversation"] == "a/b c"


def test_without_a_template_message_and_conversation_are_sent(agent: Served) -> None:
    """An answer is looked for where JSON-lines agents have it; what a GET says stands in the address."""
    (said,) = ask(HttpAgent(agent.url + "/echo"), given("hi", thread="t9"))
    assert json.loads(said)["body"] == {"message": "hi", "thread_id": "t9"}
    (said,) = ask(HttpAgent(agent.url + "/echo?q=$message", method="get"), given("grüß & gott"))
    assert json.loads(said)["path"] == "/echo?q=gr%C3%BC%C3%9F%20%26%20gott"
    assert json.loads(said)["body"] is None


def test_the_agents_own_conversation_goes_back_to_it(agent: Served) -> None:
    """Null at first, then what it said; another conversation, and another run, begin anew."""
    mine = HttpAgent(
        agent.url + "/own",
        body={"text": "$message", "in": "$conversation"},
        reply="$.seen['in']",
        conversation="$.data.id",
    )
    with pytest.raises(AgentError, match="null at"):
        ask(mine, given())

    async def run() -> list[Any]:
        await mine.open(None)
        found: list[Any] = []
        for thread in ("a", "a", "b"):
            try:
                found.append(await mine.call(given(thread=thread)))
            except AgentError:
                found.append(None)
        await mine.close()
        return found

    assert asyncio.run(run()) == [None, "c-7", None]


def test_a_plain_text_is_an_answer_where_no_path_says_otherwise(agent: Served) -> None:
    """`reply: $` says the same; a path with [*] finds several; where a path finds nothing, the error shows what there is."""
    assert ask(HttpAgent(agent.url + "/plain")) == ["Just text."]
    assert ask(HttpAgent(agent.url + "/plain", reply="$")) == ["Just text."]
    with pytest.raises(AgentError, match="no JSON"):
        ask(HttpAgent(agent.url + "/plain", reply="$.text"))
    assert ask(HttpAgent(agent.url + "/own", reply="data.parts[*]")) == ["It works."]
    with pytest.raises(
        AgentError, match=r"without \$\.answer: there is no \$\.answer; \$ is an object with data, seen"
    ):
        ask(HttpAgent(agent.url + "/own", reply="$.answer"))


@pytest.mark.parametrize(("arguments", "said"), [
    ({"method": "POTS"}, "method: 'POTS'.*did you mean 'POST'"),
    ({"method": "GET", "body": {}}, "a GET sends no body"),
    ({"body": "$mesage"}, "no \\$mesage"),
    ({"headers": {"a": "$x"}}, "headers: there is no \\$x"),
    ({"reply": "$..x"}, "reply: "),
    ({"conversation": "$..x"}, "conversation: "),
    ({"body": {"c": "$conversation"}}, "nothing says where it stands"),
    ({"url": "localhost"}, "no address"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        HttpAgent(**{"url": "http://127.0.0.1:9/", **arguments})


def test_an_agent_that_is_told_its_session_in_the_body_is_recorded_and_replayed(tmp_path: Path) -> None:
    """Two runs in parallel at one service, each in its own session, then without the provider."""

    async def both(px: str, url: str, mode: str) -> list[Any]:
        body = {"question": "$message", "thread": "$thread_id", "llm": "$llm"}
        mine = [HttpAgent(url, body=body, reply="$.answer.said") for _ in range(2)]
        assert mine[0].sends_session
        return list(
            await asyncio.gather(*(one_run(px, *each, mode) for each in zip(mine, ("one", "two"), strict=True)))
        )

    with http_agent(tmp_path / "a") as running:
        with (
            Provider(dialogue(times=2), ordered=False) as provider,
            near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        ):
            recorded = asyncio.run(both(px.url, running.url + "/ask", "record"))
            provider.finish()
        with near("replay", tmp_path / "x.db") as px:
            replayed = asyncio.run(both(px.url, running.url + "/ask", "replay"))
    assert (recorded, replayed) == ([(ANSWER, TOOLS, 2)] * 2, [(ANSWER, TOOLS, 0)] * 2)


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_conversation_is_sent_and_the_answer_is_text(stream: bool, tmp_path: Path) -> None:
    """Whole or as a stream, recorded and replayed through a proxy that the agent was started with."""
    with (
        Provider(dialogue()) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        http_agent(tmp_path / "a", f"{px.url}/v1") as running,
    ):
        assert ask(OpenAIAgent(running.url + "/v1", stream=stream), given()) == [ANSWER]
        provider.finish()
    with near("replay", tmp_path / "x.db") as px, http_agent(tmp_path / "b", f"{px.url}/v1") as running:
        assert ask(OpenAIAgent(running.url + "/v1/chat/completions", stream=stream), given()) == [ANSWER]


def test_model_headers_and_history_are_sent() -> None:
    """A provider stands in for the agent, and looks at what arrives."""
    before = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    expected = step(user="and now?", model="my-agent", sends={"x-user": "t1"}, contains='"hello"', say="fine")
    with Provider([expected]) as provider:
        mine = OpenAIAgent(provider.url + "/v1", "my-agent", {"x-user": "$thread_id"})
        assert ask(mine, given("and now?", before=before)) == ["fine"]
        provider.finish()


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_that_an_agent_reports_are_given_on(stream: bool) -> None:
    """As a message, so that they are seen."""
    with Provider([step(user="hi", call=[{"name": "get_weather", "arguments": {"city": "Oslo"}}])]) as provider:
        (said,) = ask(OpenAIAgent(provider.url + "/v1", stream=stream), given("hi"))
    assert said["role"] == "assistant"
    assert said["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize(("path", "said"), [
    ("/no-completion", "no chat completion"),
    ("/html", "a web page"),
    ("/empty", "empty answer"),
    ("/error", "quota"),
    ("/500", "HTTP 500"),
])  # fmt: skip
def test_what_is_no_completion_is_the_agents_fault(path: str, said: str, agent: Served) -> None:
    mine = OpenAIAgent(agent.url)
    mine.url = agent.url + path
    with pytest.raises(AgentError, match=said):
        ask(mine, given())


def test_an_empty_completion_is_no_answer() -> None:
    with Provider([step(user="hi", say="")]) as provider, pytest.raises(AgentError, match="empty answer"):
        ask(OpenAIAgent(provider.url + "/v1"), given("hi"))


LLM_HERE = AdapterModelAccessThroughProxy("http://127.0.0.1:8080", "weather")
VALUES = build_agent_template_values(
    given("hi", thread="t1", llm=LLM_HERE, before=({"role": "assistant", "content": "hello"},)), "c-7"
)


@pytest.mark.parametrize(("template", "filled"), [
    ("$message", "hi"),
    ("say: $message!", "say: hi!"),
    ("${message}s", "his"),
    ("$$message costs $$5", "$message costs $5"),
    ("$$", "$"),
    ("costs $5", "costs $5"),
    ({"q": ["$message", 1, None, True]}, {"q": ["hi", 1, None, True]}),
    ({"$thread_id": {"deep": "$conversation"}}, {"t1": {"deep": "c-7"}}),
    ("$history", [{"role": "assistant", "content": "hello"}]),
    ("$messages", [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "hi"}]),
    ("all: $history", 'all: [{"role": "assistant", "content": "hello"}]'),
    ("$session at $proxy", "weather at http://127.0.0.1:8080"),
    ("Bearer $env.KEY", "Bearer s3cret"),
    ("$env.KEY", "s3cret"),
])  # fmt: skip
def test_a_name_becomes_its_value(template: Any, filled: Any) -> None:
    """The value itself where nothing else stands there, text inside a text."""
    assert AgentRequestTemplate.from_tree(template, "body").fill(VALUES, {"KEY": "s3cret"}) == filled


def test_what_is_not_there_is_null_or_empty() -> None:
    values = build_agent_template_values(given(None))
    filled = AgentRequestTemplate.from_tree(
        ["$message", "$session", "$llm", "$conversation", "<$conversation>"], "body"
    ).fill(values, {})
    assert filled == [None, None, None, None, "<>"]


@pytest.mark.parametrize("tree", ["$mesage", {"a": ["$mesage"]}, {"$mesage": 1}, "${mesage}"])
def test_a_name_that_is_none_is_refused_at_once(tree: Any) -> None:
    """Wherever it stands, with the one that was meant."""
    with pytest.raises(SuiteError, match=r"body: there is no \$mesage; did you mean 'message'"):
        AgentRequestTemplate.from_tree(tree, "body")


def test_a_variable_that_is_not_set_is_the_environments_fault() -> None:
    """It is only looked up when it is needed."""
    template = AgentRequestTemplate.from_tree("$env.NO_SUCH_KEY", "headers")
    with pytest.raises(AgentUnreachable, match="NO_SUCH_KEY is not set"):
        template.fill(VALUES, {})


def test_a_template_says_whether_it_hands_over_the_session() -> None:
    assert AgentRequestTemplate.from_tree({"a": "$llm"}, "body").sends_session
    assert AgentRequestTemplate.from_tree("$session", "headers").sends_session
    assert not AgentRequestTemplate.from_tree(["$message", "$proxy", "$$llm"], "body").sends_session


async def five(px: str, agent: ServiceAgent, mode: str) -> list[Any]:
    """Run five at once, each with a clone, as runs in parallel do."""
    return list(await asyncio.gather(*(one_run(px, agent.clone(), f"run-{n}", mode) for n in range(5))))


@pytest.mark.parametrize(
    ("path", "options", "propagates", "session"),
    [("/v1", (), None, "default"), ("/s/mine/v1", (), None, "mine"), ("/v1", ("--propagate",), "x-run", "nobody")],
    ids=["an address without a session", "a session of its own", "sends a header on"],
)
def test_five_runs_at_one_service_land_in_their_own_sessions(
    path: str, options: tuple[str, ...], propagates: str | None, session: str, tmp_path: Path
) -> None:
    """Recorded in parallel, then replayed without the provider: same answers, same tools, nothing upstream."""
    with Provider(dialogue(times=5), ordered=False) as provider:
        with (
            near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
            http_agent(tmp_path / "a", px.url + path, *options) as running,
        ):
            agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), session, propagates)
            recorded = asyncio.run(five(px.url, agent, "record"))
        provider.finish()
    with near("replay", tmp_path / "x.db") as px, http_agent(tmp_path / "b", px.url + path, *options) as running:
        agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), session, propagates)
        replayed = asyncio.run(five(px.url, agent, "replay"))
        open_now = [report.name for report in ControlApiClient(px.url).sessions()]
    assert recorded == [(ANSWER, TOOLS, 2)] * 5
    assert replayed == [(ANSWER, TOOLS, 0)] * 5
    assert not [name for name in open_now if name.startswith(PROBE)]


def test_a_header_that_is_not_sent_on_is_not_believed(tmp_path: Path) -> None:
    """The service is tested one message at a time instead, and the user is told; nothing went to the provider for the probe."""
    with (
        Provider(dialogue(times=5), ordered=False) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        http_agent(tmp_path / "a", px.url + "/v1") as running,
    ):
        agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), propagates="x-run")
        found = asyncio.run(five(px.url, agent, "record"))
        provider.finish()
        assert found == [(ANSWER, TOOLS, 2)] * 5

        async def once_more() -> tuple[str, ...]:
            session = await RunSession.open(px.url, cassette="again", mode="replay")
            try:
                await agent.open(session)
                return agent.notes
            finally:
                await agent.close()
                await session.close()

        assert "did not send 'x-run' on" in asyncio.run(once_more())[0]
        assert px.control("interactions?session=default")["interactions"] == []


def test_what_a_service_does_between_messages_is_unattributed(tmp_path: Path) -> None:
    """It is seen, and belongs to no run."""

    async def run(px: str) -> tuple[int, int]:
        session = await RunSession.open(px, cassette="x", mode="replay")
        agent = ServiceAgent(OpenAIAgent("http://127.0.0.1:9/v1"), "mine")
        await agent.open(session)
        try:
            await asyncio.to_thread(ask_chat, f"{px}/s/mine/v1")
            return await session.count_unattributed(), len(await session.calls())
        finally:
            await agent.close()
            await session.close()

    with near("replay", tmp_path / "x.db") as px:
        assert asyncio.run(run(px.url)) == (1, 0)


def test_without_a_proxy_a_service_is_simply_asked() -> None:
    with Provider(dialogue()[:1]) as provider:
        agent = ServiceAgent(OpenAIAgent(provider.url + "/v1"))
        assert asyncio.run(agent.call(given()))["tool_calls"]  # type: ignore[call-overload,index]


def test_a_header_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(SuiteError, match="name of a header"):
        ServiceAgent(OpenAIAgent("http://127.0.0.1:9/v1"), propagates="x run")
