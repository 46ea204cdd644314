"""What docs/suites.md shows loads, and what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmproxy.suite.matchers.registry import MODIFIERS, REGISTRY
from llmproxy.suite.matchers.variable_references import BUILT_IN
from llmproxy.suite.schema.assertions import AgentHistoryEditAssertions, Response, ToolExpect, Usage
from llmproxy.suite.schema.suite import STEPS, ChatOrSimulateStep, Defaults, IncludedPart, Scenario, Suite
from tests.suite.fragment import load_fragment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml (\w+)\n(.*?)```", PAGE, re.DOTALL)
NODES = (
    Suite,
    IncludedPart,
    Scenario,
    Defaults,
    ChatOrSimulateStep,
    ToolExpect,
    Response,
    Usage,
    AgentHistoryEditAssertions,
)


@pytest.mark.parametrize(("kind", "text"), BLOCKS, ids=[kind for kind, _ in BLOCKS])
def test_every_block_loads(kind: str, text: str) -> None:
    assert load_fragment(kind, text) is not None


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 3


KEYS = {key for node in NODES for key in node.known_keys()}


@pytest.mark.parametrize("name", sorted({*KEYS, *REGISTRY, *MODIFIERS, *STEPS, *BUILT_IN}))
def test_every_key_is_on_the_page(name: str) -> None:
    assert re.search(rf"[`$ {{]{name}\b", PAGE), name
