"""Templates: values in place of names, and names that are checked early."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.errors import AgentUnreachable, SuiteError
from llmproxy.scenario.agents.request_templates import RequestTemplate, build_values
from llmproxy.scenario.types import LLM
from tests.scenario.agents_fixtures import given

LLM_HERE = LLM("http://127.0.0.1:8080", "weather")
VALUES = build_values(
    given("hi", thread="t1", llm=LLM_HERE, before=({"role": "assistant", "content": "hello"},)), "c-7"
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
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
    ],
)
def test_a_name_becomes_its_value(template: Any, filled: Any) -> None:
    """The value itself where nothing else stands there, text inside a text."""
    assert RequestTemplate.from_tree(template, "body").fill(VALUES, {"KEY": "s3cret"}) == filled


def test_what_is_not_there_is_null_or_empty() -> None:
    values = build_values(given(None))
    filled = RequestTemplate.from_tree(
        ["$message", "$session", "$llm", "$conversation", "<$conversation>"], "body"
    ).fill(values, {})
    assert filled == [None, None, None, None, "<>"]


@pytest.mark.parametrize("tree", ["$mesage", {"a": ["$mesage"]}, {"$mesage": 1}, "${mesage}"])
def test_a_name_that_is_none_is_refused_at_once(tree: Any) -> None:
    """Wherever it stands, with the one that was meant."""
    with pytest.raises(SuiteError, match=r"body: there is no \$mesage; did you mean 'message'"):
        RequestTemplate.from_tree(tree, "body")


def test_a_variable_that_is_not_set_is_the_environments_fault() -> None:
    """It is only looked up when it is needed."""
    template = RequestTemplate.from_tree("$env.NO_SUCH_KEY", "headers")
    with pytest.raises(AgentUnreachable, match="NO_SUCH_KEY is not set"):
        template.fill(VALUES, {})


def test_a_template_says_whether_it_hands_over_the_session() -> None:
    assert RequestTemplate.from_tree({"a": "$llm"}, "body").sends_session
    assert RequestTemplate.from_tree("$session", "headers").sends_session
    assert not RequestTemplate.from_tree(["$message", "$proxy", "$$llm"], "body").sends_session
