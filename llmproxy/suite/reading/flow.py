"""What the steps of a scenario say about each other: names declared before they are used (`known_names`), conversations, labels.

It reads the YAML as it is written, step by step in the order in which they will run, so that it finds mistakes also in a file that has others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmproxy.did_you_mean import suggest
from llmproxy.suite.matchers.variables import bare_name
from llmproxy.suite.reading.known_names import KnownNames
from llmproxy.suite.schema.steps import ABOUT_WIRE, STEPS
from llmproxy.yaml_reader import Problems, YamlPlace, place_of

_TALKS = ("chat", "simulate")


def captures(scenario: Mapping[str, Any]) -> dict[str, YamlPlace | None]:
    """Return the names that a scenario's items capture with `as`, each with the place of the first."""
    found: dict[str, YamlPlace | None] = {}
    for item in _capturing(scenario):
        name = item.get("as")
        if isinstance(name, str):
            found.setdefault(bare_name(name), place_of(item, "as"))
    return found


def _capturing(scenario: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from _maps(scenario.get("setup"))
    for step in _maps(scenario.get("steps")):
        yield from _maps(step.get("setup"))
        yield from _maps(step.get("created"))
        if isinstance(step.get("verify"), Mapping):
            yield step["verify"]


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


class Flow:
    """Goes through one scenario."""

    def __init__(self, problems: Problems, doubts: Problems, values: Mapping[str, object] | None = None) -> None:
        """Begin with the variables that have a value; what is found goes to `problems` and `doubts`."""
        self.problems = problems
        self.names = KnownNames(problems, doubts, values)
        self.current: str | None = None
        """Name of the conversation of the last talking step; None if it has none."""

    def scenario(self, scenario: Mapping[str, Any]) -> None:
        """Go through setup, steps and teardown."""
        self.names.later = captures(scenario)
        self.names.text(
            scenario.get("mock"), place_of(scenario, "mock"), sure=True
        )  # it counts before anything is captured
        self.names.check_expected(scenario.get("usage"), place_of(scenario, "usage"))
        for item in _maps(scenario.get("setup")):
            self.item(item)
        labels: dict[str, YamlPlace | None] = {}
        for step in _maps(scenario.get("steps")):
            label, at = step.get("label"), place_of(step, "label")
            if isinstance(label, str) and label in labels:
                self.problems.add(
                    at, f"the label `{label}` stands here twice, first at {labels[label]}", "labels name one step"
                )
            elif isinstance(label, str):
                labels[label] = at
            self.step(step, scenario.get("observe"))
        for item in _maps(scenario.get("teardown")):
            self.names.text(item.get("id"), place_of(item, "id"), sure=True)
            self.names.fields(item.get("filters"))

    def item(self, item: Mapping[str, Any]) -> None:
        """Go through an item of a setup."""
        self.names.text(item.get("data"), place_of(item, "data"))
        self.names.capture(item)

    def step(self, step: Mapping[str, Any], observe: object = None) -> None:
        """Go through one step."""
        kind = next((key for key in STEPS if key in step), "")
        if kind in _TALKS:
            self.talk(step, kind, observe)
        elif kind == "setup":
            for item in _maps(step["setup"]):
                self.item(item)
        elif kind in {"verify", "wait"} and isinstance(step[kind], Mapping):
            look = step[kind]
            self.names.text(look.get("id"), place_of(look, "id"), sure=True)
            for key in ("filters", "fields", "until"):
                self.names.fields(look.get(key))
            self.names.text(look.get("count"), place_of(look, "count"))
            self.names.capture(look)
        elif kind == "judge":
            self.names.text(step["judge"], place_of(step, "judge"), sure=True)
            self.need_conversation(step)

    def need_conversation(self, step: Mapping[str, Any]) -> None:
        """See that there is a conversation to look at."""
        name = step.get("conversation")
        if not self.names.talked:
            self.problems.add(place_of(step), "there is nothing to judge: no step before has talked with the agent")
        elif isinstance(name, str) and name not in self.names.conversations:
            hint = suggest(name, self.names.conversations)
            self.problems.add(place_of(step, "conversation"), f"no step before has the conversation `{name}`", hint)

    # -- talking

    def talk(self, step: Mapping[str, Any], kind: str, observe: object) -> None:
        """Go through a step in which the agent talks."""
        said = step[kind]
        for key, value in said.items() if isinstance(said, Mapping) else (("", said),):
            at = place_of(said, key) if key else None
            self.names.text(value, at or place_of(step, kind), sure=key == "criteria")
        self.conversation(step)
        self.names.talked = True
        if step.get("observe", observe) == "none":
            for key in ABOUT_WIRE:
                if key in step:
                    hint = "remove it, or `observe: none`"
                    at = place_of(step, key, key=True)
                    self.problems.add(
                        at, f"`{key}` cannot be evaluated: with `observe: none` the agent's traffic is not seen", hint
                    )
        for key in ("tools", "serverTools", "toolOrder"):
            self.names.tool_names(step.get(key), place_of(step, key))
        for key in ("tools", "serverTools", "totalToolCalls", "usage", "messageProcessing"):
            self.names.check_expected(step.get(key), place_of(step, key))
        self.response(step.get("response"))
        rows = _maps(step.get("created"))
        for created in rows:
            self.names.fields(created.get("fields"))
            self.names.text(created.get("count"), place_of(created, "count"))
        for created in rows:  # a step binds its names when all of it has been judged
            self.names.capture(created)

    def conversation(self, step: Mapping[str, Any]) -> None:
        """Follow which conversation the step is in."""
        name, goes_on = step.get("conversation"), step.get("continueConversation") is True
        at = place_of(step, "continueConversation", key=True)
        if goes_on and not self.names.talked:
            self.problems.add(
                at, "there is no conversation to continue: this is the first step that talks", "remove it"
            )
        elif goes_on and name is not None and name != self.current:
            last = f"`{self.current}`" if self.current else "one without a name"
            message = f"`conversation: {name}` is not the conversation of the step before ({last}), which `continueConversation` means"
            self.problems.add(at, message, "keep one of the two")
        if isinstance(name, str):
            self.current = name
            if name not in self.names.conversations:
                self.names.conversations.append(name)
        elif not goes_on:
            self.current = None

    def response(self, response: object) -> None:
        """Go through what is expected of an answer."""
        if not isinstance(response, Mapping):
            return
        self.names.text(response.get("judge"), place_of(response, "judge"), sure=True)
        self.names.answers = True
        self.names.fields(response.get("json"))
        rest = {key: value for key, value in response.items() if key not in {"json", "judge"}}
        for key, value in rest.items():
            self.names.matcher({key: value}, place_of(response, key))
        self.names.answers = False
