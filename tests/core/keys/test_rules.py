"""The tables of rules: every rule has a reason, every shape belongs to an operation that exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import pytest

from llmproxy.core.keys.fields import IGNORED, IGNORED_PREFIXES, KEYED, KEYED_PREFIXES
from llmproxy.core.keys.rules import NOTHING, SHAPES, Do, Rule, Shape
from llmproxy.core.providers.table import PROVIDERS


def rules(shape: Shape, seen: set[int]) -> Iterator[tuple[str, Rule]]:
    """Yield every rule below a shape once."""
    if id(shape) in seen:
        return
    seen.add(id(shape))
    for name, rule in shape.members.items():
        yield name, rule
        if rule.into is not None:
            yield from rules(rule.into, seen)
    for kind in shape.kinds.values():
        yield from rules(kind, seen)


def every_rule() -> list[tuple[str, Rule]]:
    """Return the rules of all shapes."""
    seen: set[int] = set()
    return [found for shape in SHAPES.values() for found in rules(shape, seen)]


def test_every_rule_has_its_reason() -> None:
    """A rule nobody can justify is a false hit waiting."""
    assert [name for name, rule in every_rule() if len(rule.why) < 10] == []
    tables = (KEYED, KEYED_PREFIXES, IGNORED, IGNORED_PREFIXES)
    assert [name for table in tables for name, why in table.items() if len(why) < 4] == []
    assert KEYED.keys().isdisjoint(IGNORED)


def test_nothing_that_shapes_the_answer_is_ignored() -> None:
    """What WIRE.md keeps is never in the table of what is left out."""
    ignored = {name for name, rule in every_rule() if rule.do is Do.IGNORE}
    kept = """model messages input contents system instructions tools tool_choice temperature top_p top_k seed stop n
    max_tokens max_completion_tokens max_output_tokens response_format text output_config reasoning reasoning_effort thinking
    include encoding_format dimensions modalities truncation context_management stream_options parallel_tool_calls logprobs
    prompt toolConfig safetySettings generationConfig previous_response_id conversation cachedContent container background
    encrypted_content data thoughtSignature arguments args name role content""".split()  # noqa: SIM905
    assert ignored.isdisjoint(kept)


def test_opaque_subtrees_are_out_of_reach() -> None:
    """No shape walks into schemas, tool inputs or tool results of Gemini and Bedrock."""
    walked = {name for name, rule in every_rule() if rule.into is not None}
    opaque = """parameters input_schema parametersJsonSchema parameters_json_schema responseSchema response_schema
    responseJsonSchema schema inputSchema json args response metadata toolChoice tool_choice""".split()  # noqa: SIM905
    assert walked.isdisjoint(opaque)


def test_only_named_empty_members_are_dropped() -> None:
    """{"any": {}} and {"auto": {}} are different things."""
    assert {name for name, rule in every_rule() if rule.do is Do.SPARE} == {
        "tools", "include", "images", "options", "generationConfig", "generation_config", "inferenceConfig", "tool_calls",
    }  # fmt: skip


def test_every_shape_is_of_an_operation_of_the_table() -> None:
    """A renamed operation would silently lose its rules."""
    known = {
        (operation.family or provider.family, operation.name)
        for provider in PROVIDERS.values()
        for operation in provider.operations.values()
    }
    known |= {("gemini", name) for name in PROVIDERS["gemini"].methods} | {("bedrock", "converse")}
    assert set(SHAPES) - known == set()


def test_the_empty_shape_lets_everything_count() -> None:
    """An operation without rules loses nothing."""
    assert not NOTHING.members
    assert not NOTHING.nulls
    assert not NOTHING.kinds


def test_rules_cannot_be_changed() -> None:
    """Keys of one process and of the next must agree."""
    rule = Rule(Do.IGNORE, "why", Shape())
    with pytest.raises(FrozenInstanceError):
        rule.why = "else"  # type: ignore[misc]
