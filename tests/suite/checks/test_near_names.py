"""Names that are nearly those of others: what is misspelt passes for what was not called, and must not."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.tools import (
    check_tool_names,
    find_near_name,
    find_never_offered_tools,
    is_near_name,
)
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.trace.reading.decoded_exchange import list_declared_argument_names
from tests.support.messages import asks, call, said, user
from tests.trace.observing.chats import Chats

NEAR = {
    "deleteTask": ["delete_task", "DELETE-TASK", "delete.task", "deleteTasks", "deletTask", "delteeTask", "deleteTark"],
    "search": ["mcp__github__search", "server:search"],
    "github.search": ["mcp__github__search", "githib.search"],
    "search_issues": ["github/searchIssues"],
    "mcp__github__serch": ["mcp__github__search"],
    "l\u00f6sche": ["lo\u0308sche"],
    "delete": ["\uff44\uff45\uff4c\uff45\uff54\uff45"],
}
APART = {
    "deleteTask": ["createTask", "deleteAll", "delete"],
    "tasks.delete": ["notes.delete"],
    "mcp__a__get": ["mcp__b__get"],
    "updateTask": ["searchTask"],
    "create": ["creation"],
}


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [(one, other, table is NEAR) for table in (NEAR, APART) for one, others in table.items() for other in others],
)
def test_what_is_written_otherwise_is_near_and_another_tool_is_not(one: str, other: str, near: bool) -> None:
    """Case, underscores, hyphens and dots, a server's prefix, one edit; two verbs and tools of two servers are apart."""
    assert is_near_name(one, other) is is_near_name(other, one) is near


def test_every_single_edit_is_near_and_two_are_not() -> None:
    """Each letter left out, doubled, changed or swapped with the next; two that are changed are another name."""
    name = "deletetask"
    for n in range(len(name)):
        assert is_near_name(name, name[:n] + name[n + 1 :])
        assert is_near_name(name, name[:n] + "x" + name[n:])
        assert is_near_name(name, name[:n] + "x" + name[n + 1 :])
        assert is_near_name(name, name[:n] + name[n : n + 2][::-1] + name[n + 2 :])
        other = name[:n] + "xy" + name[n + 2 :]
        assert not is_near_name(name, other if len(other) == len(name) else name + "xy")


def test_the_same_spelling_is_named_before_an_edit() -> None:
    """Of several near names the one that is only written otherwise is meant."""
    assert find_near_name("deleteTask", ["deleteTasks", "delete_task"]) == "delete_task"
    assert find_near_name("deleteTask", ["deleteTasks"], spelling_only=True) == ""


def checked(chats: Chats, expected: dict[str, Any]) -> list[Assertion]:
    wanted = {name: ToolExpect.model_validate(value) for name, value in expected.items()}
    return check_tool_names(wanted, chats.wire.build_step(0), chats.wire.calls)


def looked(
    expected: dict[str, Any], *calls: dict[str, Any], tools: tuple[str, ...] = ("delete_task", "createTask")
) -> list[Assertion]:
    """Check names against a step in which these tools were offered and called."""
    chats = Chats()
    chats.chat([user("x")], asks(*calls) if calls else said("hi"), tools=tools)
    return checked(chats, expected)


def offer(chats: Chats, properties: dict[str, Any], *calls: dict[str, Any]) -> None:
    """Add a chat in which one tool `t` with these arguments is offered, and these are called."""
    tool = {"type": "function", "function": {"name": "t", "parameters": {"properties": properties}}}
    chats.chat([user("x")], asks(*calls) if calls else said("no"), tools=(), body={"tools": [tool]})


MISSPELT = [0, 1, {"gte": 1}, {"count": 0, "input": {"title": "x"}}, {"offered": False}, {"every": {"title": "x"}}]


@pytest.mark.parametrize("expected", MISSPELT)
@pytest.mark.parametrize("calls", [(), (call("delete_task", {}),)])
def test_a_misspelt_tool_is_an_error_whatever_is_expected_of_it(expected: object, calls: tuple[Any, ...]) -> None:
    """Whether the tool that was meant is called or only offered; `offered: false` hides it as little."""
    (found,) = looked({"deleteTask": expected}, *calls)
    assert found.status is Status.ENVIRONMENT_ERROR
    meant = "no tool is called 'deleteTask': there are createTask, delete_task; did you mean 'delete_task'?"
    assert found.message == meant


def test_a_tool_that_is_offered_or_called_is_no_misspelling() -> None:
    """Although another one is near; nor is one that nothing is near to, which is said."""
    assert looked({"delete_task": 0, "deleteTask": 0}, tools=("delete_task", "deleteTask")) == []
    assert looked({"deletetask": 0}, call("deletetask", {})) == []
    assert looked({"sendMail": 0}) == []
    chats = Chats()
    chats.chat([user("x")], said("hi"), tools=("createTask",))
    wanted = {name: ToolExpect.model_validate(0) for name in ("sendMail", "createTask")}
    wanted["dropAll"] = ToolExpect.model_validate({"count": 0, "offered": False})
    assert find_never_offered_tools(wanted, chats.wire.build_step(0), chats.wire.calls) == ["sendMail"]


