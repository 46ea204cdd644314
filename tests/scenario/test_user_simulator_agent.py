"""The simulated user: what it sees, what it says, when it leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import MissError, SettingsError
from llmproxy.report.events import Status
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, Message
from llmproxy.scenario.user_simulator_agent import (
    GREETING,
    Persona,
    UserSimulatorAgent,
    load_built_in_personas,
    resolve_persona_name_file_or_text,
    reverse_roles,
)
from llmproxy.scenario.values.messages import UserFarewellMessages
from tests.provider import Provider, Step, step
from tests.scenario.parties import MODEL, TALK, Echo, bodies, called, finish, go_on, model, raw, refusal, served, shown
from tests.scenario.people import Agent, Ear, Judge, finished, play, roles, said
from tests.support import near

pytestmark = pytest.mark.usefixtures("untouched")

END = step(call=[{"name": "end_conversation", "arguments": {"message": ""}}])


def spoke(*steps: Step, talk: list[Message] | None = None, **how: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return what a simulator says whose model answers so, and what the model was sent."""
    with model(*steps) as (config, provider):
        answer = asyncio.run(UserSimulatorAgent(model=config, **how).call(shown(*(talk or TALK))))
        provider.finish()
        return answer, bodies(provider)


def test_the_default_model_is_used() -> None:
    """A name or a ModelConfig, which also gives key, temperature and limit."""
    ScenarioConfig.configure(default_model=MODEL)
    assert (UserSimulatorAgent().model, UserSimulatorAgent().temperature) == (MODEL, 0.0)
    ScenarioConfig.configure(default_model=ModelConfig(model=MODEL, api_key="k", temperature=0.4, max_tokens=5))
    user = UserSimulatorAgent()
    assert (user.api_key, user.temperature, user.max_tokens) == ("k", 0.4, 5)
    assert UserSimulatorAgent(temperature=0.0).temperature == 0.0


def test_it_sees_the_conversation_with_roles_reversed() -> None:
    """The agent is its user; a greeting stands before everything, so that there is something to answer."""
    answer, (request,) = spoke(step(say="ok, and when?"))
    assert answer == {"role": "user", "content": "ok, and when?"}
    system, *talk = request["messages"]
    assert "<scenario>\nSomebody misses a lamp.\n</scenario>" in system["content"]
    expected = (("user", GREETING), ("assistant", "Where is my lamp?"), ("user", "On its way."))
    assert talk == [{"role": role, "content": text} for role, text in expected]
    assert "tools" not in request


def test_messages_in_a_row_become_one() -> None:
    """Providers refuse two messages of one role in a row; system messages stay where they are."""
    talk: list[Message] = [{"role": "assistant", "content": text} for text in "ab"]
    found = reverse_roles([*talk, {"role": "system", "content": "s"}, {"role": "user", "content": "c"}])
    expected = (("user", "a\n\nb"), ("system", "s"), ("assistant", "c"))
    assert found == [{"role": role, "content": text} for role, text in expected]


def test_it_ends_on_a_message_of_the_assistant() -> None:
    """After an unanswered user's message, a nudge stands last: some providers refuse to go on with their own words."""
    _, (request,) = spoke(step(say="hello?"), talk=TALK[:1])
    assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "user"]


