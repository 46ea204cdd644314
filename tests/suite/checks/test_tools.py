"""What is said about tools is checked against the wire, and what was not seen passes nothing. Names that are nearly those of others are misspelt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.tools import (
    check_expected_tool_calls,
    check_mcp_server_calls,
    check_tool_names_and_offers,
    check_total_tool_calls,
    find_expected_tools_never_offered,
    find_near_name,
    is_near_name,
)
from llmproxy.suite.matchers.apply import all_assertions_hold
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.trace.reading.decoded_exchange import list_declared_argument_names
from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.chats import Chats
from tests.trace.observing.test_servers import Tools

ERROR, FAILED, PASSED = Status.ENVIRONMENT_ERROR, Status.FAILED, Status.PASSED


def wanted(**tools: object) -> dict[str, ToolExpect]:
    return {name: ToolExpect.model_validate(value) for name, value in tools.items()}


def step(*calls: Any, results: Sequence[str | None] = (), recorded: bool = True) -> Any:
    """Return a step in which a model asked for these calls; a result that is None nobody has seen."""
    chats = Chats()
    chats.chat([user("x")], asks(*calls) if calls else said("hi"), recorded=recorded)
    answers = [result(text, each["id"]) for text, each in zip(results, calls, strict=False) if text is not None]
    if answers:
        chats.chat([user("x"), asks(*calls), *answers], said("done"))
    return chats.wire.build_step(0)


CREATE = call("createTask", {"title": "Buy milk", "tags": ["a", "b"]}, "c1")
OTHER = call("createTask", {"title": "Buy bread"}, "c2")
NUMBER = call("createTask", {"id": "5", "sure": True}, "c7")
BROKEN = call("createTask", '{"title": "Buy', "c3")
PATCH = call("createTask", "*** Delete File: x", "c4")
TWICE = call("createTask", '"{\\"title\\": \\"Buy milk\\"}"', "c5")
"""Arguments that were written as JSON twice."""
MANY = call("createTask", {"items": [{"title": "Buy milk"}]}, "c6")


@pytest.mark.parametrize(("tool", "calls", "status", "message"), [
    (1, [CREATE], PASSED, ""),
    (1, [], FAILED, "createTask was never called: expected 1, found 0; no tool was called in this step"),
    (1, [CREATE, OTHER], FAILED, "createTask was called 2 times"),
    ({"gte": 1}, [], FAILED, "never called"),
    ({"gte": 1}, [CREATE], PASSED, ""),
    (0, [CREATE], FAILED, 'createTask(title="Buy milk"'),
    ({"input": {"title": {"contains": "milk"}}}, [], FAILED, "never called"),
    ({"input": {"title": {"contains": "milk"}}}, [OTHER, CREATE], PASSED, ""),
    ({"input": {"title": {"contains": "milk"}}}, [OTHER], FAILED, "does not have this input"),
    ({"input": {"tags": {"contains": "c"}}}, [CREATE, OTHER], FAILED, "none of 2 calls"),
    ({"input": {"title": "x"}}, [BROKEN], FAILED, "not JSON"),
    ({"count": {"gte": 1}, "input": {"title": "Buy milk"}}, [], FAILED, "never"),
    ({"count": 0, "input": {"title": "Buy milk"}}, [OTHER], PASSED, ""),
    ({"count": 0, "input": {"title": "Buy milk"}}, [CREATE], FAILED, "should have this input"),
    ({"count": 0, "input": {"id": 5}}, [NUMBER], ERROR,
     'expected 5, found "5": a number is not text, mind the quotes'),
    ({"count": 0, "input": {"id": 6}}, [NUMBER], PASSED, ""),
    ({"count": 0, "input": {"id": 5, "sure": False}}, [NUMBER], PASSED, ""),
    ({"count": 0, "input": {"id": 5, "sure": 1}}, [NUMBER], ERROR, "mind the quotes"),
    ({"input": {"id": {"not": {"in": [5, 6]}}}}, [NUMBER], ERROR, "cannot be denied"),
    ({"count": 0, "input": {"sure": True, "id": {"gt": 3}}}, [NUMBER], ERROR, "expected a number, more than 3; found text"),
    ({"count": 0, "input": {"sure": {"gt": 3}, "id": "6"}}, [NUMBER], PASSED, ""),
    ({"count": 0, "input": {"title": {"gt": 3}}}, [NUMBER], PASSED, ""),
    ({"count": 0, "input": {"q": {"contains": "ghp_"}}}, [call("createTask", {"q": "[REDACTED]"}, "c8")], ERROR, "replaced a secret"),
    # what cannot be looked into does not lack anything
    ({"count": 0, "input": {"title": "Buy milk"}}, [BROKEN], ERROR, "not JSON"),
    ({"count": 0, "input": {"title": "Buy milk"}}, [BROKEN, CREATE], FAILED, "should have this input"),
    ({"count": 0, "input": {"path": "x"}}, [PATCH], ERROR, "not JSON"),
    ({"count": 0, "input": {"$": {"contains": "Delete"}}}, [PATCH], FAILED, "should have this input"),
    ({"input": {"$": {"contains": "Delete"}}}, [PATCH], PASSED, ""),
    ({"count": 0, "input": {"title": "Buy milk"}}, [TWICE], ERROR, "in a text"),
    ({"count": 0, "input": {"items.title": "Buy milk"}}, [MANY], ERROR, "[0].title"),
    ({"count": 0, "input": {"items[0].title": "Buy milk"}}, [MANY], FAILED, "should have this input"),
    ({"every": {"items.title": {"exists": False}}}, [MANY], ERROR, "[0].title"),
    ({"gte": "$zero"}, [CREATE], ERROR, "every number is `gte: 0`"),
    ({"gte": "$less"}, [CREATE], ERROR, "every number is `gte: -1`"),
    ({"gt": "$less"}, [CREATE], ERROR, "every number is `gt: -1`"),
    ({"count": "$no", "input": {"title": "x"}}, [OTHER], FAILED, "expected false, found 1"),
    ({"status": "executed"}, [CREATE], ERROR, "no result of it was seen"),
    ({"status": "executed"}, [], FAILED, "never called"),
    ({"every": {"title": {"contains": "Buy"}}}, [CREATE, OTHER], PASSED, ""),
    ({"every": {"title": {"contains": "milk"}}}, [CREATE, OTHER], FAILED, "milk"),
    ({"every": {"title": {"contains": "milk"}}}, [], FAILED, "never"),
    ({"input": {"title": {"ref": "$later.id"}}}, [CREATE], ERROR, "later"),
])  # fmt: skip
def test_what_is_expected_of_a_tool(tool: object, calls: list[Any], status: Status, message: str) -> None:
    """Every form of an expectation: a number, a comparison, an input, every input; never called is never a pass."""
    found = check_expected_tool_calls(
        wanted(createTask=tool), step(*calls), CaseVariables({"zero": 0, "less": -1, "no": False}, declared=["later"])
    )
    worst = next((each for each in found if each.status is not PASSED), None)
    assert (worst.status if worst else PASSED) is status, found
    assert message in (worst.message if worst else ""), worst


FAIL, OK, NO = '{"error": "no"}', '{"id": 7}', None
"""What a tool returned; NO: nobody has seen it."""


@pytest.mark.parametrize(("tool", "results", "status"), [
    # how far the calls came: all of them, one of them, none of them
    ({"count": 2, "status": "requested"}, [FAIL, NO], PASSED),
    ({"count": 2, "status": "executed"}, [FAIL, OK], PASSED),
    ({"count": 1, "status": "executed"}, [FAIL, OK], FAILED),
    ({"count": 2, "status": "executed"}, [OK, NO], ERROR),
    ({"count": 2, "status": "errored"}, [FAIL, FAIL], PASSED),
    ({"count": 2, "status": "errored"}, [FAIL, OK], FAILED),
    ({"count": 2, "status": "errored"}, [FAIL, NO], ERROR),
    ({"count": 1, "status": "errored", "every": False}, [FAIL, OK], PASSED),
    ({"count": 1, "status": "errored", "every": False}, [FAIL, NO], ERROR),
    ({"count": {"gte": 1}, "status": "errored", "every": False}, [FAIL, NO], PASSED),
    ({"count": {"gt": 2}, "status": "executed", "every": False}, [FAIL, NO], FAILED),
    ({"count": 0, "status": "errored"}, [OK, OK], PASSED),
    ({"count": 0, "status": "errored"}, [OK, FAIL], FAILED),
    ({"count": 0, "status": "errored"}, [OK, NO], ERROR),
    ({"count": 0, "status": "executed"}, [NO], ERROR),
    ({"count": 0, "status": "executed"}, [], PASSED),
    # what they returned
    ({"output": {"contains": "id"}}, [OK, OK], PASSED),
    ({"output": {"contains": "id"}}, [OK, FAIL], FAILED),
    ({"output": {"contains": "id"}}, [OK, NO], ERROR),
    ({"output": {"contains": "id"}}, [FAIL, NO], FAILED),
    ({"output": {"notContains": "error"}}, [NO], ERROR),
    ({"output": {"not": {"contains": "error"}}}, [NO], ERROR),
    ({"output": {"notContains": "error"}}, [], FAILED),
    ({"output": {"notContains": "error"}, "count": {"lte": 3}}, [], FAILED),
    ({"output": {"contains": "id"}, "every": False}, [FAIL, OK], PASSED),
    ({"output": {"contains": "id"}, "every": False}, [FAIL, NO], ERROR),
    ({"output": {"contains": "id"}, "every": False}, [FAIL, FAIL], FAILED),
    # whether they failed
    ({"error": False}, [OK, OK], PASSED),
    ({"error": False}, [OK, FAIL], FAILED),
    ({"error": False}, [OK, NO], ERROR),
    ({"error": False}, [NO], ERROR),
    ({"error": False, "count": {"lte": 1}}, [], FAILED),
    ({"error": True}, [FAIL, FAIL], PASSED),
    ({"error": True}, [FAIL, OK], FAILED),
    ({"error": True, "every": False}, [FAIL, OK], PASSED),
    ({"error": True, "every": False}, [OK, NO], ERROR),
    ({"error": {"contains": "no"}}, [FAIL, FAIL], PASSED),
    ({"error": {"contains": "no"}}, [FAIL, OK], FAILED),
    ({"error": {"contains": "no"}}, [NO], ERROR),
    # null is a value as any other
    ({"output": None}, [OK], FAILED),
    ({"error": None}, [FAIL], FAILED),
    ({"error": None, "count": 1}, [OK], FAILED),
    # with which input
    ({"input": {"n": 0}}, [OK, OK], PASSED),
    ({"input": {"n": 0}, "every": True}, [OK, OK], FAILED),
    ({"input": {"n": {"lt": 2}}, "every": True}, [OK, OK], PASSED),
])  # fmt: skip
def test_what_is_said_of_several_calls_holds_for_every_one(
    tool: object, results: list[str | None], status: Status
) -> None:
    """Unless the file says `every: false`; and what depends on a result that nobody has seen is an error, never a pass."""
    calls = [call("createTask", {"n": n}, f"c{n}") for n in range(len(results))]
    found = check_expected_tool_calls(wanted(createTask=tool), step(*calls, results=results), CaseVariables())
    statuses = {each.status for each in found}
    assert next((each for each in (FAILED, ERROR) if each in statuses), PASSED) is status, found


def test_other_tools_may_be_called_unless_only_these_may() -> None:
    """The world is open; `onlyTools` and ``*`` close it."""
    seen = step(CREATE, call("deleteTask", {}, "d"))
    assert all_assertions_hold(check_expected_tool_calls(wanted(createTask=1), seen, CaseVariables()))
    closed = check_expected_tool_calls(wanted(createTask=1), seen, CaseVariables(), only=True)
    assert (closed[-1].name, closed[-1].status, "deleteTask" in closed[-1].message) == ("onlyTools", FAILED, True)
    assert not all_assertions_hold(check_expected_tool_calls(wanted(createTask=1, **{"*": 0}), seen, CaseVariables()))
    assert all_assertions_hold(
        check_expected_tool_calls(wanted(createTask=1, deleteTask=1, **{"*": 0}), seen, CaseVariables(), only=True)
    )


def test_totals_leave_the_providers_own_tools_out() -> None:
    chats = Chats()
    call_of_a = {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}
    output = [{"type": "web_search_call", "id": "w"}, call_of_a]
    chats.add("openai", "responses", "/v1/responses", {"input": "x"}, {"object": "response", "output": output})
    seen = chats.wire.build_step(0)
    assert all_assertions_hold(check_total_tool_calls(1, seen, CaseVariables()))
    assert all_assertions_hold(check_total_tool_calls(2, seen, CaseVariables(), hosted=True))
    assert "a()" in check_total_tool_calls(0, seen, CaseVariables())[0].message


def test_an_assertion_says_where_it_was_seen() -> None:
    assert check_expected_tool_calls(wanted(createTask=0), step(CREATE), CaseVariables())[0].where == "interaction 101"


def check_served(chats: Tools, **tools: Any) -> list[Assertion]:
    return check_mcp_server_calls(
        wanted(**tools), chats.wire.build_step(0), chats.wire.read_tool_server_calls(), CaseVariables()
    )


def served_step(*, listed: bool = True) -> Tools:
    """Return a step in which a model asked for one call, and its server got that and another."""
    chats = Tools()
    if listed:
        chats.lists("createTask", "deleteTask")
    chats.chat([user("x")], asks(CREATE))
    chats.serve("createTask", {"title": "Buy milk", "tags": ["a", "b"]}, '{"id": 7}')
    chats.serve("createTask", {"title": "Buy bread"}, "no room", failed=True)
    return chats


@pytest.mark.parametrize(("tool", "status", "message"), [
    ({"createTask": 2}, PASSED, ""),
    ({"createTask": 1}, FAILED, "createTask was called 2 times"),
    ({"createTask": {"input": {"title": "Buy bread"}}}, PASSED, ""),
    ({"createTask": {"input": {"title": "Buy tea"}}}, FAILED, "none of 2 calls"),
    ({"createTask": {"every": {"title": {"contains": "Buy"}}}}, PASSED, ""),
    ({"createTask": {"output": {"contains": "7"}, "every": False}}, PASSED, ""),
    ({"createTask": {"output": {"contains": "7"}}}, FAILED, "no room"),
    ({"createTask": {"error": False}}, FAILED, "answered with an error"),
    ({"createTask": {"error": {"contains": "room"}, "every": False}}, PASSED, ""),
    ({"deleteTask": 0}, PASSED, ""),
    ({"deleteTask": {"offered": True, "count": 0}}, PASSED, ""),
    ({"deleteTask": {"offered": False}}, FAILED, "the servers listed createTask, deleteTask"),
    ({"deletetask": 0}, ERROR, "did you mean 'deleteTask'"),
    ({"*": 0}, FAILED, "2 times"),
])  # fmt: skip
def test_what_a_server_got_is_checked_as_what_a_model_asked_for(
    tool: dict[str, object], status: Status, message: str
) -> None:
    """The same words; a misspelt tool passes nothing."""
    found = check_served(served_step(), **tool)
    worst = next((each for each in found if each.status is not PASSED), None)
    assert found
    assert (worst.status if worst else PASSED) is status, found
    assert message in (worst.message if worst else "")
    assert all(each.name.startswith("serverTools.") for each in found)


def test_what_servers_got_is_an_error_where_nobody_knows() -> None:
    """No server was seen; none listed its tools; an answer did not come whole; nothing was recorded."""
    none = Tools()
    none.chat([user("x")], asks(CREATE))
    unlisted, cut, lost = served_step(listed=False), served_step(), served_step()
    cut.serve("deleteTask", {}, None)
    lost.serve("createTask", {}, recorded=False, decision="PASS")
    for chats, tool, said_of_it in (
        (none, "createTask", "no server of tools was seen in this run"),
        (unlisted, "deleteTask", "no server listed its tools"),
        (cut, "deleteTask", "its server's answer did not come whole"),
        (lost, "createTask", "nothing was recorded of call"),
    ):
        expected = {"error": False} if tool == "deleteTask" and chats is cut else 0
        found = check_served(chats, **{tool: expected})
        assert found[-1].status is ERROR, found
        assert said_of_it in found[-1].message


def test_servers_got_what_models_asked_for() -> None:
    """Call by call; one too many is told. An answer of a model that nobody can read makes it an error."""
    chats = served_step()

    def as_asked() -> Assertion:
        seen, served = chats.wire.build_step(0), chats.wire.read_tool_server_calls()
        (found,) = check_mcp_server_calls({}, seen, served, CaseVariables(), as_asked=True)
        return found

    found = as_asked()
    assert (found.name, found.status) == ("serversAsAsked", FAILED)
    assert 'a server got createTask({"title": "Buy bread"}), which no model asked for' in found.message
    chats.chat([user("y")], asks(OTHER))
    assert as_asked().status is PASSED
    chats.chat([user("z")], said("x"), recorded=False, decision="PASS")
    assert as_asked().status is ERROR


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
    return check_tool_names_and_offers(wanted, chats.wire.build_step(0), chats.wire.calls)


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
    assert find_expected_tools_never_offered(wanted, chats.wire.build_step(0), chats.wire.calls) == ["sendMail"]


@pytest.mark.parametrize(("expected", "tools", "status"), [
    (False, ("createTask",), "passed"),
    (False, ("createTask", "sendMail"), "failed"),
    (True, ("createTask", "sendMail"), "passed"),
    (True, ("createTask",), "failed"),
    (True, (), "failed"),
    (False, (), "passed"),
])  # fmt: skip
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


@pytest.mark.parametrize(("path", "meant"), [
    ("address.cty", "address.city"),
    ("address.City", "address.city"),
    ("address.lines[0].txt", "address.lines.text"),
    ("given[1].na_me", "given.name"),
    ("address.city", ""),
    ("address.lines[0].text", ""),
    ("labels.prod.a", ""),
    ("$", ""),
])  # fmt: skip
def test_arguments_within_arguments_are_compared_too(path: str, meant: str) -> None:
    """Of the schema, its lists and objects, and of what was called with."""
    chats = Chats()
    offer(chats, NESTED, call("t", {"address": {"city": "Oslo"}, "given": [{}, {"name": "x"}]}))
    found = [each.message for each in checked(chats, {"t": {"count": 0, "input": {path: "x"}}})]
    told = path.replace("[0]", "").replace("[1]", "")
    assert found == ([f"t has no argument {told!r}; did you mean {meant!r}?"] if meant else [])


@pytest.mark.parametrize(("path", "has"), [
    ("force", "address, labels"),
    ("address.zip", "address.city, address.lines"),
    ("labels.prod", ""),
    ("given", ""),
    ("address.city", ""),
])  # fmt: skip
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
