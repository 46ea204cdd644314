"""What passes the proxy in a step is the step's; a step without traffic, and a miss, pass nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.checks.chat_step_assertions import (
    explain_unseen_traffic,
    find_undecidable_tool_checks,
    list_hosted_tools_not_checked,
)
from llmproxy.suite.checks.tools import check_expected_tool_calls, check_total_tool_calls
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.suite.schema.suite import ChatStep
from tests.provider import Provider, step
from tests.suite import rig
from tests.support import free_port, near, proxy
from tests.support.asking import ASK
from tests.support.messages import asks, call, said, user
from tests.support.process import listening
from tests.trace.observing.chats import Chats

if TYPE_CHECKING:
    from llmproxy.suite.run.step_context import StepContext

AGENT = (
    f"{ASK}\n"
    """
def answer(message):
    if message == "silent":
        return "I asked nobody"
    if message == "swallow":
        try:
            ask("never recorded")
        except urllib.error.HTTPError as error:
            error.close()
            return "sorry"
    if message == "half priced":
        return ask("hi")["content"] + ask("hi", model="nobody-knows")["content"]
    said = ask("do it" if message == "claim" else message)
    if message == "claim":
        return "It is done."
    calls = said.get("tool_calls") or []
    return said.get("content") or "called " + calls[0]["function"]["name"]
"""
)
HELLO = step(user="hi", say="hello", times=None)
_FOUND = {"c1": {"status": "passed", "evidence": "", "reason": "so"}}
_RULING = [{"name": "finish_test", "arguments": {"criteria": _FOUND, "reasoning": "so"}}]
JUDGE = step(model="gpt-4.1-mini", call=_RULING, times=None)
STAGE = cast("StepContext", SimpleNamespace(session=object(), scope=None))
TOOL = step(user="do it", call=[{"name": "createTask", "arguments": {"title": "milk"}}], times=None)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Share a proxy that records from a scripted provider, and refuses what it does not know."""
    folder = tmp_path_factory.mktemp("traffic")
    with (
        Provider([JUDGE, HELLO, TOOL], ordered=False, check=False) as p,
        proxy("record", folder / "x.db", upstreams={"openai": p.url}, options=("--allow-live",)) as px,
    ):
        yield px.url


def run(folder: Path, url: str | None, *steps: str, name: str = "t", scenario: str = "", **options: Any) -> rig.Result:
    """Run one scenario against an agent in this process that asks a model."""
    (folder / "llm_agent.py").write_text(AGENT)
    listed = "\n".join(f"      - {each}" for each in steps)
    text = f"name: {name}\nagent: {{python: 'llm_agent.py:answer'}}\nscenarios:\n  - id: one\n{scenario}    steps:\n{listed}\n"
    return rig.run(rig.cases_of(folder, text), proxy=url, **options)


def test_calls_belong_to_the_step_in_which_they_were_made(tmp_path: Path, recording: str) -> None:
    """Each step sees its own, with the recorded interactions; the scenario may look at all of them."""
    found = run(
        tmp_path,
        recording,
        "{chat: hi, totalToolCalls: 0, usage: {callCount: 1}}",
        '{chat: do it, tools: {createTask: {count: 1, input: {title: milk}}}, response: {eq: "called createTask"}}',
        "{chat: hi, tools: {createTask: 0}}",
        scenario="    usage: {callCount: 3}\n",
        name="own",
    )
    assert found.statuses == ["passed"], found.why
    numbers = [step.interactions for step in found.told.steps]
    assert [len(each) for each in numbers[:3]] == [1, 1, 1]
    assert len({each for step in numbers[:3] for each in step}) == 3
    assert found.told.finished[0].usage["agent"].calls == 3


def test_a_step_without_traffic_passes_nothing_about_it(tmp_path: Path, recording: str) -> None:
    """Not even that a tool was never called; a wrong answer is told all the same."""
    vacuous = "{chat: silent, tools: {deleteTask: 0}, totalToolCalls: 0, usage: {inputTokens: {gte: 1}}}"
    found = run(tmp_path, recording, vacuous, name="no")
    assert found.statuses == ["environment_error"], found.why
    assert {each.name for each in found.told.wrong} == {"tools.deleteTask", "totalToolCalls", "usage"}
    assert "did not pass the proxy" in found.why
    assert found.tested.exit_code == 3


