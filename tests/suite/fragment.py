"""Read a part of a suite by itself: what tests, documentation and editors' snippets are checked with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from llmproxy.suite.reading.load import LoadedSuites
from llmproxy.suite.reading.scenario_step_checks import ScenarioVariableChecker
from llmproxy.suite.schema.assertions import (
    AgentHistoryEditAssertions,
    Count,
    CreatedRowsAssertion,
    Fields,
    Response,
    SetupRow,
    ToolExpect,
    Usage,
)
from llmproxy.suite.schema.base_nodes import collect_validation_errors
from llmproxy.suite.schema.suite import Scenario, Step, Suite
from llmproxy.yaml_reader import Problems, YamlList, YamlMapping, YamlPlace, read_documents

_WITHIN = {"tools", "totalToolCalls", "created", "response", "usage", "messageProcessing"}
"""Kinds that are a key of a chat step."""
_TYPES: dict[str, Any] = {
    "suite": Suite, "scenario": Scenario, "steps": Annotated[tuple[Step, ...], Field(min_length=1)],
    "setup": tuple[SetupRow, ...], "step": Step, "tools": Annotated[dict[str, ToolExpect], Field(min_length=1)],
    "totalToolCalls": Count, "created": tuple[CreatedRowsAssertion, ...], "fields": Fields, "response": Response,
    "usage": Usage, "messageProcessing": AgentHistoryEditAssertions,
}  # fmt: skip
KINDS = tuple(_TYPES)
"""What a fragment may be."""
_NAME = "fragment"


def load_fragment(kind: str, yaml: str | YamlMapping | YamlList, *, declared: Iterable[str] = ()) -> Any:
    """Return the model of a fragment of a suite.

    Args:
        kind: One of `KINDS`.
        yaml: The text, or what `yaml12.read` made of it.
        declared: Names that may be used as if an earlier step had captured them.

    Raises:
        SuiteError: what is wrong with it, with the places in it.
    """
    problems = Problems()
    value: object = yaml
    if isinstance(yaml, str):
        documents = read_documents(yaml, _NAME, problems)
        value = documents[0][0] if documents else None
        problems.raise_if_any()
    _follow(kind, value, problems, declared)
    try:
        context: Any = problems
        made = TypeAdapter(_TYPES[kind]).validate_python(value, context=context)
    except ValidationError as error:
        collect_validation_errors(error, value, problems, YamlPlace(_NAME, 1, 1))
        made = None
    problems.raise_if_any()
    return made


def _follow(kind: str, value: object, problems: Problems, declared: Iterable[str]) -> None:
    flow = ScenarioVariableChecker(problems, Problems())
    flow.captured = dict.fromkeys(declared)
    here = value.place if isinstance(value, (YamlMapping, YamlList)) else YamlPlace(_NAME, 1, 1)
    if kind == "suite" and isinstance(value, YamlMapping):
        loaded = LoadedSuites(problems=problems)
        for each in value.get("scenarios") or []:
            if isinstance(each, YamlMapping):
                loaded.validate_scenario(each, value.get("vars"))
    elif kind == "scenario" and isinstance(value, YamlMapping):
        LoadedSuites(problems=problems).validate_scenario(value, None)
    elif kind == "fields":
        flow.check_field_matchers(value)
    else:
        flow.check_scenario(_scenario(kind, value, here))


def _scenario(kind: str, value: object, here: YamlPlace) -> YamlMapping:
    step, whole, steps = YamlMapping(here), YamlMapping(here), YamlList(here)
    if kind in _WITHIN:
        step.put(kind, value, here, here)
        step.put("chat", "-", here, here)
        value = step
    if kind in {"steps", "setup"}:
        whole.put(kind, value, here, here)
    else:
        steps.put(value, here)
        whole.put("steps", steps, here, here)
    return whole
