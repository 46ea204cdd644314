"""``llmproxy suite``: looks at suites without running them, and makes first ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli import main
from llmproxy.cli.suite import (
    build_suite_from_recording,
    collect_turns_from_spans,
    format_starter_suite,
    format_yaml_flow_value,
    rewrite_agent_paths_for_folder,
)
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound, SuiteError
from llmproxy.suite.reading.project_settings import parse_agent_or_store_flag_value
from llmproxy.trace.reading.span_builder import build_spans
from tests.suite import rig
from tests.support.chats import chat, fill
from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.chats import NOW, Chats

SUITE = """
name: My suite
scenarios:
  - {id: one, name: First, tags: [smoke], runs: 3, steps: [{chat: hi}]}
  - {id: two, steps: [{chat: "it costs $5 and $word"}]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.suite.yaml").write_text(SUITE)
    return tmp_path


def test_validate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Says what there is, what is doubtful, or everything that is wrong."""
    assert main(["suite", "validate"]) == 0
    said = capsys.readouterr().out
    assert "1 suite, 2 scenarios: nothing is wrong" in said
    assert "$word" in said
    (folder / "t.suite.yaml").write_text(SUITE.replace("steps", "stebs"))
    assert main(["suite", "validate"]) == 2
    assert "did you mean" in capsys.readouterr().err.lower()


def test_an_agent_that_cannot_be_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told with file, line and column, before anything runs; what the environment is to say is left to the run."""
    for agent, code in (("{url: {url: x}}", 2), ("{url: 'ftp://x'}", 2), ("{url: '${env:NOWHERE}'}", 0)):
        text = f"name: t\nagent: {agent}\nscenarios: [{{id: a, steps: [{{chat: hi, response: {{contains: h}}}}]}}]\n"
        (folder / "t.suite.yaml").write_text(text)
        assert main(["suite", "validate"]) == code, agent
        assert not code or "t.suite.yaml:2:8: " in capsys.readouterr().err


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """It is JSON."""
    assert main(["suite", "schema"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Ids, names, tags, runs; as JSON with what each is recorded as."""
    assert main(["suite", "list"]) == 0
    assert "one  First  [smoke]  x3" in capsys.readouterr().out
    assert main(["suite", "list", "--json", "--tag", "smoke"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["runs"], row["cassette"].endswith("/one")) == ("one", 3, True)
    assert main(["suite", "list", "--grep", "nothing"]) == 5


def test_from_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A suite and its recording; nothing is written over unless it is asked for."""
    fill(folder / "llmproxy.db", chat("How are you?", "Fine, thanks.", cassette="talk"))
    assert main(["suite", "from-session", "talk", "--agent", "http://127.0.0.1:8000/v1"]) == 0
    text = (folder / "tests" / "talk.suite.yaml").read_text()
    assert '- chat: "How are you?"' in text
    assert 'response: {contains: "Fine, thanks."}' in text
    (cassette,) = (folder / "tests" / "cassettes").glob("*.yaml")
    assert "talk/talk" in cassette.read_text()
    assert f"wrote {Path('tests/cassettes', cassette.name)}: its recording\n" in capsys.readouterr().out
    assert main(["suite", "from-session", "talk"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["suite", "from-session", "talk", "--force", "-o", "tests/talk.suite.yaml"]) == 0
    assert main(["suite", "from-session", "other"]) == 3


CREATE = call("createTask", {"title": "Buy $5 milk", "tags": ["a"]})


def talk() -> Chats:
    """Two turns, a tool call, and a summary that the agent asks for on the way."""
    chats = Chats()
    first = [user("buy milk for $5"), asks(CREATE), result("ok"), said("Bought.\nReally.")]
    chats.chat(first[:1], first[1])
    chats.chat(first[:3], first[3])
    chats.chat([user("Summarize: buy milk")], said("milk was bought"), tools=())
    story = "You are welcome, and here is a long story about milk that nobody wants to read."
    chats.chat([*first, user("thanks")], said(story))
    return chats


def made(chats: Chats) -> list[Interaction]:
    return [each for _, each in chats.calls if each is not None]


def test_turns_are_what_the_user_said() -> None:
    """With tools, answer and number of calls; calls that are no conversation with the user are told apart."""
    turns, notes = collect_turns_from_spans(build_spans(made(talk())))
    assert [(turn.text, [name for name, _ in turn.tools], turn.calls) for turn in turns] == [
        ("buy milk for $5", ["createTask"], 2), ("thanks", [], 1),
    ]  # fmt: skip
    assert turns[0].answer == "Bought.\nReally."
    assert notes == ["1 more conversations (sub-agents, summaries) are recorded, in which no user speaks"]


def test_the_suite_loads_and_says_what_happened(tmp_path: Path) -> None:
    """Dollar signs stay dollar signs; answers are asserted by their beginning."""
    store = tmp_path / "x.db"
    with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as opened:
        for each in made(talk()):
            opened.add_interaction(each, supersede=False)
    found = build_suite_from_recording(store, "default", agent={"http": "http://127.0.0.1:8000/v1"})
    (case,) = rig.cases_of(tmp_path, found.text)
    first, second = case.scenario.steps
    scope = case.scope()
    assert first.kind == second.kind == "chat"
    assert scope.interpolate_text(getattr(first, "chat")) == "buy milk for $5"  # noqa: B009
    tools: Any = getattr(first, "tools")  # noqa: B009
    assert (tools["createTask"].count, scope.resolve_value(tools["createTask"].input)) == (1, {"title": "Buy $5 milk"})
    assert 'contains: "You are welcome, and here is a long story about milk that"' in found.text
    assert found.turns == 2
    with pytest.raises(CassetteNotFound):
        build_suite_from_recording(store, "other")


def test_a_recording_without_a_user_is_refused(tmp_path: Path) -> None:
    chats = Chats()
    chats.add("openai", "embeddings", "/v1/embeddings", {"input": "x", "model": "m"}, {"usage": {"prompt_tokens": 1}})
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as opened:
        opened.add_interaction(made(chats)[0], supersede=False)
    with pytest.raises(SuiteError, match="no user message"):
        build_suite_from_recording(tmp_path / "x.db", "default")


def test_values_are_written_as_yaml(tmp_path: Path) -> None:
    """Whatever they hold, they come back as they were."""
    from llmproxy.yaml_reader import Problems, read_documents

    value = {"a b": ["no", 1, True, None, "x: #y", "\u2028"], "null": "", "$c": "é\x7f"}
    problems = Problems()
    ((back, _),) = read_documents(format_yaml_flow_value(value), "t", problems)
    assert (back, list(problems)) == (value, [])


@pytest.mark.parametrize(("text", "agent"), [
    ("http://127.0.0.1:8000/v1", {"http": "http://127.0.0.1:8000/v1"}),
    ("python agent.py --lines", {"command": ["python", "agent.py", "--lines"]}),
    ("agents.tasks:answer", {"python": "agents.tasks:answer"}),
    ("{url: http://x/v1, session: s}", {"url": "http://x/v1", "session": "s"}),
])  # fmt: skip
def test_how_it_is_reached(text: str, agent: dict[str, object], tmp_path: Path) -> None:
    """An address, a command, a function, or YAML; the suite that is written loads and holds it."""
    assert parse_agent_or_store_flag_value(text, "--agent") == agent
    (case,) = rig.cases_of(tmp_path, format_starter_suite(agent))
    assert json.loads(json.dumps(case.suite.agent)) == agent
    assert case.id == "hello"


@pytest.mark.parametrize(("text", "said"), [("  ", "somehow"), ("it's", "no command")])
def test_a_description_that_is_none_is_refused(text: str, said: str) -> None:
    """An empty answer to the question, or no command: before a file is written."""
    with pytest.raises(SuiteError, match=said):
        parse_agent_or_store_flag_value(text, "--agent")


@pytest.mark.parametrize(("agent", "found"), [
    ({"command": ["python", "agent.py"]}, {"command": {"run": ["python", "agent.py"], "cwd": ".."}}),
    ({"command": {"run": "x", "cwd": "bin"}}, {"command": {"run": "x", "cwd": "../bin"}}),
    ({"python": "agent.py:answer"}, {"python": "../agent.py:answer"}),
    ({"python": "agent:answer"}, {"python": "agent:answer"}),
    ({"http": "http://127.0.0.1:1/v1"}, {"http": "http://127.0.0.1:1/v1"}),
])  # fmt: skip
def test_an_agent_is_found_from_the_suites_folder(
    agent: dict[str, object], found: dict[str, object], tmp_path: Path
) -> None:
    """What was typed here goes on meaning the same, although paths in a suite begin at the suite."""
    assert rewrite_agent_paths_for_folder(agent, tmp_path, tmp_path / "tests") == found
    assert rewrite_agent_paths_for_folder(agent, tmp_path, tmp_path) == agent