def test_a_claim_is_remarked_where_no_call_was_made(tmp_path: Path, recording: str) -> None:
    """Not where the call is there and only its result was never seen."""
    remark = "step 1: the answer says that something was done, and an expected tool was not called"
    unseen = run(tmp_path, recording, "{chat: claim, tools: {createTask: {count: 1, error: false}}}", name="unseen")
    assert (unseen.statuses, unseen.told.finished[0].labels) == (["environment_error"], ()), unseen.why
    unmade = run(tmp_path, recording, "{chat: claim, tools: {deleteTask: {count: 1, input: {a: 1}}}}", name="unmade")
    assert remark in unmade.told.finished[0].labels


def test_no_traffic_can_be_what_is_expected(tmp_path: Path, recording: str) -> None:
    """`callCount: 0` says so; a comparison that also holds for more does not."""
    expected = run(tmp_path, recording, "{chat: silent, usage: {callCount: 0}, totalToolCalls: 0}", name="none")
    assert expected.statuses == ["passed"], expected.why
    vague = run(tmp_path, recording, "{chat: silent, usage: {callCount: {lte: 5}}}", name="vague")
    assert vague.statuses == ["environment_error"]
    assert run(tmp_path, recording, "{chat: hi, usage: {callCount: 0}}", name="wrong").statuses == ["failed"]


def test_without_a_proxy_nothing_is_seen(tmp_path: Path) -> None:
    """The step runs; what is said about traffic is an error."""
    found = run(tmp_path, None, "{chat: silent, tools: {deleteTask: 0}}")
    assert (found.statuses, "there is no proxy" in found.why) == (["environment_error"], True)
    assert run(tmp_path, None, "{chat: silent}").statuses == ["passed"]


def test_a_miss_makes_the_run_an_error_whatever_the_agent_answers(tmp_path: Path, recording: str) -> None:
    """An agent that swallows the refusal and says sorry does not pass; the text says what is nearest."""
    assert run(tmp_path, recording, "{chat: hi}", name="m").statuses == ["passed"]
    found = run(tmp_path, recording, "{chat: swallow, response: {contains: sorry}}", name="m", mode="replay")
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 4)
    assert "no recorded response" in found.told.finished[0].error
    assert found.told.finished[0].misses
    assert "llmproxy start" not in found.told.finished[0].error
    assert "--id one --mode auto" in found.told.finished[0].error


def test_a_provider_that_cannot_be_reached_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    """It broke, since nobody answered it: who could not be reached is said, and nothing about the agent."""
    url = f"http://127.0.0.1:{free_port()}"
    with near("record", tmp_path / "x.db", upstreams={"openai": url}) as px:
        found = run(tmp_path, px.url, "{chat: hi, totalToolCalls: 0}")
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 3)
    assert f"openai at {url} could not be reached: Connection refused" in str(found.told.events)


def test_nothing_recorded_is_one_line_with_the_command(tmp_path: Path, recording: str) -> None:
    """Not a miss for each request; and more runs than were recorded are said as well."""
    found = run(tmp_path, recording, "{chat: hi}", name="fresh", mode="replay", command="llmproxy test t.suite.yaml")
    assert (found.statuses, found.tested.exit_code) == (["environment_error"], 4)
    want = "nothing is recorded for one; record it: llmproxy test t.suite.yaml --id one --mode record"
    assert found.told.finished[0].error == want
    assert found.told.said == []
    assert run(tmp_path, recording, "{chat: hi}", name="fresh").statuses == ["passed"]
    more = run(tmp_path, recording, "{chat: hi}", name="fresh", mode="replay", runs=2)
    assert more.statuses == ["passed", "environment_error"]
    assert "run 2" in more.told.finished[1].error
    assert "record it: llmproxy test --runs 2 --mode auto" in "".join(more.told.completed.notes)
    assert more.told.finished[1].unrecorded
    added = run(tmp_path, recording, "{chat: hi}", name="fresh", mode="auto", runs=2).told.finished
    assert [(each.status, each.replayed) for each in added] == [("passed", True), ("passed", False)]
    quiet = run(tmp_path, recording, "{chat: silent}", name="quiet", mode="replay", scenario="    observe: none\n")
    assert quiet.statuses == ["passed"], quiet.why