@pytest.mark.parametrize(
    ("expected", "tools", "status"),
    [
        (False, ("createTask",), "passed"),
        (False, ("createTask", "sendMail"), "failed"),
        (True, ("createTask", "sendMail"), "passed"),
        (True, ("createTask",), "failed"),
        (True, (), "failed"),
        (False, (), "passed"),
    ],
)
def test_what_is_offered_can_be_asserted(expected: bool, tools: tuple[str, ...], status: str) -> None:
    (found,) = looked({"sendMail": {"offered": expected}}, tools=tools)
    assert (found.name, found.status) == ("tools.sendMail.offered", status)
    assert ("in this step" in found.message) is (status == "failed")


def test_a_tool_that_was_called_though_nobody_offered_it_fails() -> None:
    """A model that makes tools up is no proof that it has none."""
    (found,) = looked({"sendMail": {"offered": False}}, call("sendMail", {}))
    assert (found.status, "called all the same" in found.message) == (Status.FAILED, True)


TREES = [
    {"tools": [{"type": "function", "function": {"name": "t", "parameters": {"properties": {"title": {}}}}}]},
    {"tools": [{"type": "function", "name": "t", "parameters": {"properties": {"title": {}}}}]},
    {"tools": [{"name": "t", "input_schema": {"properties": {"title": {}}}}]},
    {"tools": [{"functionDeclarations": [{"name": "t", "parameters": {"properties": {"title": {}}}}]}]},
    {"tools": [{"function_declarations": [{"name": "t", "parametersJsonSchema": {"properties": {"title": {}}}}]}]},
    {"toolConfig": {"tools": [{"toolSpec": {"name": "t", "inputSchema": {"json": {"properties": {"title": {}}}}}}]}},
    {"tools": [{"name": "t", "parameter_definitions": {"title": {}}}]},
]


@pytest.mark.parametrize("tree", TREES, ids=[str(n) for n in range(len(TREES))])
def test_arguments_are_read_in_every_dialect(tree: dict[str, Any]) -> None:
    """OpenAI's two, Anthropic's, Gemini's two, Bedrock's, Cohere's."""
    assert list_declared_argument_names(tree) == {"t": {(): {"title"}}}


@pytest.mark.parametrize("key", ["input", "every"])
@pytest.mark.parametrize(("path", "meant"), [("titel", "title"), ("Title", "title"), ("dueDate.day", "due_date")])
def test_a_misspelt_argument_is_an_error(key: str, path: str, meant: str) -> None:
    """A condition on what is not there would hold for every call."""
    chats = Chats()
    offer(chats, {"title": {}, "due_date": {}}, call("t", {"title": "a"}))
    (found,) = checked(chats, {"t": {key: {path: {"exists": False}}}})
    assert (found.name, found.status) == (f"tools.t.{key}", Status.ENVIRONMENT_ERROR)
    assert found.message.endswith(f"did you mean {meant!r}?")
    for fine in ("title", "$.title", "other", "due_date.day"):
        assert checked(chats, {"t": {key: {fine: 1}}}) == []


NESTED = {
    "address": {"properties": {"city": {}, "lines": {"items": {"properties": {"text": {}}}}}},
    "labels": {"additionalProperties": True},
}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("address.cty", "address.city"),
        ("address.City", "address.city"),
        ("address.lines[0].txt", "address.lines.text"),
        ("given[1].na_me", "given.name"),
        ("address.city", ""),
        ("address.lines[0].text", ""),
        ("labels.prod.a", ""),
        ("$", ""),
    ],
)
def test_arguments_within_arguments_are_compared_too(path: str, meant: str) -> None:
    """Of the schema, its lists and objects, and of what was called with."""
    chats = Chats()
    offer(chats, NESTED, call("t", {"address": {"city": "Oslo"}, "given": [{}, {"name": "x"}]}))
    found = [each.message for each in checked(chats, {"t": {"count": 0, "input": {path: "x"}}})]
    told = path.replace("[0]", "").replace("[1]", "")
    assert found == ([f"t has no argument {told!r}; did you mean {meant!r}?"] if meant else [])


@pytest.mark.parametrize(
    ("path", "has"),
    [
        ("force", "address, labels"),
        ("address.zip", "address.city, address.lines"),
        ("labels.prod", ""),
        ("given", ""),
        ("address.city", ""),
    ],
)
def test_that_no_call_has_an_argument_which_there_is_not_is_no_pass(path: str, has: str) -> None:
    """`count: 0` with an input that no call can have says nothing of the calls that there were; without a call it is true."""
    chats = Chats()
    wanted = {"t": {"count": 0, "input": {path: "x"}}}
    offer(chats, NESTED)
    assert checked(chats, wanted) == []
    offer(chats, NESTED, call("t", {"address": {"city": "Oslo"}, "given": 1}))
    found = checked(chats, wanted)
    status = [("tools.t.input", Status.ENVIRONMENT_ERROR)] if has else []
    assert [(each.name, each.status) for each in found] == status
    assert all(f"t has no argument {path!r}; it has {has}" in each.message for each in found)
