"""What passes the proxy in a step is the step's; a step without traffic, and a miss, pass nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmproxy.report.events import Status
from tests.provider import Provider, step
from tests.suite import rig
from tests.support import free_port, proxy

AGENT = """
import json, os, threading, time, urllib.error, urllib.request

def ask(text, party=None):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer x"})
    if party:
        request.add_header("x-llmproxy-party", party)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        error.close()
        raise

def answer(message):
    if message == "silent":
        return "I asked nobody"
    if message == "swallow":
        try:
            ask("never recorded")
        except Exception:
            return "sorry"
    said = ask(message)
    calls = said.get("tool_calls") or []
    return said.get("content") or "called " + calls[0]["function"]["name"]
"""
HELLO = step(user="hi", say="hello", times=None)
TOOL = step(user="do it", call=[{"name": "createTask", "arguments": {"title": "milk"}}], times=None)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Share a proxy that records from a scripted provider, and refuses what it does not know."""
    folder = tmp_path_factory.mktemp("traffic")
    with (
        Provider([HELLO, TOOL], ordered=False, check=False) as p,
        proxy("record", folder / "x.db", upstreams={"openai": p.url}, options=("--allow-live",)) as px,
    ):
        yield px.url


def run(folder: Path, url: str | None, *steps: str, name: str = "t", scenario: str = "", **options: Any) -> rig.Result:  # noqa: ANN401
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
    found = run(
        tmp_path,
        recording,
        "{chat: silent, tools: {deleteTask: 0}, totalToolCalls: 0, usage: {inputTokens: {gte: 1}}}",
        name="no",
    )
    assert found.statuses == ["environment_error"], found.why
    assert {each.name for each in found.told.wrong} == {"tools.deleteTask", "totalToolCalls", "usage"}
    assert "did not pass the proxy" in found.why
    assert found.tested.exit_code == 3


def test_no_traffic_can_be_what_is_expected(tmp_path: Path, recording: str) -> None:
    """`callCount: 0` says so; a comparison that also holds for more does not."""
    expected = run(tmp_path, recording, "{chat: silent, usage: {callCount: 0}, totalToolCalls: 0}", name="none")
    assert expected.statuses == ["passed"], expected.why
    vague = run(tmp_path, recording, "{chat: silent, usage: {callCount: {lte: 5}}}", name="vague")
    assert vague.statuses == ["environment_error"]
    wrong = run(tmp_path, recording, "{chat: hi, usage: {callCount: 0}}", name="wrong")
    assert wrong.statuses == ["failed"]


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
    with proxy("record", tmp_path / "x.db", upstreams={"openai": url}) as px:
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
    assert "record it: llmproxy test --mode record" in "".join(more.told.completed.notes)
    assert more.told.finished[1].unrecorded
    quiet = run(tmp_path, recording, "{chat: silent}", name="quiet", mode="replay", scenario="    observe: none\n")
    assert quiet.statuses == ["passed"], quiet.why


def test_replay_says_so(tmp_path: Path, recording: str) -> None:
    """Tokens are those of the recording."""
    steps = "{chat: hi, usage: {callCount: 1}}"
    assert run(tmp_path, recording, steps, name="again").told.finished[0].replayed is False
    found = run(tmp_path, recording, steps, name="again", mode="replay")
    assert (found.told.finished[0].replayed, found.told.assertion("usage.callCount").evidence) == (True, "recorded")


def test_history_is_judged_by_what_was_sent(tmp_path: Path, recording: str) -> None:
    """This agent sends the last message only, from its first turn on: nothing can be said to be missing."""
    found = run(
        tmp_path,
        recording,
        "{chat: hi, messageProcessing: {condenser: {activated: false}}}",
        "{chat: hi, continueConversation: true, messageProcessing: {condenser: {activated: false}}}",
        name="history",
    )
    assert [step.status for step in found.told.steps] == [Status.PASSED, Status.ENVIRONMENT_ERROR], found.why


def test_snapshots_of_calls(tmp_path: Path, recording: str) -> None:
    """Names alone, or arguments too."""
    steps = "{chat: do it, toolsSnapshot: true}", "{chat: do it, toolsSnapshot: names}"
    assert run(tmp_path, recording, *steps, name="snap", update=True).statuses == ["passed"]
    assert run(tmp_path, recording, *steps, name="snap").statuses == ["passed"]
    path = tmp_path / "t.suite.snapshots.json"
    path.write_text(path.read_text().replace("milk", "bread"))
    changed = run(tmp_path, recording, *steps, name="snap", keep_going=True)
    assert [step.status for step in changed.told.steps] == [Status.FAILED, Status.PASSED]


def test_spending_stops_at_the_limit(tmp_path: Path, recording: str) -> None:
    """What was not begun is skipped, and says why."""
    from decimal import Decimal

    found = run(tmp_path, recording, "{chat: hi}", name="money", runs=2, mode="record", max_cost=Decimal(0))
    assert found.statuses[-1] == "skipped"
    assert "--max-cost" in found.told.finished[-1].reasoning
    assert found.tested.exit_code == 3, "not everything was run, so it is no success"
    assert any("not all was run: --max-cost 0" in note for note in found.told.completed.notes)


LATE = """
import json, os, sys, threading, time, urllib.request

def ask(text):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer x"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return json.load(answer)["choices"][0]["message"]

def later():
    time.sleep(0.1)
    ask("do it")

for line in sys.stdin:
    ask("hi")
    print(json.dumps({"text": "done"}), flush=True)
    threading.Thread(target=later).start()
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


def test_what_the_agent_says_about_its_history_is_used(tmp_path: Path) -> None:
    """A command agent says it beside its answer; without traffic it does not help."""
    agent = tmp_path / "says.py"
    agent.write_text(
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
    with (
        Provider([step(say="ok", times=None)], check=False) as p,
        proxy("record", tmp_path / "s.db", upstreams={"openai": p.url}, name="says") as px,
    ):
        found = rig.run(rig.cases_of(tmp_path, text), proxy=px.url)
    assert found.statuses == ["passed", "failed"], found.why
    assert found.told.assertion("messageProcessing.condenser.activated").evidence == "declared"