def test_replay_says_so(tmp_path: Path, recording: str) -> None:
    steps = "{chat: hi, usage: {callCount: 1}}"
    assert run(tmp_path, recording, steps, name="again").told.finished[0].replayed is False
    found = run(tmp_path, recording, steps, name="again", mode="replay")
    assert (found.told.finished[0].replayed, found.told.assertion("usage.callCount").evidence) == (True, "recorded")


def test_history_is_judged_by_what_was_sent(tmp_path: Path, recording: str) -> None:
    """This agent sends the last message only, from its first turn on: nothing can be said to be missing."""
    idle = "messageProcessing: {condenser: {activated: false}}"
    steps = f"{{chat: hi, {idle}}}", f"{{chat: hi, continueConversation: true, {idle}}}"
    found = run(tmp_path, recording, *steps, name="history")
    assert [step.status for step in found.told.steps] == [Status.PASSED, Status.ENVIRONMENT_ERROR], found.why


def test_snapshots_of_calls(tmp_path: Path, recording: str) -> None:
    steps = "{chat: do it, toolsSnapshot: true}", "{chat: do it, toolsSnapshot: names}"
    assert run(tmp_path, recording, *steps, name="snap", update=True).statuses == ["passed"]
    assert run(tmp_path, recording, *steps, name="snap").statuses == ["passed"]
    path = tmp_path / "t.suite.snapshots.json"
    stored = path.read_text()
    path.write_text(stored.replace("milk", "bread"))
    changed = run(tmp_path, recording, *steps, name="snap", keep_going=True)
    assert [step.status for step in changed.told.steps] == [Status.FAILED, Status.PASSED]
    labelled = "{chat: do it, toolsSnapshot: names}", "{chat: hi}", "{chat: do it, label: '1', toolsSnapshot: true}"
    assert run(tmp_path, recording, *labelled, name="label", update=True).statuses == ["passed"]
    assert run(tmp_path, recording, *labelled, name="label").statuses == ["passed"]


def test_spending_stops_at_the_limit(tmp_path: Path, recording: str) -> None:
    """What was not begun is skipped, and says why."""
    from decimal import Decimal

    found = run(tmp_path, recording, "{chat: hi}", name="money", runs=2, mode="record", max_cost=Decimal(0))
    assert found.statuses[-1] == "skipped"
    assert "--max-cost" in found.told.finished[-1].reasoning
    assert found.tested.exit_code == 3, "not everything was run, so it is no success"
    assert any("not all was run: --max-cost 0" in note for note in found.told.completed.notes)
    half = run(tmp_path, recording, "{chat: half priced}", name="half", runs=2, mode="record", max_cost=Decimal(9))
    assert half.statuses == ["passed", "skipped"], half.why
    assert "the price of what one asked is not known" in half.told.finished[-1].reasoning
    assert (half.told.finished[0].usage["agent"].calls, half.told.finished[0].usage["agent"].cost_usd) == (2, None)
    assert half.told.completed.scenarios[0]["cost_usd"] is None


LATE = (
    f"{ASK}\n"
    """
import threading, time

def later():
    time.sleep(0.1)
    ask("do it")

for line in sys.stdin:
    ask("hi")
    print(json.dumps({"text": "done"}), flush=True)
    threading.Thread(target=later).start()
"""
)

