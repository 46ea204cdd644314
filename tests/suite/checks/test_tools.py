"""What is said about tools is checked against the wire, and what was not seen passes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.tools import check_server_calls, check_tools, check_total
from llmproxy.suite.matchers.apply import all_hold
from llmproxy.suite.matchers.variables import VariableScope
from llmproxy.suite.schema.assertions import ToolExpect
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
    found = check_tools(
        wanted(createTask=tool), step(*calls), VariableScope({"zero": 0, "less": -1, "no": False}, declared=["later"])
    )
    worst = next((each for each in found if each.status is not PASSED), None)
    assert (worst.status if worst else PASSED) is status, found
    assert message in (worst.message if worst else ""), worst


FAIL, OK, NO = '{"error": "no"}', '{"id": 7}', None
"""What a tool returned; NO: nobody has seen it."""


@pytest.mark.parametrize(
    ("tool", "results", "status"),
    [
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
        # with which input
        ({"input": {"n": 0}}, [OK, OK], PASSED),
        ({"input": {"n": 0}, "every": True}, [OK, OK], FAILED),
        ({"input": {"n": {"lt": 2}}, "every": True}, [OK, OK], PASSED),
    ],
)
def test_what_is_said_of_several_calls_holds_for_every_one(
    tool: object, results: list[str | None], status: Status
) -> None:
    """Unless the file says `every: false`; and what depends on a result that nobody has seen is an error, never a pass."""
    calls = [call("createTask", {"n": n}, f"c{n}") for n in range(len(results))]
    found = check_tools(wanted(createTask=tool), step(*calls, results=results), VariableScope())
    statuses = {each.status for each in found}
    assert next((each for each in (FAILED, ERROR) if each in statuses), PASSED) is status, found


def test_results_can_be_asserted() -> None:
    """What the tool returned, and whether it failed."""
    good, bad = step(CREATE, results=('{"id": 7}',)), step(CREATE, results=("Error: full",))
    for seen, tool, holds in (
        (good, {"output": {"contains": "7"}, "error": False}, True), (good, {"output": {"contains": "8"}}, False),
        (bad, {"error": {"contains": "full"}}, True), (good, {"error": True}, False),
    ):  # fmt: skip
        assert all_hold(check_tools(wanted(createTask=tool), seen, VariableScope())) is holds
    unanswered = check_tools(wanted(createTask={"output": {"contains": "7"}}), step(CREATE), VariableScope())
    assert (unanswered[0].status, "no result of it was seen" in unanswered[0].message) == (ERROR, True)


def test_other_tools_may_be_called_unless_only_these_may() -> None:
    """The world is open; `onlyTools` and ``*`` close it."""
    seen = step(CREATE, call("deleteTask", {}, "d"))
    assert all_hold(check_tools(wanted(createTask=1), seen, VariableScope()))
    closed = check_tools(wanted(createTask=1), seen, VariableScope(), only=True)
    assert (closed[-1].name, closed[-1].status, "deleteTask" in closed[-1].message) == ("onlyTools", FAILED, True)
    assert not all_hold(check_tools(wanted(createTask=1, **{"*": 0}), seen, VariableScope()))
    assert all_hold(check_tools(wanted(createTask=1, deleteTask=1, **{"*": 0}), seen, VariableScope(), only=True))


def test_totals_leave_the_providers_own_tools_out() -> None:
    chats = Chats()
    call_of_a = {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}
    output = [{"type": "web_search_call", "id": "w"}, call_of_a]
    chats.add("openai", "responses", "/v1/responses", {"input": "x"}, {"object": "response", "output": output})
    seen = chats.wire.build_step(0)
    assert all_hold(check_total(1, seen, VariableScope()))
    assert all_hold(check_total(2, seen, VariableScope(), hosted=True))
    assert "a()" in check_total(0, seen, VariableScope())[0].message


def test_an_assertion_says_where_it_was_seen() -> None:
    assert check_tools(wanted(createTask=0), step(CREATE), VariableScope())[0].where == "interaction 101"


def check_served(chats: Tools, **tools: Any) -> list[Assertion]:
    return check_server_calls(
        wanted(**tools), chats.wire.build_step(0), chats.wire.read_tool_server_calls(), VariableScope()
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


@pytest.mark.parametrize(
    ("tool", "status", "message"),
    [
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
    ],
)
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
        (found,) = check_server_calls({}, seen, served, VariableScope(), as_asked=True)
        return found

    found = as_asked()
    assert (found.name, found.status) == ("serversAsAsked", FAILED)
    assert 'a server got createTask({"title": "Buy bread"}), which no model asked for' in found.message
    chats.chat([user("y")], asks(OTHER))
    assert as_asked().status is PASSED
    chats.chat([user("z")], said("x"), recorded=False, decision="PASS")
    assert as_asked().status is ERROR