def test_tool_internals_are_hidden() -> None:
    """Row 31: neither calls nor results reach the simulator, least of all as its own turns."""
    call = {"id": "call_7", "type": "function", "function": {"name": "track", "arguments": '{"id": "A-1"}'}}
    talk: list[Message] = [
        TALK[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_7", "content": "secret"},
        {"role": "assistant", "content": "On its way.", "tool_calls": [call]},
    ]
    _, (hidden,) = spoke(step(say="ok"), talk=talk)
    assert hidden["messages"][1:] == spoke(step(say="ok"))[1][0]["messages"][1:]
    _, (seen,) = spoke(step(say="ok"), talk=talk, show_tools=True)
    assert seen["messages"][-1]["role"] == "user"
    assert '[called track({"id": "A-1"})]\n\n[track returned secret]\n\nOn its way.' in seen["messages"][-1]["content"]


def test_pictures_are_named() -> None:
    """An image of the user would be an image of the assistant after reversing, which providers refuse."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    _, (request,) = spoke(step(say="ok"), talk=[{"role": "user", "content": [picture]}, TALK[1]])
    assert request["messages"][2] == {"role": "assistant", "content": "[image: image/png, 26 characters]"}


def test_a_prompt_of_ones_own_replaces_everything() -> None:
    _, (request,) = spoke(step(say="ok"), system_prompt="You are {a} $technical user")
    assert request["messages"][0]["content"] == "You are {a} $technical user"


def test_a_persona_is_part_of_the_prompt() -> None:
    """By name, or a value; with a prompt of one's own it is added."""
    _, (named,) = spoke(step(say="ok"), persona="impatient")
    assert "Somebody in a hurry." in named["messages"][0]["content"]
    _, (own,) = spoke(step(say="ok"), persona=Persona(name="x", about="Sings."), system_prompt="You are a user.")
    assert own["messages"][0]["content"] == "You are a user.\n\n<persona>\nSings.\n</persona>"
    with pytest.raises(SettingsError, match="no persona 'nobody'"):
        UserSimulatorAgent(model=MODEL, persona="nobody")


def test_an_empty_answer_is_asked_for_again() -> None:
    """Row 32: twice, with the same request; reasoning alone is empty too, and no run goes on with an empty message."""
    answer, requests = spoke(step(say=""), raw({"content": "<think>hm</think>"}), step(say="hi"))
    assert answer["content"] == "hi"
    assert requests[0] == requests[1] == requests[2]
    with pytest.raises(ModelError, match=r"No response from LLM: .* answered nothing in 3 attempts"):
        spoke(step(say=""), step(say=""), step(say=""))
    assert spoke(step(say="<think>pretend</think>where is it?"))[0]["content"] == "where is it?"


def alone(*steps: Step, **how: Any) -> tuple[Any, list[dict[str, Any]]]:
    with model(*steps) as (config, provider):
        result = play(Echo(), UserSimulatorAgent(model=config, **how), Judge(), max_turns=2)
        return result, bodies(provider)


@pytest.mark.parametrize(
    ("steps", "how", "talk", "offered"),
    [
        ([step(say="hi"), END], {}, ["hi"], [False, True]),
        ([END, step(say="hi"), END], {}, ["hi"], [False, False, True]),
        ([step(say="hi"), step(say="more")], {"may_end": False}, ["hi", "more"], [False, False]),
        ([step(say="hi"), refusal("tools are not supported"), step(say="more")], {}, ["hi", "more"], [False, True, False]),
    ],
    ids=["the goal is done", "a tool that was not offered", "kept from leaving", "a model without tools talks on"],
)  # fmt: skip
def test_it_leaves_by_a_tool_once_it_was_answered(
    steps: list[Step], how: dict[str, Any], talk: list[str], offered: list[bool]
) -> None:
    """Row 32: no word of it is in the conversation, and the judge decides; before the first answer there is no end."""
    result, requests = alone(*steps, **how)
    assert (said(result)[::2], result.success) == (talk, True)
    assert ["tools" in request for request in requests] == offered
    told = ["end_conversation" in request["messages"][0]["content"] for request in requests]
    assert told[:2] == offered[:2]


def test_last_words_are_heard() -> None:
    """Row 32: in the call, or beside it."""
    words = {"name": "end_conversation", "arguments": {"message": "thanks!"}}
    assert said(alone(step(say="hi"), step(call=[words]))[0])[-1] == "thanks!"
    call = {"id": "1", "type": "function", "function": {"name": "end_conversation", "arguments": "{"}}
    assert said(alone(step(say="hi"), raw({"content": "bye", "tool_calls": [call]}))[0])[-1] == "bye"


@pytest.mark.parametrize(
    ("said_of_it", "reached"), [([True, False], None), ([False, True], None), ([True, True], True)]
)
def test_who_contradicts_himself_has_said_nothing(said_of_it: list[bool], reached: bool | None) -> None:
    """Two calls that end the conversation: whether the goal was reached is unknown unless they agree."""
    ends = [{"name": "end_conversation", "arguments": {"message": "", "goal_reached": each}} for each in said_of_it]
    heard: list[Any] = []

    class Watched(UserSimulatorAgent):
        async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 - the documented name
            heard.append(await super().call(input))
            return heard[-1]

    with model(step(say="hi"), step(call=ends)) as (config, _):
        play(Echo(), Watched(model=config), Judge())
    assert [each.reached for each in heard if isinstance(each, UserFarewellMessages)] == [reached]


def test_in_a_script_nobody_leaves() -> None:
    """Whoever is asked for a line by the script says one; a tool that was not offered is no answer."""
    with model(step(say="hi"), called("end_conversation", "{}"), step(say="more")) as (config, provider):
        script = [scenario.user(), scenario.agent(), scenario.user(), scenario.succeed()]
        assert roles(play(Echo(), UserSimulatorAgent(model=config), script=script)) == "uau"
        assert not any("tools" in request for request in bodies(provider))


def test_lines_need_no_model() -> None:
    """They are said in order; then the user leaves, and the judge decides, or a model goes on."""
    judge = Judge()
    result = play(Echo(), UserSimulatorAgent(lines=["one", "two"]), judge)
    assert said(result)[::2] == ["one", "two"]
    assert [bool(given.judgment_request) for given in judge.inputs] == [False, False, True]
    with model(step(say="and now?")) as (config, _):
        result = play(Echo(), UserSimulatorAgent(model=config, lines=["one"]), max_turns=2)
    assert said(result)[::2] == ["one", "and now?"]


def test_every_run_begins_with_the_first_line() -> None:
    """One object in several runs, one after the other and in parallel, reads its lines in each."""
    user = UserSimulatorAgent(lines=["one", "two"])

    async def both() -> list[Any]:
        how: dict[str, Any] = {"description": "d", "agents": [Echo(), user], "verbose": False, "proxy": False}
        return await asyncio.gather(*(scenario.run(name=f"n{n}", **how) for n in range(3)))

    results = [*asyncio.run(both()), play(Echo(), user)]
    assert [said(result)[::2] for result in results] == [["one", "two"]] * 4


def test_a_script_that_wants_more_lines_is_told() -> None:
    """Nothing is made up when the lines are over."""
    with pytest.raises(SettingsError, match="said all of its 1 lines"):
        play(Echo(), UserSimulatorAgent(lines=["one"]), script=[scenario.user(), scenario.agent(), scenario.user()])
    with pytest.raises(TypeError, match=r"lines=\['one'\]"):
        UserSimulatorAgent(lines="one")
    assert isinstance(UserFarewellMessages(), list)


def test_a_run_is_recorded_and_replayed(tmp_path: Path) -> None:
    """Row 1: simulator and judge of a run go through its session; the second run makes no call and says the same."""

    def once(url: str) -> scenario.ScenarioResult:
        config = ModelConfig(model=MODEL, api_key="k")
        judge = scenario.JudgeAgent(model=config, criteria=["polite"])
        return play(Agent("done"), UserSimulatorAgent(model=config), judge, proxy=url, name="lamp", max_turns=3)

    with Provider([step(user=GREETING, say="hi"), go_on(), END, finish("passed", evidence=["done"])]) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": f"{provider.url}/v1"}) as px:
            first = once(px.url)
        provider.finish()
    with near("replay", tmp_path / "x.db") as px:
        second = once(px.url)
        assert second.replayed is True
    assert (first.success, second.success) == (True, True)
    assert json.dumps(first.messages) == json.dumps(second.messages)
    assert {party: use.calls for party, use in second.usage.items()} == {"user": 2, "judge": 2}
    assert second.criteria == first.criteria


def test_a_miss_ends_the_run_in_its_own_words(tmp_path: Path) -> None:
    """What was never recorded is an error of the environment, told in the event that ends the run."""
    ear = Ear()
    with near("replay", tmp_path / "x.db") as px, pytest.raises(MissError, match="no recorded response"):
        play(Echo(), UserSimulatorAgent(model=MODEL), proxy=px.url, ear=ear)
    (miss,) = finished(ear).misses
    assert (finished(ear).status, "What to do" in miss) == (Status.ENVIRONMENT_ERROR, True)


def test_several_users_of_one_run_have_one_party(tmp_path: Path) -> None:
    """Two simulators at one proxy are both `user`, and each gets its own answer in replay."""
    with Provider([step(say="a"), step(say="b")]) as provider, near("record", tmp_path / "x.db") as px:
        users = [UserSimulatorAgent(model=served(provider, "openai/m")) for _ in range(2)]
        script = [scenario.user(), scenario.user(), scenario.succeed()]
        first = play(*users, Agent(), proxy=px.url, name="two", script=script)
    with near("replay", tmp_path / "x.db") as px:
        second = play(*users, Agent(), proxy=px.url, name="two", script=script)
    assert said(first) == said(second) == ["a", "b"]


def test_those_that_come_along_say_something() -> None:
    """Each has a line about it and several ways to behave, and no two are the same."""
    found = load_built_in_personas()
    assert {"impatient", "beginner", "expert", "undecided"} <= set(found)
    assert all(each.about and len(each.behaviour) > 1 for each in found.values())
    assert len({each.format_text() for each in found.values()}) == len(found)


def test_a_text_is_a_persona_and_a_name_that_there_is_not_is_refused_with_the_nearest() -> None:
    """A description is used as it is, and cannot leave its tags; a typing mistake is no description of one word."""
    shown = resolve_persona_name_file_or_text("a nurse on </persona> night shift").format_text()
    assert shown == "<persona>\na nurse on <\\/persona> night shift\n</persona>"
    with pytest.raises(SettingsError, match=r"no persona 'impatent'. Did you mean 'impatient'"):
        resolve_persona_name_file_or_text("impatent")


def test_files_are_personas(tmp_path: Path) -> None:
    """YAML with the known members, or a text file."""
    (tmp_path / "nurse.yaml").write_text("about: A nurse.\nbehaviour: [Is tired., Writes little.]\n", "utf-8")
    (tmp_path / "who.md").write_text("Somebody from 北京.\n", "utf-8")
    nurse = Persona(name="nurse", about="A nurse.", behaviour=["Is tired.", "Writes little."])
    assert resolve_persona_name_file_or_text(tmp_path / "nurse.yaml") == nurse
    assert resolve_persona_name_file_or_text(str(tmp_path / "who.md")) == Persona(
        name="who", about="Somebody from 北京."
    )


@pytest.mark.parametrize(("name", "text", "says"), [
    ("a.yaml", "mood: bad", "is no persona"),
    ("a.yaml", "- about: x", "is no persona"),
    ("a.yaml", "about: 3", "is no persona"),
    ("a.yaml", "name: x", "says nothing"),
    ("a.yaml", "about: [", "no YAML"),
    ("a.yaml", "about: x\nabout: y", "a.yaml:2:1: `about` stands here twice, first at line 1, column 1"),
    ("a.md", "  \n", "says nothing"),
    ("none.md", None, "cannot be read"),
])  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    """The error names the file and what is wrong with it."""
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=says):
        resolve_persona_name_file_or_text(tmp_path / name)


def test_a_persona_of_whom_nothing_is_said_is_refused() -> None:
    """An empty value is a mistake; one sentence is enough."""
    with pytest.raises(SettingsError, match="says nothing"):
        Persona(name="x")
    assert Persona(name="x", behaviour="Sings.").behaviour == ("Sings.",)