SERVE = """
LATE
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        os.environ["OPENAI_BASE_URL"] = told["llm"]["base_urls"]["openai"]
        ask("hi")
        said = b'{"text": "done"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
        threading.Thread(target=later).start()

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_what_an_agent_does_after_its_answer_belongs_to_the_step(tmp_path: Path, recording: str) -> None:
    """It says that nothing was created, and creates something a moment later: within the settle time that is seen."""
    (tmp_path / "late.py").write_text(LATE)
    step = "{chat: x, tools: {createTask: 0}, usage: {callCount: 1}}"
    settle = "    settle: 1s\n"
    text = f"name: late\nagent: {{command: [{sys.executable}, late.py]}}\nscenarios:\n  - id: one\n{settle}    steps:\n      - {step}\n"
    found = rig.run(rig.cases_of(tmp_path, text), proxy=recording)
    assert found.statuses == ["failed"], found.why
    assert {each.name for each in found.told.wrong} == {"tools.createTask", "usage.callCount"}


LATER = """
import sqlite3

def later():
    ask("do it")
    rows = sqlite3.connect(sys.argv[1], timeout=30)
    with rows:
        rows.execute("insert into tasks (title) values ('late')")
    rows.close()
"""


JUDGED = "{judge: {criteria: [it greets], model: openai/gpt-4.1-mini}}"


@pytest.mark.parametrize("asserted", [", tools: {createTask: 0}", ""])
@pytest.mark.parametrize("more", [(), ("{chat: hi}",), (JUDGED,)])
def test_what_comes_before_the_next_message_belongs_to_the_step(
    tmp_path: Path, recording: str, more: tuple[str, ...], asserted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps are between, a judge's too: the call came after the answer of the first step, and was made by it.

    The report names it whatever was asserted, since other assertions may be judged later.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as rows:
        rows.execute("create table tasks (id integer primary key, title text)")
    head, loop = LATE.partition("for line")[0], LATE[LATE.index("for line") :]
    started = "threading.Thread(target=later).start()"
    once = loop.replace(started, f"{started}; later = ask_hi")
    (tmp_path / "late.py").write_text(f"{head}{LATER}\nask_hi = lambda: None\n{once}")
    steps = [
        f"{{chat: x{asserted}}}",
        "{wait: {entity: tasks, filters: {title: late}, until: {title: late}, timeout: 60000}}",
        *more,
    ]
    text = (
        f"name: late{len(more)}{len(asserted)}{JUDGED in more}\nagent: {{command: [{sys.executable}, late.py, {path}]}}\n"
        f"store: {{sqlalchemy: 'sqlite:///{path}', entities: {{tasks: {{user: null}}}}}}\n"
        "scenarios:\n  - id: one\n    steps:\n" + "".join(f"      - {each}\n" for each in steps)
    )
    found = rig.run(rig.cases_of(tmp_path, text), proxy=recording, keep_going=True)
    assert found.statuses == ["failed" if asserted else "passed"], found.why
    assert [each.name for each in found.told.wrong] == (["tools.createTask"] if asserted else [])
    assert [each.index for each in found.told.steps] == list(range(len(steps)))
    assert len(found.told.steps[0].recordings) == 2


def test_a_call_after_the_end_of_the_scenario_is_an_error_that_names_it(tmp_path: Path, recording: str) -> None:
    """Nothing that was asserted knows of it; where nothing was asserted, the report says it. The call comes while it is torn down."""
    (tmp_path / "late.py").write_text(LATE)
    wait = "while not os.path.exists('{}'): time.sleep(0.02)"
    (tmp_path / "slow.py").write_text(f"import os, time\nopen('ended', 'w').close()\n{wait.format('asked')}\n")
    asked = LATE.partition("for line")[0].replace("time.sleep(0.1)", wait.format("ended"))
    asked = asked.replace('ask("do it")', 'ask("do it"); open("asked", "w").close()')
    (server := tmp_path / "server.py").write_text(SERVE.replace("LATE", asked))
    port = free_port()
    head = f"name: end\nagent: {{http: {{url: 'http://127.0.0.1:{port}/', body: {{llm: $llm}}}}}}\n"
    with subprocess.Popen([sys.executable, server, str(port)], cwd=tmp_path) as agent:
        try:
            listening(port)
            told = (("{chat: x, tools: {createTask: 0}}", ["environment_error"]), ("{chat: x}", ["passed"]))
            for step, statuses in told:
                for each in ("asked", "ended"):
                    (tmp_path / each).unlink(missing_ok=True)
                text = (
                    f"{head}scenarios:\n  - id: one\n    steps:\n      - {step}\n"
                    f"    teardown: [{{command: [{sys.executable}, slow.py]}}]\n"
                )
                found = rig.run(rig.cases_of(tmp_path, text), proxy=recording)
                assert found.statuses == statuses, found.why
                said = found.told.finished[0].error + " ".join(found.told.finished[0].labels)
                assert "after the end of the scenario the agent made further calls: createTask" in said
        finally:
            agent.kill()


@pytest.mark.parametrize(("pair", "seen"), [
    (("embeddings", {"data": [{"embedding": [0.1]}]}, 200), "embeddings, HTTP 200"),
    (("/v1/nobody/knows", {"ok": True}, 200), "/v1/nobody/knows, HTTP 200"),
    (("chat.completions", "<html>busy</html>", 200), "could not be read as an answer"),
    (("chat.completions", {"error": {"message": "down"}}, 500), "chat.completions, HTTP 500"),
    (("responses", {"object": "response", "output": [{"type": "robot_call"}]}, 200), "robot_call"),
])  # fmt: skip
def test_traffic_that_nobody_can_read_is_no_traffic(pair: tuple[str, Any, int], seen: str) -> None:
    """It takes one answer of a model, read whole; what was seen instead is said."""
    operation, value, status = pair
    chats = Chats()
    chats.add("openai", operation, "/v1/x", {"messages": [user("x")]}, value, status=status)
    why = explain_unseen_traffic(STAGE, None, chats.wire.build_step(0))
    assert "no answer of a model that could be read was seen" in why
    assert seen in why
    chats.chat([user("x")], said("hi"))
    assert explain_unseen_traffic(STAGE, None, chats.wire.build_step(0)) == ""


def test_an_answer_that_broke_off_is_said_to_have() -> None:
    """A status of 200 alone would leave its reader wondering."""
    chats = Chats()
    chats.chat([user("x")], said("hi"), ending="cut")
    why = explain_unseen_traffic(STAGE, None, chats.wire.build_step(0))
    assert "interaction 101 (chat.completions, HTTP 200, the answer is cut)" in why


@pytest.mark.parametrize(("step", "names"), [
    ({"totalToolCalls": 0}, ["web_search"]),
    ({"totalToolCalls": 0, "includeHosted": True}, []),
    ({"tools": {"deleteTask": 1}, "onlyTools": True}, ["web_search"]),
    ({"tools": {"*": 0}}, ["web_search"]),
    ({"tools": {"deleteTask": 1}}, []),
    ({"response": {"contains": "x"}}, []),
])  # fmt: skip
def test_what_is_said_of_all_tools_names_those_it_leaves_out(step: dict[str, Any], names: list[str]) -> None:
    """Those that the provider runs; what it asks whether it may run is the agent's to answer for, and counts."""
    chats = Chats()
    items = [
        {"type": "mcp_approval_request", "id": "a", "name": "deleteTask", "server_label": "s", "arguments": "{}"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {}},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "own", "arguments": "{}"},
    ]
    answer = {"id": "r", "object": "response", "status": "completed", "output": items}
    chats.add("openai", "responses", "/v1/responses", {"input": "x"}, answer)
    assert (
        list_hosted_tools_not_checked(ChatStep.model_validate({"chat": "x", **step}), chats.wire.build_step(0)) == names
    )


