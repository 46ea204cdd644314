"""The dialogue that the provider plays: what is expected, and what is answered.

A script is a list of steps. Each expects facts of a request (a fact that is None may be anything, except `tool_result`: a request
that ends with a tool's result must be expected as such) and has an answer: a ready `Answer` (exact bytes), or a `Reply` (what is
said), which is rendered in the dialect that the request speaks. As JSON:

    {"ordered": true, "steps": [
        {"user": "hi", "model": "gpt-4o", "say": "hello"},
        {"user": "weather?", "call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}], "times": 2},
        {"user": "weather?", "tool_result": "12", "say": "12 degrees"},
        {"user": "slow down", "status": 429, "headers": {"retry-after": "1"}, "json": {"error": {"message": "..."}}}]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from .answer import Answer, json_answer
from .seen import Seen


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    say: str = ""
    call: tuple[Call, ...] = ()
    takes: Mapping[str, str] = field(default_factory=dict)
    """Values that the model names again, by name: the last match (first group) of each pattern in the tools' results
    stands for ``{name}`` in what is said and in the arguments; an argument ``{"number": "{name}"}`` is a whole number."""

    def filled(self, seen: Seen) -> Reply:
        """Return it with the values that this request holds; ValueError if one is nowhere."""
        if not self.takes:
            return self
        values = {}
        for name, pattern in self.takes.items():
            found = re.findall(pattern, "\n".join(seen.tool_results))
            if not found:
                raise ValueError(f"no {name} ({pattern}) in {seen.tool_results}")
            values[f"{{{name}}}"] = found[-1]

        def fill(text: Any) -> Any:
            if isinstance(text, dict) and [*text] == ["number"]:
                return int(fill(text["number"]))
            if isinstance(text, list):
                return [fill(each) for each in text]
            for name, value in values.items():
                text = text.replace(name, value) if isinstance(text, str) else text
            return text

        calls = tuple(Call(c.name, {key: fill(value) for key, value in c.arguments.items()}) for c in self.call)
        return Reply(fill(self.say), calls)


@dataclass(frozen=True, slots=True)
class Step:
    answer: Answer | Reply
    user: str | None = None
    """Last user text, exactly."""
    model: str | None = None
    path: str | None = None
    """Decoded path without query; may hold * and ?."""
    method: str | None = None
    stream: bool | None = None
    tool_result: str | None = None
    """Text that the tool's result contains with which the request ends; empty for any."""
    results: int | None = None
    """How many results of tools the conversation holds."""
    contains: str | None = None
    """Text that the body contains, as UTF-8."""
    sends: Mapping[str, str] = field(default_factory=dict)
    """Header fields that the request has (lower-case names)."""
    times: int | None = 1
    """How often it is played; None: as often as asked."""

    def differs(self, seen: Seen) -> list[str]:
        """Return what of the request is not as expected; empty if all is."""
        wrong = [
            f"{name}: expected {want!r}, got {got!r}"
            for name, want, got in (
                ("user", self.user, seen.last_user),
                ("model", self.model, seen.model),
                ("method", self.method, seen.method),
                ("stream", self.stream, seen.stream),
                ("results", self.results, len(seen.tool_results)),
            )
            if want is not None and want != got
        ]
        for name, want in self.sends.items():
            if seen.header(name) != want:
                wrong.append(f"{name}: expected {want!r}, got {seen.header(name)!r}")
        if self.path is not None and not fnmatchcase(seen.path, self.path):
            wrong.append(f"path: expected {self.path!r}, got {seen.path!r}")
        result = seen.tool_result
        # Where their number is expected, the request may end with whatever the client says behind the last one.
        surprising = self.results is None and (self.tool_result is None) != (result is None)
        if surprising or (self.tool_result or "") not in (result or ""):
            wrong.append(f"tool_result: expected {self.tool_result!r}, got {result!r}")
        if self.contains is not None and self.contains.encode() not in seen.body:
            wrong.append(f"body: expected to contain {self.contains!r}")
        return wrong

    def filled(self, seen: Seen) -> Step | str:
        """Return it with the values that its reply takes from this request, or say which of them is nowhere."""
        if isinstance(self.answer, Answer) or not self.answer.takes:
            return self
        try:
            return replace(self, answer=self.answer.filled(seen))
        except ValueError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class Script:
    steps: tuple[Step, ...]
    ordered: bool = True


class Play:
    """A script being played: remembers how often each step was."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.played = [0] * len(script.steps)

    def next(self, seen: Seen) -> Step | str:
        """Find the step for a request and count it, or say why there is none."""
        reasons: list[str] = []
        for number, step in enumerate(self.script.steps):
            if step.times is not None and self.played[number] >= step.times:
                continue
            wrong = step.differs(seen)
            ready = None if wrong else step.filled(seen)
            if isinstance(ready, Step):
                self.played[number] += 1
                return ready
            wrong = wrong or [str(ready)]
            reasons.append(f"  step {number + 1}: " + "; ".join(wrong))
            if self.script.ordered and (step.times is not None or self.played[number] == 0):
                break
        if not reasons:
            reasons.append(f"  all {len(self.script.steps)} steps have been played")
        return "\n".join(reasons[:20])

    def unplayed(self) -> list[Step]:
        """Steps that were not played as often as they should (of those with `times`, each missing time counts)."""
        return [
            step
            for step, played in zip(self.script.steps, self.played, strict=True)
            if step.times and played < step.times
        ]


def load(value: Mapping[str, Any]) -> Script:
    """Read a script from its JSON form; ValueError for a member that nobody knows."""
    return Script(tuple(step(**s) for s in value["steps"]), value.get("ordered", True))


def step(
    say: str = "",
    call: Iterable[Mapping[str, Any]] = (),
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    json: object = None,
    takes: Mapping[str, str] | None = None,
    **facts: Any,
) -> Step:
    """Make a step from plain values: `say`/`call`/`takes` is a reply, `status`/`headers`/`json` an exact answer, the rest is expected."""
    unknown = set(facts) - {f.name for f in fields(Step)}
    if unknown:
        raise ValueError(f"unknown member of a step: {', '.join(sorted(unknown))}")
    if status is not None or json is not None:
        return Step(json_answer(json, status or 200, *(headers or {}).items()), **facts)
    if "answer" in facts:
        return Step(**facts)
    return Step(Reply(say, tuple(Call(c["name"], c.get("arguments", {})) for c in call), takes or {}), **facts)
