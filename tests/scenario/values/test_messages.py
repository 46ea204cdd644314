"""What an adapter returns becomes messages, or an error that says what to return.

A farewell ends the turns that go on by themselves; the judge is next and must decide.
"""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from llmproxy import scenario
from llmproxy.scenario import AgentRole
from llmproxy.scenario.values.messages import (
    UserFarewellMessages,
    convert_return_to_messages,
    copy_messages,
    copy_value,
    explain_call_not_async,
    get_message_text,
    to_message,
)
from tests.scenario.people import Agent, Judge, User, play, roles, said

U, A = AgentRole.USER, AgentRole.AGENT


class Answer(BaseModel):
    """A message whose role is a default of its class."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None


class Required(BaseModel):
    role: Literal["assistant"]
    content: str
    extra: list[Answer] = []


@pytest.mark.parametrize(
    ("returned", "role", "want"),
    [
        ("hi", A, [{"role": "assistant", "content": "hi"}]),
        ("hi", U, [{"role": "user", "content": "hi"}]),
        ("hi", AgentRole.JUDGE, [{"role": "assistant", "content": "hi"}]),
        ("", A, [{"role": "assistant", "content": ""}]),
        ([], A, []),
        ({"role": "user", "content": None, "x": [1, {"y": 2}]}, A, [{"role": "user", "content": None, "x": [1, {"y": 2}]}]),
        ({"role": "tool", "content": iter("ab")}, A, [{"role": "tool", "content": ["a", "b"]}]),
        (Answer(content="x"), A, [{"role": "assistant", "content": "x"}]),
        (Answer(), A, [{"role": "assistant"}]),
        (Answer(role="assistant", content="x", refusal=None), A, [{"role": "assistant", "content": "x"}]),
        ([Answer(content="x"), {"role": "tool"}], A, [{"role": "assistant", "content": "x"}, {"role": "tool"}]),
        (Required(role="assistant", content="x", extra=[Answer(content="y")]), A,
         [{"role": "assistant", "content": "x", "extra": [{"content": "y"}]}]),
        ({"role": "assistant", "inner": Answer(content="y")}, A, [{"role": "assistant", "inner": {"content": "y"}}]),
    ],
)  # fmt: skip
def test_what_becomes_of_each_type(returned: object, role: AgentRole, want: list[Any]) -> None:
    """A text takes the role of its author, a dict keeps its own, a model keeps a role that is a default (row 30)."""
    assert convert_return_to_messages(returned, role, "Mine") == want


@pytest.mark.slow
def test_messages_of_litellm_work() -> None:
    """As every example returns them; content None is dropped."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    from litellm import Message

    assert convert_return_to_messages(Message(content="x"), A, "M") == [{"role": "assistant", "content": "x"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    (found,) = convert_return_to_messages(Message(content=None, tool_calls=[call]), A, "M")
    assert found == {"role": "assistant", "tool_calls": [call]}


@pytest.mark.parametrize("wrong", [
    None,
    42,
    1.5,
    True,
    ("a",),
    b"x",
    {},
    {"content": "x"},
    [None],
    ["x"],
    [[]],
    object(),
    Answer,
    {"role": "x", "y": object()},
])  # fmt: skip
def test_what_is_no_message_is_refused(wrong: object) -> None:
    """With the class, what it returned, and what to return instead."""
    with pytest.raises(ValueError, match="On the call method of the Mine agent adapter, you returned") as caught:
        convert_return_to_messages(wrong, A, "Mine")
    assert repr(wrong)[:100] in str(caught.value)
    assert "class Mine(scenario.AgentAdapter):" in str(caught.value)


def test_long_and_endless_values_are_refused_shortly() -> None:
    with pytest.raises(ValueError, match="xxx") as caught:
        convert_return_to_messages(["x" * 10_000], A, "Mine")
    assert len(str(caught.value)) < 1500
    endless: dict[str, Any] = {"role": "user"}
    endless["self"] = endless
    with pytest.raises(ValueError, match="you returned"):
        convert_return_to_messages(endless, A, "Mine")


def test_a_returned_dict_is_copied() -> None:
    """Its author may go on using it: lists and dicts all the way down."""
    own = {"role": "assistant", "content": [{"type": "text"}]}
    (found,) = convert_return_to_messages(own, A, "M")
    assert found == own
    assert found["content"] is not own["content"]
    tree: dict[str, Any] = {"a": [{"b": [1, "x"]}], "c": ("t",)}
    made = copy_value(tree)
    made["a"][0]["b"].append(2)
    assert tree == {"a": [{"b": [1, "x"]}], "c": ("t",)}
    assert copy_messages([{"role": "user"}]) == [{"role": "user"}]


def test_scripted_content_becomes_a_message() -> None:
    """A text takes the role of the verb; a dict is used as it is, also one that JSON cannot say."""
    odd = {"role": "system", "content": object()}
    assert to_message("x", U) == {"role": "user", "content": "x"}
    assert to_message(odd, U) == odd
    assert to_message(Answer(content="y"), U) == {"role": "assistant", "content": "y"}
    with pytest.raises(ValueError, match="you returned"):
        to_message(5, U)


@pytest.mark.parametrize(("content", "want"), [
    ("x", "x"),
    (None, ""),
    ([{"type": "text", "text": "a"}, {"type": "image_url"}, {"text": "b"}], "a\nb"),
    (5, "5"),
    ([], ""),
])  # fmt: skip
def test_the_text_of_a_message(content: object, want: str) -> None:
    """Parts that are no text are left out."""
    assert get_message_text({"role": "user", "content": content}) == want


def test_a_call_that_is_not_async_is_shown_how() -> None:
    assert "class Mine(scenario.AgentAdapter):\n        async def call(" in explain_call_not_async("Mine")
    assert json.dumps(explain_call_not_async("Mine"))


BYE = UserFarewellMessages([{"role": "user", "content": "bye"}])


def test_the_judge_decides_after_a_farewell() -> None:
    """Row 32: the last words, if any, join the conversation, the agent is not called again, and the verdict is demanded."""
    agent, judge = Agent(), Judge()
    result = play(agent, User("hi", BYE), judge)
    assert (roles(result), said(result)[-1], result.success) == ("uau", "bye", True)
    assert [bool(given.judgment_request) for given in judge.inputs] == [False, True]
    assert len(agent.inputs) == 1
    assert roles(play(Agent(), User("hi", UserFarewellMessages()), Judge())) == "ua"


def test_without_a_judge_the_script_goes_on() -> None:
    """What comes after `proceed` is played; at the end the result says who ended it."""
    seen: list[int] = []
    script: list[Any] = [
        scenario.proceed(),
        lambda state: seen.append(len(state.messages)),
        scenario.succeed("all good"),
    ]
    assert play(Agent(), User("hi", BYE), script=script).reasoning == "all good"
    assert seen == [3]
    told = play(Agent(), User("hi", BYE)).reasoning or ""
    assert told.startswith("The user ended the conversation, and no judge decided.")


def test_a_later_proceed_begins_anew() -> None:
    """A farewell ends one `proceed`, not the scenario."""
    script = [scenario.proceed(), scenario.proceed(turns=1), scenario.succeed()]
    assert roles(play(Agent(), User("hi", BYE, "again"), script=script)) == "uauua"


def test_the_farewell_of_an_agent_means_nothing() -> None:
    """Only the user can leave; from anybody else it is a list of messages."""
    leaving = UserFarewellMessages([{"role": "assistant", "content": "bye"}])
    assert roles(play(Agent(leaving), User(), max_turns=2)) == "uaua"