@pytest.mark.parametrize("approve", [None, True, False])
def test_a_call_that_asks_for_approval_is_a_call(approve: bool | None) -> None:
    """The model asked for it, whatever came of it: that no tool was called is not so."""
    chats = Chats()
    asked = {"name": "deleteTask", "server_label": "s", "arguments": "{}"}
    items = [{"type": "mcp_approval_request", "id": "a", **asked}]
    chats.add("openai", "responses", "/v1/responses", {"input": "x"}, {"status": "completed", "output": items})
    if approve is not None:
        said = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": approve}
        text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]}
        made = {"type": "mcp_call", "id": "m", "approval_request_id": "a", "output": "ok", **asked}
        answer = {"status": "completed", "output": [made if approve else text]}
        chats.add("openai", "responses", "/v1/responses", {"input": [said]}, answer)
    step, scope = chats.wire.build_step(0), CaseVariables({})
    anything = {"*": ToolExpect.model_validate(0)}
    found = (
        check_total_tool_calls(0, step, scope)
        + check_expected_tool_calls(anything, step, scope)
        + check_expected_tool_calls({}, step, scope, only=True)
    )
    assert [each.status for each in found] == [Status.FAILED] * 3


ABOUT_TOOLS = pytest.mark.parametrize("step", [
    {"tools": {"deleteTask": 0}}, {"totalToolCalls": 0}, {"tools": {"a": 1}, "onlyTools": True}, {"toolOrder": ["a", "b"]},
    {"toolsSnapshot": True},
])  # fmt: skip


