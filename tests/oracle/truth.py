"""What is true of a step, whatever anybody has seen: assertions of suites, judged by what really happened. Reads no code of the product.

True: it holds. False: it does not. None: the words of the assertion do not say (no opinion).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.oracle.agents import TOOLS, Step
from tests.oracle.speak import Call

Json = dict[str, Any]
_COMPARE = {
    "gt": lambda number, bound: number > bound, "gte": lambda number, bound: number >= bound,
    "lt": lambda number, bound: number < bound, "lte": lambda number, bound: number <= bound,
    "eq": lambda number, bound: number == bound,
}  # fmt: skip


def compared(number: int, wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return all(_COMPARE[key](number, bound) for key, bound in wanted.items())
    return number == wanted


def think_of(random: Random) -> Json:
    """Think of something that a suite may say about a step."""
    kind = random.choice(("tools",) * 4 + ("totalToolCalls", "onlyTools", "callCount", "toolOrder", "beside"))
    number: object = random.choice((0, 0, 1, 1, 2, 3, {"gte": 1}, {"lte": 1}, {"gt": 1, "lt": 4}))
    if kind in ("totalToolCalls", "callCount"):
        return {kind: number, **({"includeHosted": True} if kind == "totalToolCalls" and random.random() < 0.5 else {})}
    if kind == "toolOrder":
        return {kind: [random.choice(TOOLS) for _ in range(random.choice((2, 2, 3)))]}
    if kind == "beside":
        one, other = random.sample(TOOLS, 2)
        return {"tools": {one: {random.choice(("before", "after")): other}}}
    if kind == "onlyTools":
        return {"onlyTools": sorted(random.sample((*TOOLS, "shell"), 3))}
    name = random.choice((*TOOLS, "shell", "web_search", "*"))
    said: Json = {}
    if random.random() < 0.5:
        said["count"] = number
    if random.random() < 0.3:
        said["input"] = {"n": random.randint(0, 2)}
    if random.random() < 0.3:
        said["output"] = random.choice(
            ({"contains": '"id"'}, {"notContains": '"error"'}, {"not": {"contains": '"error"'}})
        )
    if random.random() < 0.2:
        said["error"] = random.random() < 0.5
    if random.random() < 0.3:
        said["status"] = random.choice(("executed", "errored"))
    if said.keys() - {"status"} and random.random() < 0.2:
        said["every"] = random.choice((True, False, {"n": {"lt": 2}}))
    if not said.keys() - {"status", "every"} and not isinstance(said.get("every"), dict):
        said["count"] = number
    return {"tools": {name: said}}


def holds(said: Json, step: Step) -> bool | None:
    if step.maybe:
        return None
    if not all(call.asked for call in step.calls) and "callCount" not in said:  # nobody can read which
        names_others = any(wanted.keys() & {"before", "after"} for wanted in said.get("tools", {}).values())
        return None if "toolOrder" in said or names_others else _holds(said, step)
    return _holds(said, step)


def _holds(said: Json, step: Step) -> bool | None:
    if "callCount" in said:
        return None if step.broken else compared(step.answers, said["callCount"])
    if "toolOrder" in said:
        return _in_order(said["toolOrder"], step.calls)
    if "totalToolCalls" in said:
        return compared(
            sum(said.get("includeHosted", False) or not call.hosted for call in step.calls), said["totalToolCalls"]
        )
    if "onlyTools" in said:
        return all(call.hosted or call.name in said["onlyTools"] for call in step.calls)
    ((name, wanted),) = said["tools"].items()
    for key in wanted.keys() & {"before", "after"}:
        return _beside(key, *([each for each in step.calls if each.name == one] for one in (name, wanted[key])))
    return _tool([call for call in step.calls if (not call.hosted if name == "*" else call.name == name)], wanted)


def _comes_after(call: Call, other: Call) -> bool:
    """Return whether a call was asked for when the other one had been: its request was sent when the other's answer had come."""
    return call.asked > other.over


def _in_order(names: list[str], calls: list[Call]) -> bool:
    ways: list[Call | None] = [None]
    for name in names:
        ways = [
            call
            for call in calls
            if call.name == name and any(last is None or _comes_after(call, last) for last in ways)
        ]
    return bool(ways)


def _beside(key: str, calls: list[Call], others: list[Call]) -> bool:
    """Return whether every call has another tool's before it, or all of those after it."""
    if not calls or not others:
        return False
    if key == "after":
        return all(any(_comes_after(call, other) for other in others) for call in calls)
    return all(_comes_after(other, call) for call in calls for other in others)


def _tool(calls: list[Call], wanted: Json) -> bool | None:
    count, every, status = wanted.get("count"), wanted.get("every"), wanted.get("status")
    if status == "errored" and any(call.hosted for call in calls):
        return None  # what the provider's own tools answered, nobody is told
    has = [call for call in calls if status is None or (call.ran if status == "executed" else call.failed)]
    if count == 0 and wanted.keys() - {"count", "status"}:
        return _none(has, wanted)
    if every is False and status:
        calls = has
    if count is None and not calls:
        return False
    if count is not None and not compared(len(has if count == 0 else calls), count):
        return False
    if count == 0:
        return True
    if status and every is not False and len(has) != len(calls):
        return False
    found: list[bool | None] = []
    if "input" in wanted:
        fits = [call.arguments.get("n") == wanted["input"]["n"] for call in calls]
        found.append(bool(fits) and all(fits) if every is True else any(fits))
    if isinstance(every, Mapping):
        found.append(bool(calls) and all(call.arguments.get("n", 9) < 2 for call in calls))
    for key, fits_of in (("output", _output), ("error", _error)):
        if key in wanted:
            found.append(_together([fits_of(call, wanted[key]) for call in calls], enough=every is False))
    return False if False in found else None if None in found else True


def _none(calls: list[Call], wanted: Json) -> bool | None:
    """Judge ``count: 0`` with more: no call has this input; with the rest it says nothing that could be true."""
    if wanted.keys() - {"count", "input", "status"}:
        return None
    return not any(call.arguments.get("n") == wanted["input"]["n"] for call in calls)


def _together(judged: list[bool | None], *, enough: bool) -> bool | None:
    if not judged:
        return False
    if enough:
        return True if True in judged else None if None in judged else False
    return False if False in judged else None if None in judged else True


def _output(call: Call, wanted: Mapping[str, Any]) -> bool | None:
    if call.hosted or not call.ran:
        return None  # nothing came out that could be like anything
    return ('"id"' in call.output) if "contains" in wanted else ('"error"' not in call.output)


def _error(call: Call, wanted: bool) -> bool | None:
    return None if call.hosted or not call.ran else call.failed is wanted


def in_sight(said: Json, step: Step) -> bool:
    """Return whether everything that the assertion depends on is to be seen on the wire, so that whoever looks must decide."""
    if not step.clear or step.alike or step.maybe or not step.answers:
        return False
    return "tools" not in said or all(call.told for call in step.calls if not call.hosted)
