"""Mocked results of tools in tests: the tool still runs, but the model reads another result.

    {"get_weather": {"temp": 5}}                            whatever the arguments are
    {"search": [{"when": {"city": "Oslo"}, "returns": []},  the first that applies to the call
                {"nth": 2, "returns": "..."}, {"returns": null}]}

A list is a list of rules; a tool that returns a list has it in a rule. A rule for one call (`nth`, from 1 in a
conversation) has priority over one for its arguments (`when`, each equal), and that over one for all; of two the first.
A call without a rule keeps the tool's own result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmproxy.core.forks.overrides import MOST_CALLS, OverrideError, ToolOverride, format_given_value
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError

Json = Any
RULE = ("when", "nth", "returns")


class InvalidMock(OverrideError):
    """A mock is invalid; `inner` is its text for callers that name the place themselves."""

    def __init__(self, inner: str, *, hint: str = "") -> None:
        super().__init__(f"mock {inner}", hint=hint)
        self.inner = inner


def parse_mocks(value: Json) -> tuple[ToolOverride, ...]:
    """Read mocks, tool -> result or rules. Raises InvalidMock."""
    if not isinstance(value, Mapping) or not value:
        raise InvalidMock(
            f"takes tools and what they return, not {format_given_value(value)}", hint='{"get_weather": {"temp": 5}}'
        )
    found: list[ToolOverride] = []
    for tool, said in value.items():
        if not isinstance(tool, str) or not tool:
            raise InvalidMock(f"names no tool by {format_given_value(tool)}")
        if isinstance(said, list | tuple):
            if not said:
                hint = "a tool that returns an empty list: [{returns: []}]"
                raise InvalidMock(f"of {tool}: an empty list has no rules", hint=hint)
            # Overrides prefer the last given; people read a list from its top.
            found += reversed([_parse_mock_rule(tool, each) for each in said])
        else:
            found.append(ToolOverride(tool, _dump_result(tool, said)))
    return tuple(found)


def _parse_mock_rule(tool: str, rule: Json) -> ToolOverride:
    hint = "a list is one of rules: [{when: {city: Oslo}, returns: ...}, {nth: 2, returns: ...}, {returns: ...}]"
    if not isinstance(rule, Mapping):
        raise InvalidMock(f"of {tool}: {format_given_value(rule)} is no rule", hint=hint)
    unknown = next((str(name) for name in rule if name not in RULE), None)
    if unknown is not None:
        more = did_you_mean(unknown, RULE)
        raise InvalidMock(f"of {tool}: a rule has no {unknown[:80]!r}{more}", hint=hint)
    if "returns" not in rule:
        raise InvalidMock(f"of {tool}: {format_given_value(rule)} does not say what it `returns`", hint=hint)
    when, nth = rule.get("when"), rule.get("nth")
    if "when" in rule and (not isinstance(when, Mapping) or not when):
        raise InvalidMock(f"of {tool}: when is {format_given_value(when)}, not arguments with their values", hint=hint)
    if "nth" in rule and (isinstance(nth, bool) or not isinstance(nth, int) or not 1 <= nth < MOST_CALLS):
        raise InvalidMock(f"of {tool}: nth is {format_given_value(nth)}; calls of a tool count from 1")
    return ToolOverride(
        tool, _dump_result(tool, rule["returns"]), nth, None if when is None else json.loads(_dump_result(tool, when))
    )


def _dump_result(tool: str, result: Json) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMock(f"of {tool}: {format_given_value(result)} is no JSON: {error}") from error


class UnusedMocksError(MachineError):
    """A run passed, but some of its mocked results were never used: nothing is proved about them."""

    code = "llmproxy_unmocked"


def build_unused_mocks_error(told: Mapping[str, Any] | None) -> UnusedMocksError | None:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in (told or {}).get("tools") or ():
        if not row.get("inherited"):
            rows.setdefault(row["tool"], []).append(row)
    seen = list((told or {}).get("seen") or ())
    idle = [_explain_idle(tool, mine, seen) for tool, mine in rows.items() if not any(row.get("used") for row in mine)]
    hint = "`mock` names tools as the model does; take out what is not called."
    return UnusedMocksError("\n".join(idle), hint=hint) if idle else None


def _explain_idle(tool: str, rules: Sequence[Mapping[str, Any]], seen: Sequence[str]) -> str:
    if tool in seen:
        for_all = any(row.get("nth") is None and row.get("when") is None for row in rules)
        why = "no result of it was sent to the model" if for_all else "no rule is for a call of it"
        return f"mock of {tool!r} changed nothing: it was called, and {why}"
    called = ", ".join(seen) or "none"
    return f"mock of {tool!r} changed nothing: the tool was never called (called: {called}){did_you_mean(tool, seen)}"
