"""The values: the original's shape, names and printing."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest

from llmproxy.trace import AgentRun, AssertionResult, Cassette, EvalResult, Provenance, Span, SpanKind, TokenUsage


def test_kinds() -> None:
    """Seven, equal to their texts, printed by name, JSON by value."""
    assert [kind.value for kind in SpanKind] == [
        "llm_request", "llm_response", "tool_call", "tool_result", "agent_step", "user_input", "agent_output",
    ]  # fmt: skip
    kind: str = SpanKind.TOOL_CALL
    assert kind == "tool_call"
    assert f"{SpanKind.TOOL_CALL}" == str(SpanKind.TOOL_CALL) == "SpanKind.TOOL_CALL"
    assert json.dumps({"kind": SpanKind.TOOL_CALL}) == '{"kind": "tool_call"}'


def test_defaults_of_a_span() -> None:
    """Sixteen members, in the original's order."""
    span = Span(id="1", timestamp=2.0)
    assert span.to_dict() == {
        "id": "1", "kind": "llm_request", "name": "", "timestamp": 2.0, "duration_ms": 0.0, "parent_id": None,
        "input": None, "output": None, "error": None, "model": None, "token_usage": None, "cost_usd": None,
        "tool_name": None, "tool_args": None, "tool_result": None, "metadata": {},
    }  # fmt: skip


@pytest.mark.parametrize(("usage", "cached"), [
    (TokenUsage(1, 2, 3, 4, 5), 9), (TokenUsage(1, 2, 3, 4, None), 4), (TokenUsage(1, 2, 3, None, None), None),
    (TokenUsage(), 0),
])  # fmt: skip
def test_cached_tokens(usage: TokenUsage, cached: int | None) -> None:
    """Read and written together; None only if neither is known."""
    assert usage.cached_tokens == cached
    assert TokenUsage.from_dict(usage.to_dict()) == usage


def test_provenance_leaves_empty_tables_out() -> None:
    """Five members always, three where there is something."""
    assert list(Provenance().to_dict()) == ["recorded_at", "sdk_version", "python_version", "models", "prompt_hash"]
    full = Provenance(tools=[{"name": "t"}], requested_models=["r"], model_aliases={"r": ["x"]})
    assert Provenance.from_dict(full.to_dict()) == full


def test_an_assertion_is_true_if_it_passed() -> None:
    """So `assert tool_called(...)` works."""
    assert AssertionResult("a")
    assert not AssertionResult("a", passed=False)
    assert AssertionResult("a").to_dict() == {
        "name": "a", "passed": True, "expected": None, "actual": None, "message": "",
    }  # fmt: skip


def test_results_together() -> None:
    found = EvalResult(False, 0.5, [AssertionResult("a"), AssertionResult("b", passed=False)])
    assert [result.name for result in found.failed_assertions] == ["b"]
    assert not found
    assert json.loads(json.dumps(found.to_dict()))["score"] == 0.5


def test_values_can_be_copied_and_pickled() -> None:
    run = AgentRun(Cassette(id="1", created_at=0.0, spans=[Span(id="1", timestamp=0.0)]))
    assert pickle.loads(pickle.dumps(run)) == copy.deepcopy(run) == run
    assert [field.name for field in dataclasses.fields(AgentRun)] == ["cassette", "success", "error", "replayed"]
