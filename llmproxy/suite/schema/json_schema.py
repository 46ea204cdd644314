"""The JSON Schema of suites, generated from the models and the table of matchers; a test compares the shipped file.

Generated suites refer to a copy of it next to them by a relative path, which is the same on every machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "data" / "suite.schema.json"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = r"^\$(\{[^}]+\}|[A-Za-z_]\w*([.\[].*)?)$"
_WRAPPED = re.compile(r"\s*\n\s*")
"""Line ends within a docstring's paragraph."""
NAME = "suite.schema.json"
SCHEMA_COMMENT = f"# yaml-language-server: $schema={NAME}"
"""First line of a suite, which names its schema for editors (the YAML language server reads it)."""


def write_schema_beside(suite: Path) -> Path | None:
    """Write the schema next to a suite; returns its path, None if it exists. Raises OSError."""
    path = suite.parent / NAME
    if path.is_file() and path.read_text("utf-8") == format_suite_schema_json():
        return None
    path.write_text(format_suite_schema_json(), encoding="utf-8")
    return path


def format_suite_schema_json() -> str:
    return json.dumps(build_suite_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def build_suite_schema() -> dict[str, Any]:
    from pydantic import TypeAdapter

    from llmproxy.suite.schema.suite import Scenario, Suite

    made = TypeAdapter(Suite | Scenario).json_schema(by_alias=True, mode="validation")
    definitions = _simplify_node({**made["$defs"], **_build_definitions_without_model()})
    del definitions["UnrecognizedStep"]
    return {
        "$schema": _DRAFT,
        "title": "llmproxy suite",
        "description": "A suite of scenarios, or one scenario, that test an agent.",
        "if": {"required": ["scenarios"]},
        "then": {"$ref": "#/$defs/Suite"},
        "else": {"$ref": "#/$defs/Scenario"},
        "$defs": definitions,
    }


def _build_definitions_without_model() -> dict[str, Any]:
    from llmproxy.suite.matchers.apply import COMPARISONS
    from llmproxy.suite.matchers.registry import MODIFIERS, REGISTRY

    number = {"anyOf": [{"type": "number", "minimum": 0}, {"$ref": "#/$defs/Reference"}]}
    matchers = {name: {**known.schema, "description": known.help} for name, known in REGISTRY.items()}
    modifiers = {name: {**kind, "description": help_} for name, (kind, help_, _) in MODIFIERS.items()}
    return {
        "Json": {"description": "Any value; texts may hold $name.field."},
        "Reference": {"type": "string", "pattern": _REFERENCE, "description": "$name, $name.field or ${name.field}"},
        "Ref": {
            "type": "object",
            "properties": {"ref": {"$ref": "#/$defs/Reference"}},
            "required": ["ref"],
            "additionalProperties": False,
        },
        "Count": {
            "description": "How many: a number, or comparisons that all hold.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"$ref": "#/$defs/Reference"},
                {"$ref": "#/$defs/Ref"},
                {
                    "type": "object",
                    "properties": dict.fromkeys(COMPARISONS, number),
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ],
        },
        "Matcher": {
            "description": "A value to be equal to, or matchers that all hold.",
            "anyOf": [
                {"type": ["string", "number", "boolean", "null", "array"]},
                {
                    "type": "object",
                    "properties": {**matchers, **modifiers},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ],
        },
    }


def _simplify_node(node: Any) -> Any:
    """Replace the models' marks by shared definitions; drop repeating titles, nulls, and the branch for no step."""
    if isinstance(node, list):
        return [_simplify_node(each) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("$comment") in {"Json", "Matcher", "Count"}:
        node = {"$ref": f"#/$defs/{node['$comment']}", "description": node.get("description")}
    made = {name: _simplify_node(value) for name, value in node.items() if value is not None}
    if isinstance(said := made.get("description"), str):
        made["description"] = _WRAPPED.sub(" ", said)
    for key in ("title", "default"):
        if not isinstance(made.get(key), dict):
            made.pop(key, None)
    for key in ("anyOf", "oneOf"):
        if isinstance(made.get(key), list):
            unasked = ({"type": "null"}, {"$ref": "#/$defs/UnrecognizedStep"})
            branches = [each for each in made.pop(key) if each not in unasked]
            made = {**branches[0], **made} if len(branches) == 1 else {**made, "anyOf": branches}
    return made