@ABOUT_TOOLS
def test_where_only_texts_were_completed_nothing_is_said_about_tools(step: dict[str, Any]) -> None:
    """The legacy API has no tools: what its text asks for nobody can see. A chat beside it can be looked at."""
    chats = Chats()
    answer = {"object": "text_completion", "choices": [{"text": "deleteTask()", "index": 0, "finish_reason": "stop"}]}
    chats.add("openai", "completions", "/v1/completions", {"prompt": "x", "model": "m"}, answer)
    made = ChatStep.model_validate({"chat": "x", **step})
    unknown = find_undecidable_tool_checks(made, chats.wire.build_step(0))
    assert {each.status for each in unknown} == {Status.ENVIRONMENT_ERROR}
    assert all("interaction 101 (completions)" in each.message for each in unknown)
    other = ChatStep.model_validate({"chat": "x", "usage": {"callCount": 1}})
    assert find_undecidable_tool_checks(other, chats.wire.build_step(0)) == []
    chats.chat([user("x")], said("hi"))
    assert find_undecidable_tool_checks(made, chats.wire.build_step(0)) == []


@ABOUT_TOOLS
@pytest.mark.parametrize("how", [{"ending": "cut"}, {"recorded": False}])
def test_what_cannot_be_read_is_an_error(step: dict[str, Any], how: dict[str, Any]) -> None:
    """Nobody knows what was asked for: not even that a tool was never called."""
    chats = Chats()
    chats.chat([user("x")], asks(call("search", {})), **how)
    made = find_undecidable_tool_checks(ChatStep.model_validate({"chat": "x", **step}), chats.wire.build_step(0))
    assert {each.status for each in made} == {Status.ENVIRONMENT_ERROR}
    assert all(each.where for each in made)


@pytest.mark.slow
def test_what_the_agent_says_about_its_history_is_used(tmp_path: Path) -> None:
    """A command agent says it beside its answer; without traffic it does not help."""
    (tmp_path / "says.py").write_text(
        "import json, os, sys, urllib.request\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    body = json.dumps({'model': 'gpt-4o', 'input': asked['message'], 'previous_response_id': 'resp_1'}).encode()\n"
        "    url = os.environ['OPENAI_BASE_URL'] + '/responses'\n"
        "    headers = {'content-type': 'application/json', 'authorization': 'Bearer x'}\n"
        "    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()\n"
        "    said = {'condenser': {'activated': True, 'condensedMessages': 8, 'summary': 'So far: milk.'}}\n"
        "    print(json.dumps({'text': 'ok', 'processors': said}), flush=True)\n"
    )
    wanted = "{condenser: {activated: true, condensedMessages: 8, summaryContains: [MILK]}}"
    text = (
        f"name: t\nagent: {{command: [{sys.executable}, says.py]}}\nscenarios:\n"
        f"  - {{id: a, steps: [{{chat: hi, messageProcessing: {wanted}}}]}}\n"
        "  - {id: b, steps: [{chat: hi, messageProcessing: {condenser: {condensedMessages: 7}}}]}\n"
    )
    store, script = tmp_path / "s.db", [step(say="ok", times=None)]
    with Provider(script, check=False) as p, near("record", store, upstreams={"openai": p.url}) as px:
        found = rig.run(rig.cases_of(tmp_path, text), proxy=px.url)
    assert found.statuses == ["passed", "failed"], found.why
    assert found.told.assertion("messageProcessing.condenser.activated").evidence == "declared"
