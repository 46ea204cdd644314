"""What a suite may say and probably does not mean. Warnings: they are told, and stop nothing."""

from __future__ import annotations

from collections.abc import Iterator

from llmproxy.suite.matchers.table import COMPARISONS, search
from llmproxy.suite.matchers.variables import StepError, bare_name
from llmproxy.suite.schema.response import ToolExpect
from llmproxy.suite.schema.steps import ABOUT_WIRE
from llmproxy.yaml_reader import Map, Problems, YamlPlace, place_of

_ASSERTING = (*ABOUT_WIRE, "response", "created")


_NOT_TOOLS = frozenset({*ToolExpect.known_keys(), *COMPARISONS})


def doubtful(scenario: Map, doubts: Problems) -> None:
    """Add what is doubtful in a scenario, as it is written, to `doubts`."""
    steps = _maps(scenario.get("steps"))
    if steps and not any(_asserts(step) for step in steps) and "usage" not in scenario:
        doubts.add(
            place_of(scenario, "steps", key=True), "nothing is asserted: the scenario passes whatever the agent answers"
        )
    text = repr(scenario)
    for item, at in _find_captured(scenario):
        bare = bare_name(item)
        if f"${bare}" not in text.replace(f"'as': '${bare}'", "") and f"${{{bare}" not in text:
            doubts.add(at, f"${bare} is captured and never used")
    for step in steps:
        for name in step["tools"] if isinstance(step.get("tools"), Map) else ():
            if name in _NOT_TOOLS:
                at = place_of(step["tools"], name, key=True)
                doubts.add(at, f"`{name}` is taken for the name of a tool here", "`totalToolCalls` counts all calls")
        for created in _maps(step.get("created")):
            if "as" in created and created.get("count", 1) != 1:
                doubts.add(place_of(created, "as"), "`as` names one row, and `count` may be another number")
    for node, place in _nodes(scenario, scenario.place):
        _range(node, place, doubts)
        _pattern(node, place, doubts)
    sets = scenario.get("parametrize")
    if isinstance(sets, list) and len({frozenset(each) - {"id"} for each in sets if isinstance(each, Map)}) > 1:
        doubts.add(place_of(scenario, "parametrize", key=True), "the sets of `parametrize` do not have the same names")


def _maps(value: object) -> list[Map]:
    return [each for each in value if isinstance(each, Map)] if isinstance(value, list) else []


def _asserts(step: Map) -> bool:
    talks = "chat" in step or "simulate" in step
    if not talks:
        return any(key in step for key in ("verify", "judge")) or (
            isinstance(step.get("wait"), Map) and "until" in step["wait"]
        )
    # A simulated user without criteria says in the end whether the goal was reached.
    return "simulate" in step or any(step.get(key, False) is not False for key in _ASSERTING)


def _find_captured(scenario: Map) -> Iterator[tuple[str, YamlPlace | None]]:
    """Yield the names that items after `setup` capture; names of a setup are often there for readers."""
    for step in _maps(scenario.get("steps")):
        for item in [*_maps(step.get("created")), *_maps([step.get("verify")])]:
            if isinstance(item.get("as"), str):
                yield item["as"], place_of(item, "as")


def _nodes(value: object, place: YamlPlace | None) -> Iterator[tuple[Map, YamlPlace | None]]:
    if isinstance(value, Map):
        yield value, value.place
        for each in value.values():
            yield from _nodes(each, place)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each, place)


def _range(node: Map, place: YamlPlace | None, doubts: Problems) -> None:
    """Doubt comparisons that no number satisfies."""
    numbers = {key: node[key] for key in ("gt", "gte", "lt", "lte") if isinstance(node.get(key), (int, float))}
    low = max((numbers[key] for key in ("gt", "gte") if key in numbers), default=None)
    high = min((numbers[key] for key in ("lt", "lte") if key in numbers), default=None)
    if low is None or high is None:
        return
    open_end = numbers.get("gt") == low or numbers.get("lt") == high
    if low > high or (low == high and open_end):
        doubts.add(place, f"no number is {' and '.join(f'{key} {value}' for key, value in numbers.items())}")


def _pattern(node: Map, place: YamlPlace | None, doubts: Problems) -> None:
    """Doubt patterns that are found in every text."""
    given = node.get("regex")
    for pattern in given if isinstance(given, list) else [given]:
        if isinstance(pattern, str) and pattern:
            try:
                if search(pattern, "") and search(pattern, "x\ny"):
                    doubts.add(
                        place_of(node, "regex") or place,
                        f"the pattern {pattern!r} is found in every text, also in an empty one",
                    )
            except StepError:
                continue  # said elsewhere
