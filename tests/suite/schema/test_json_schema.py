"""The published JSON Schema says what the loader says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.matchers.registry import REGISTRY
from llmproxy.suite.schema import json_schema
from llmproxy.yaml_reader import Problems, read_documents, read_yaml_file
from tests.suite.fragment import load_fragment

GUIDE = Path(__file__).resolve().parents[3] / "fixtures" / "suites" / "guide.yaml"
SCHEMA: dict[str, Any] = json_schema.build_suite_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_shipped_file_is_the_generated_one() -> None:
    """After a change of the format: python -c "from llmproxy.suite.schema import json_schema as s; s.FILE.write_text(s.format_suite_schema_json())"."""
    assert json_schema.FILE.read_text(encoding="utf-8") == json_schema.format_suite_schema_json()


def test_it_is_a_schema() -> None:
    """Editors refuse others; every reference in it leads somewhere."""
    VALIDATOR.check_schema(SCHEMA)
    text = json.dumps(SCHEMA)
    assert {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]} <= SCHEMA["$defs"].keys()
    assert "$comment" not in text


def test_every_matcher_is_offered() -> None:
    offered = SCHEMA["$defs"]["Matcher"]["anyOf"][1]["properties"]
    assert offered.keys() > REGISTRY.keys()
    assert all(offered[name]["description"] == known.help for name, known in REGISTRY.items())


def test_suites_and_scenarios_of_the_guide_are_valid() -> None:
    """What loads is not marked red by an editor."""
    bodies = [each["yaml"] for each, _ in read_yaml_file(GUIDE, Problems()) if each["kind"] in {"suite", "scenario"}]  # type: ignore[index]
    assert len(bodies) == 5
    for body in bodies:
        assert [error.message for error in VALIDATOR.iter_errors(body)] == []


@pytest.mark.parametrize(("key", "wrong"), [
    ("runs", "'5'"),
    ("tags", "5"),
    ("minPassRate", "2"),
    ("timeout", "soon"),
    ("nonsense", "1"),
    ("steps", "[]"),
    ("steps", "[{chat: hi, tool: {a: 1}}]"),
    ("steps", "[{chat: hi, tools: {a: {min: 1}}}]"),
    ("steps", "[{chat: hi, tools: {a: {input: {q: {contians: x}}}}}]"),
    ("steps", "[{chat: hi, response: {matches: x}}]"),
    ("steps", "[{chat: hi, usage: {anyOf: []}}]"),
    ("steps", "[{wait: {entity: t}}]"),
])  # fmt: skip
def test_what_the_loader_refuses_the_schema_refuses(key: str, wrong: str) -> None:
    """Nobody is told by an editor that all is well, and then by us that it is not."""
    text = f"{{id: a, {key}: {wrong}" + ("}" if key == "steps" else ", steps: [{chat: hi}]}")
    with pytest.raises(SuiteError):
        load_fragment("scenario", text)
    assert not VALIDATOR.is_valid(read_documents(text, "f", Problems())[0][0])


def test_the_schema_is_written_beside_the_suite(tmp_path: Path) -> None:
    """The first line is the same on every machine; an old schema is renewed, a current one left."""
    assert json_schema.SCHEMA_COMMENT == "# yaml-language-server: $schema=suite.schema.json"
    suite = tmp_path / "a.suite.yaml"
    written = json_schema.write_schema_beside(suite)
    assert written == tmp_path / "suite.schema.json"
    assert written.read_text("utf-8") == json_schema.format_suite_schema_json()
    assert json_schema.write_schema_beside(suite) is None
    written.write_text("{}")
    assert json_schema.write_schema_beside(suite) == written
