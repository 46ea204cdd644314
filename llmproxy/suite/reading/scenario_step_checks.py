"""Checks across the steps of a scenario: names declared before use, conversations, labels.

They read the YAML as written, in the order of execution, and so find errors also in a file with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.matchers.registry import REGISTRY
from llmproxy.suite.matchers.variable_references import (
    BUILT_IN,
    Reference,
    StepError,
    find_variable_references,
    get_required_path_value,
    parse_variable_ref,
    strip_dollar,
)
from llmproxy.suite.schema.suite import ABOUT_WIRE, STEPS
from llmproxy.yaml_reader import Problems, YamlPlace, get_yaml_place

_TALKS = ("chat", "simulate")


def list_capture_names(scenario: Mapping[str, Any]) -> dict[str, YamlPlace | None]:
    items = keep_only_dicts_of_list(scenario.get("setup"))
    for step in keep_only_dicts_of_list(scenario.get("steps")):
        for several in (step.get("setup"), step.get("created"), [step.get("verify")]):
            items += keep_only_dicts_of_list(several)
    found: dict[str, YamlPlace | None] = {}
    for item in items:
        if isinstance(name := item.get("as"), str):
            found.setdefault(strip_dollar(name), get_yaml_place(item, "as"))
    return found


def keep_only_dicts_of_list(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


class ScenarioVariableChecker:
    def __init__(self, problems: Problems, doubts: Problems) -> None:
        self.problems, self.doubts = problems, doubts
        self.values: dict[str, object] = {}
        self.captured: dict[str, YamlPlace | None] = {}
        self.unread: dict[str, YamlPlace | None] = {}
        """Variables declared further down."""
        self.later: dict[str, YamlPlace | None] = {}
        self.lacking: dict[str, YamlPlace | None] = {}
        """Names that other sets of parameters have and this one lacks, with their places."""
        self.of_data = False
        """Whether the scenario has sets of parameters: then an unknown bare name is a missing column."""
        self.conversations: list[str] = []
        self.talked = False
        self.answers = False
        """Whether the place is in a step's assertions about its own answer."""
        self.current: str | None = None
        """Conversation name of the last chat step; None if it has none."""

    def add_variables(self, vars_: Mapping[str, Any], *, sure: bool = False) -> None:
        """Add variables in order; each may reference earlier ones. `sure`: references are intended."""
        self.unread = {name: get_yaml_place(vars_, name, key=True) for name in vars_}
        for name, value in vars_.items():
            at = self.unread[name]
            if not name.isascii() or not name.isidentifier():
                self.problems.add(at, f"`{name}` is no name for a variable", "letters, digits and _, no digit first")
            elif name in BUILT_IN:
                self.problems.add(at, f"`{name}` is built in: {BUILT_IN[name]}", "choose another name")
            self.check_text(value, get_yaml_place(vars_, name), sure=sure and parse_variable_ref(value) is not None)
            del self.unread[name]
            self.values[name] = value

    def add_capture(self, item: Mapping[str, Any]) -> None:
        name, at = item.get("as"), get_yaml_place(item, "as")
        if not isinstance(name, str):
            return
        if (bare := strip_dollar(name)) in self.values:
            self.problems.add(at, f"${bare} is a variable already", "choose another name")
        elif bare in self.captured and item.get("overwrite") is not True:
            message = f"${bare} is captured already, at {self.captured[bare]}"
            self.problems.add(at, message, "choose another name, or `overwrite: true`")
        self.captured.setdefault(bare, at)

    def check_field_matchers(self, fields: object) -> None:
        if isinstance(fields, Mapping):
            for column, value in fields.items():
                self.check_matcher(value, get_yaml_place(fields, column))

    def check_matcher(self, value: object, at: YamlPlace | None) -> None:
        """Check a matcher; patterns and schemas hold no references. A name without a value is in no answer."""
        if not isinstance(value, Mapping):
            self.check_text(value, at, sure=True)
            return
        for key, operand in value.items():
            place = get_yaml_place(value, key) or at
            if key == "not":
                self.check_matcher(operand, place)
            elif key in {"anyOf", "allOf"} and isinstance(operand, list):
                for i, each in enumerate(operand):
                    self.check_matcher(each, get_yaml_place(operand, i) or place)
            elif key == "ref" or (key in REGISTRY and not REGISTRY[key].raw):
                self.check_text(operand, place, sure=True)

    def check_nested_references(self, value: object, at: YamlPlace | None) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                if key not in REGISTRY or not REGISTRY[key].raw or key in {"anyOf", "allOf", "not"}:
                    self.check_nested_references(each, get_yaml_place(value, key))
        elif isinstance(value, list):
            for i, each in enumerate(value):
                self.check_nested_references(each, get_yaml_place(value, i) or at)
        else:
            self.check_text(value, at, sure=True)

    def require_literal_tool_names(self, given: object, at: YamlPlace | None) -> None:
        """Refuse references in place of a tool name, which would be taken for a tool that is never called."""
        for i, name in enumerate([*given] if isinstance(given, Mapping) else given if isinstance(given, list) else []):
            if isinstance(name, str) and parse_variable_ref(name) is not None:
                place = (
                    get_yaml_place(given, name, key=True) if isinstance(given, Mapping) else get_yaml_place(given, i)
                )
                message = f"{name} stands where a tool is named, which no variable can be"
                self.problems.add(place or at, message, "write the tool's name")
        for wanted in given.values() if isinstance(given, Mapping) else ():
            if isinstance(wanted, Mapping):
                others = {key: wanted[key] for key in ("before", "after") if key in wanted}
                self.require_literal_tool_names(
                    [*others.values()], next((get_yaml_place(wanted, key) for key in others), at)
                )

    def check_text(self, value: object, at: YamlPlace | None, *, sure: bool = False) -> None:
        """Check all references in a YAML value; `sure`: a text that is one is intended."""
        if isinstance(value, str):
            for reference in find_variable_references(value):
                self.check_variable_reference(reference, at, sure=sure or reference.is_unambiguous)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                only = key == "ref" and len(value) == 1
                if only and parse_variable_ref(each) is None:
                    self.problems.add(
                        get_yaml_place(value, key) or at, f"`ref` takes a reference such as $name.field, not {each!r}"
                    )
                self.check_text(each, get_yaml_place(value, key) or at, sure=sure or only)
        elif isinstance(value, list):
            for i, each in enumerate(value):
                self.check_text(each, get_yaml_place(value, i) or at, sure=sure)

    def check_variable_reference(self, found: Reference, at: YamlPlace | None, *, sure: bool) -> None:
        name = found.name
        if found.env or name in self.captured:
            return
        valued = name in self.values or name in BUILT_IN or name in self.unread or name in self.later
        if name in self.lacking and not (found.is_malformed or valued):
            at = self.lacking[name] or at
        known = [*self.captured, *self.later, *self.values, *BUILT_IN]
        may_be_text = not (sure or self.of_data or found.is_malformed)
        if may_be_text and name not in (*known, *self.unread, *self.lacking):
            said = f"{found.text} is sent as it is: nothing is called ${name}"
            self.doubts.add(at, said, suggest_name(name, known, listing=False) or "$$ is a dollar sign")
        elif objection := self._explain_bad_reference(found, known):
            self.problems.add(at, *objection)

    def _explain_bad_reference(self, found: Reference, known: list[str]) -> tuple[str, str] | None:
        name = found.name
        if found.is_malformed:
            return f"{found.text} is no reference", "write ${name.field} or ${env:NAME}; $$ is a dollar sign"
        if name in self.values:
            return self._explain_bad_variable_path(found)
        if name in BUILT_IN:
            return self._explain_unset_built_in(found)
        if name in self.unread:
            message = f"{found.text} is used before it has a value, at {self.unread[name]}"
            return message, "a variable may name those above it"
        if name in self.later:
            message = f"{found.text} is used before it is captured, at {self.later[name]}"
            return message, "a name has a value from the next step on"
        if name in self.lacking:
            message = f"this case has no `{name}`, and others have one, for {found.text}"
            return message, "give it one; null says that there is none"
        more = "" if found.is_unambiguous or suggest_name(name, known, listing=False) else "; $$ is a dollar sign"
        return f"{found.text}: nothing is called ${name}", suggest_name(name, known) + more

    def _explain_bad_variable_path(self, found: Reference) -> tuple[str, str] | None:
        value = self.values[found.name]
        if found.path and isinstance(value, (Mapping, list)):
            try:
                get_required_path_value(value, found.path, found.text)
            except StepError as error:
                return error.message, error.hint
        elif found.path and isinstance(value, (bool, int, float)):
            return f"{found.text}: ${found.name} is {value!r} and has no fields", ""
        return None

    def _explain_unset_built_in(self, found: Reference) -> tuple[str, str] | None:
        if found.name == "last" and self.answers:
            message = f"{found.text} is this very answer, which is like itself whatever it says"
            return message, "compare it with a variable or a captured row"
        if found.name == "last" and (not self.talked or found.path != ("response",)):
            why = "the agent has said nothing yet" if found.path == ("response",) else BUILT_IN["last"]
            return f"{found.text}: {why}", ""
        if found.name == "conversation" and (len(found.path) != 1 or found.path[0] not in self.conversations):
            known = ", ".join(self.conversations) or "none"
            return f"{found.text}: no step before has such a conversation (known: {known})", BUILT_IN["conversation"]
        if found.name not in {"last", "conversation"} and found.path:
            return f"{found.text}: ${found.name} has no fields", BUILT_IN[found.name]
        return None

    def check_scenario(self, scenario: Mapping[str, Any]) -> None:
        self.later = list_capture_names(scenario)
        # `mock` counts before anything is captured.
        self.check_text(scenario.get("mock"), get_yaml_place(scenario, "mock"), sure=True)
        self.check_nested_references(scenario.get("usage"), get_yaml_place(scenario, "usage"))
        for item in keep_only_dicts_of_list(scenario.get("setup")):
            self.check_setup_references(item)
        labels: dict[str, YamlPlace | None] = {}
        for step in keep_only_dicts_of_list(scenario.get("steps")):
            label, at = step.get("label"), get_yaml_place(step, "label")
            if isinstance(label, str) and label in labels:
                message = f"the label `{label}` stands here twice, first at {labels[label]}"
                self.problems.add(at, message, "labels name one step")
            elif isinstance(label, str):
                labels[label] = at
            self.check_step(step, scenario.get("observe"))
        for item in keep_only_dicts_of_list(scenario.get("teardown")):
            self.check_text(item.get("id"), get_yaml_place(item, "id"), sure=True)
            self.check_field_matchers(item.get("filters"))

    def check_setup_references(self, item: Mapping[str, Any]) -> None:
        self.check_text(item.get("data"), get_yaml_place(item, "data"))
        self.add_capture(item)

    def check_step(self, step: Mapping[str, Any], observe: object = None) -> None:
        kind = next((key for key in STEPS if key in step), "")
        if kind in _TALKS:
            self.check_talk(step, kind, observe)
        elif kind == "setup":
            for item in keep_only_dicts_of_list(step["setup"]):
                self.check_setup_references(item)
        elif kind in {"verify", "wait"} and isinstance(step[kind], Mapping):
            look = step[kind]
            self.check_text(look.get("id"), get_yaml_place(look, "id"), sure=True)
            for key in ("filters", "fields", "until"):
                self.check_field_matchers(look.get(key))
            self.check_text(look.get("count"), get_yaml_place(look, "count"))
            self.add_capture(look)
        elif kind == "judge":
            self.check_text(step["judge"], get_yaml_place(step, "judge"), sure=True)
            self.require_conversation(step)

    def require_conversation(self, step: Mapping[str, Any]) -> None:
        name = step.get("conversation")
        if not self.talked:
            message = "there is nothing to judge: no step before has talked with the agent"
            self.problems.add(get_yaml_place(step), message)
        elif isinstance(name, str) and name not in self.conversations:
            at, hint = get_yaml_place(step, "conversation"), suggest_name(name, self.conversations)
            self.problems.add(at, f"no step before has the conversation `{name}`", hint)

    def check_talk(self, step: Mapping[str, Any], kind: str, observe: object) -> None:
        said = step[kind]
        for key, value in said.items() if isinstance(said, Mapping) else (("", said),):
            at = get_yaml_place(said, key) if key else None
            self.check_text(value, at or get_yaml_place(step, kind), sure=key == "criteria")
        self.check_continued_conversation(step)
        self.talked = True
        if step.get("observe", observe) == "none":
            for key in ABOUT_WIRE:
                if key in step:
                    said = f"`{key}` cannot be evaluated: with `observe: none` the agent's traffic is not seen"
                    self.problems.add(get_yaml_place(step, key, key=True), said, "remove it, or `observe: none`")
        for key in ("tools", "serverTools", "toolOrder"):
            self.require_literal_tool_names(step.get(key), get_yaml_place(step, key))
        for key in ("tools", "serverTools", "totalToolCalls", "usage", "messageProcessing"):
            self.check_nested_references(step.get(key), get_yaml_place(step, key))
        self.check_response(step.get("response"))
        rows = keep_only_dicts_of_list(step.get("created"))
        for created in rows:
            self.check_field_matchers(created.get("fields"))
            self.check_text(created.get("count"), get_yaml_place(created, "count"))
        for created in rows:  # a step binds its names when all of it has been judged
            self.add_capture(created)

    def check_continued_conversation(self, step: Mapping[str, Any]) -> None:
        name, goes_on = step.get("conversation"), step.get("continueConversation") is True
        at = get_yaml_place(step, "continueConversation", key=True)
        if goes_on and not self.talked:
            message = "there is no conversation to continue: this is the first step that talks"
            self.problems.add(at, message, "remove it")
        elif goes_on and name is not None and name != self.current:
            last = f"`{self.current}`" if self.current else "one without a name"
            message = (
                f"`conversation: {name}` is not the conversation of the step before ({last}), which "
                "`continueConversation` means"
            )
            self.problems.add(at, message, "keep one of the two")
        if isinstance(name, str):
            self.current = name
            if name not in self.conversations:
                self.conversations.append(name)
        elif not goes_on:
            self.current = None

    def check_response(self, response: object) -> None:
        if not isinstance(response, Mapping):
            return
        self.check_text(response.get("judge"), get_yaml_place(response, "judge"), sure=True)
        self.answers = True
        self.check_field_matchers(response.get("json"))
        for key, value in response.items():
            if key not in {"json", "judge"}:
                self.check_matcher({key: value}, get_yaml_place(response, key))
        self.answers = False
