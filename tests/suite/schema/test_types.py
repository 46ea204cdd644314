"""Nodes know where they stand; all mistakes of a file are told at once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from llmproxy.errors import SuiteError
from llmproxy.suite.schema.base_nodes import collect_validation_errors
from llmproxy.suite.schema.suite import Scenario
from llmproxy.yaml_reader import Problems, YamlMapping, read_documents
from tests.suite.fragment import load_fragment

FULL_OF_MISTAKES = """\
id: 5
nam: x
runs: "5"
tags: 7
steps:
- chat: hi
  tool: {a: 1}
  tools: {a: "1", b: {imput: {x: 1}}, c: {gte: 1, input: {q: {contians: x}}}}
- verfy: {entity: x}
- {chat: hi, verify: {entity: x, count: 3}}
- wait: {entity: x, timeout: soon}
- chat: hi
  created: {tasks: []}
"""
TOLD = """\
f:1:5: `id` takes a text, not a number 5 (put it in quotes)
f:2:1: unknown key `nam` (did you mean `name`?)
f:3:7: `runs` takes a whole number from 1, not text "5" (mind the quotes)
f:4:7: `tags` takes a list, not a number 7 (begin each item with `- `)
f:7:3: unknown key `tool` (did you mean `tools`?)
f:8:14: `a` takes how often the tool is called, or {count, input, ...}; not "1" (mind the quotes)
f:8:23: unknown key `imput` (did you mean `input`?)
f:8:43: unknown key `gte` (write it below `count`: {count: {gte: ...}, ...})
f:8:63: there is no matcher `contians` (did you mean `contains`?)
f:9:3: a step has one of chat, simulate, judge, verify, wait, setup, and this has verfy (did you mean `verify`?)
f:10:3: a step is one thing, and this is `chat` and `verify` (make it several steps)
f:11:9: `until` is missing
f:11:30: `timeout` takes milliseconds (more than 0) or a text such as "30s", "500ms", "2m"; not text "soon"
f:13:12: `created` takes a list, not an object {"tasks": []} (begin each item with `- `)"""


def test_all_mistakes_are_told_at_once() -> None:
    """Each with line, column, what it takes and what was probably meant."""
    problems = Problems()
    root = read_documents(FULL_OF_MISTAKES, "f", problems)[0][0]
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(root, context=problems)
    collect_validation_errors(caught.value, root, problems)
    lines = "\n".join(map(str, problems)).splitlines()
    assert [line for line in TOLD.splitlines() if line not in lines] == []
    assert [line for line in lines if line not in TOLD.splitlines()] == []


def test_a_node_knows_where_it_and_its_parts_stand() -> None:
    """For messages at run time; what was made in Python stands nowhere."""
    root = read_documents("id: a\nsteps:\n- chat: hi\n  tools: {x: 1}\n", "f", Problems())[0][0]
    assert isinstance(root, YamlMapping)
    made = Scenario.model_validate(root, context=Problems())
    assert str(made.steps[0].place) == "f:3:3"
    assert str(made.steps[0].at("tools", "x")) == "f:4:14"
    assert str(made.at("steps", 0, "chat")) == "f:3:9"
    assert Scenario.model_validate({"id": "a", "steps": [{"chat": "hi"}]}).place is None


def test_nodes_do_not_change() -> None:
    """A runner cannot spoil what another run reads."""
    made = Scenario.model_validate({"id": "a", "steps": [{"chat": "hi"}]})
    with pytest.raises(ValidationError, match="frozen"):
        made.id = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="unknown key"):
        Scenario.model_validate({"id": "a", "steps": [{"chat": "hi", "tool": 1}]})


def test_what_a_file_gives_is_told_from_defaults() -> None:
    """By the file's own names."""
    made = Scenario.model_validate({"id": "a", "userId": "u", "steps": [{"chat": "hi"}]})
    assert made.given == {"id", "userId", "steps"}


@pytest.mark.parametrize("step", [
    "{chat: hi, tools: }", "{chat: hi, response: ~}", "{chat: hi, usage: null}",
    "{verify: {entity: t, count: 1, id: }}",
])  # fmt: skip
def test_a_key_without_a_value_is_refused(step: str) -> None:
    """It would assert nothing: `tools:` with the lines below it forgotten."""
    with pytest.raises(SuiteError, match="has no value"):
        load_fragment("step", step)
