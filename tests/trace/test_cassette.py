"""Trace files: both forms, what is tolerated, what is refused, totals and the fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import CassetteCorrupt, CassetteNewer
from llmproxy.trace import Cassette, Provenance, Span, SpanKind, TokenUsage
from tests.trace.runs import Json, span, tools, weather

SPAN = {"id": "1", "kind": "tool_call", "timestamp": 1.0}


def test_a_saved_file_is_the_same_again(tmp_path: Path) -> None:
    """Nothing is lost; folders are made; the path comes back."""
    cassette = weather(metadata={"a": 1}, provenance=Provenance(models=["m"]))
    path = cassette.save(tmp_path / "new" / "folder" / "one.json")
    assert Cassette.load(path) == Cassette.load(str(path)) == cassette
    assert [file.name for file in path.parent.iterdir()] == ["one.json"]


def test_the_form_that_is_written() -> None:
    """Enveloped, with the members of 0.12; the flat form of Evalcraft's shipped examples is read, too."""
    data = weather().to_dict()
    assert list(data) == ["evalcraft_version", "llmproxy_trace", "cassette", "spans"]
    assert list(data["cassette"]) == [
        "id", "name", "version", "created_at", "agent_name", "framework", "input_text", "output_text", "total_tokens",
        "total_cost_usd", "total_duration_ms", "llm_call_count", "tool_call_count", "fingerprint", "metadata", "provenance",
    ]  # fmt: skip
    assert len(data["spans"][0]) == 16
    data = weather().to_dict()
    flat = data["cassette"] | {"spans": data["spans"], "evalcraft_cassette": True}
    assert Cassette.from_dict(flat) == Cassette.from_dict(data) == weather()


@pytest.mark.parametrize("data", [
    {},
    {"evalcraft_version": "99.0", "cassette": {"name": "future", "version": "7.0", "new": 1}, "spans": []},
    {"spans": [SPAN | {"unheard": "of", "metadata": None}]},
    {"cassette": {"provenance": {"models": ["m"], "new": 1}}},
    {"spans": [SPAN | {"token_usage": {}}]},
])  # fmt: skip
def test_what_is_tolerated(data: dict[str, Any]) -> None:
    """An empty object, members and versions of the future, empty parts."""
    Cassette.from_dict(data)


@pytest.mark.parametrize(("data", "kind", "words"), [
    ([], AttributeError, "must be an object, not a list"),
    ("text", AttributeError, "must be an object"),
    (None, AttributeError, "must be an object"),
    ({"cassette": []}, AttributeError, "`cassette`"),
    ({"cassette": None}, AttributeError, "`cassette`"),
    ({"spans": "x"}, AttributeError, "`spans` must be a list"),
    ({"spans": None}, TypeError, "`spans` must be a list"),
    ({"spans": ["x"]}, AttributeError, "a span must be an object"),
    ({"spans": [SPAN | {"kind": "dream"}]}, ValueError, "'dream' is not a kind"),
    ({"spans": [SPAN | {"kind": ["x"]}]}, ValueError, "not a kind"),
    ({"spans": [{"kind": "tool_call", "timestamp": 1}]}, KeyError, "no 'id'"),
    ({"spans": [{"id": "1", "timestamp": 1}]}, KeyError, "no 'kind'"),
    ({"spans": [{"id": "1", "kind": "tool_call"}]}, KeyError, "no 'timestamp'"),
    ({"spans": [SPAN, SPAN, {"id": "3"}]}, KeyError, r"spans\[2\]"),
    ({"spans": [SPAN | {"token_usage": "many"}]}, AttributeError, "token_usage"),
    ({"spans": [SPAN | {"token_usage": {"total_tokens": "3"}}]}, ValueError, "must be a number"),
    ({"spans": [SPAN | {"duration_ms": "long"}]}, ValueError, "must be a number"),
    ({"spans": [SPAN | {"cost_usd": True}]}, ValueError, "must be a number"),
    ({"total_tokens": "999"}, ValueError, "must be a number"),
    ({"cassette": {"provenance": "x"}}, AttributeError, "provenance"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, data: Json, kind: type[Exception], words: str) -> None:
    """Each wrong file is CassetteCorrupt and the kind that the original raises; from a file the message names it."""
    for wanted in (kind, CassetteCorrupt):
        with pytest.raises(wanted, match=words):
            Cassette.from_dict(data)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CassetteCorrupt, match=r"wrong\.json"):
        Cassette.load(path)


def test_a_newer_file_of_ours_is_refused() -> None:
    """What this version does not know it does not guess."""
    with pytest.raises(CassetteNewer, match="newer llmproxy"):
        Cassette.from_dict({"llmproxy_trace": 2, "cassette": {}, "spans": []})


def test_totals() -> None:
    """Requests and responses both count, tool results do not; tokens of all spans; cost and time that are known."""
    cassette = Cassette()
    for each in (
        span(SpanKind.LLM_REQUEST, 1, token_usage=TokenUsage(1, 2, 3, 4, 5), cost_usd=0.5, duration_ms=3.0),
        span(SpanKind.LLM_RESPONSE, 2, cost_usd=0.0, duration_ms=None, token_usage=TokenUsage(None, 1, None)),
        span(SpanKind.TOOL_CALL, 3, tool_name=""),
        span(SpanKind.TOOL_CALL, 4, tool_name="a"),
        span(SpanKind.TOOL_RESULT, 5, tool_name="a"),
    ):
        cassette.add_span(each)
    numbers = (3, 0.5, 3.0, 2, 2)

    def totals() -> tuple[float, ...]:
        return (cassette.total_tokens, cassette.total_cost_usd, cassette.total_duration_ms, cassette.llm_call_count,
                cassette.tool_call_count)  # fmt: skip

    assert totals() == numbers
    cassette.compute_metrics()
    assert totals() == numbers
    assert cassette.get_tool_sequence() == ["a"]
    assert len(cassette.get_tool_calls()) == len(cassette.get_llm_calls()) == 2


def test_totals_of_a_file_are_taken_as_they_stand(tmp_path: Path) -> None:
    """Reading does not count again; writing does. `created_at_unknown` is for files that do not say when."""
    cassette = Cassette.from_dict({"total_tokens": 999, "spans": [SPAN]})
    assert cassette.total_tokens == 999
    assert cassette.to_dict()["cassette"]["total_tokens"] == 0
    assert Cassette.from_dict({}).created_at_unknown
    assert not Cassette.from_dict({"created_at": 1.0}).created_at_unknown


def test_the_fingerprint_covers_everything_in_spans_and_nothing_else() -> None:
    """An id, a time, metadata change it; name, texts and provenance do not."""
    stored = weather().fingerprint
    assert weather(name="other", input_text="x", output_text="y", metadata={"z": 1}).compute_fingerprint() == stored
    for name, value in (("id", "x"), ("timestamp", 0.0), ("duration_ms", 1.0), ("metadata", {"a": 1})):
        changed = weather()
        setattr(changed.spans[0], name, value)
        assert changed.compute_fingerprint() != stored
    assert Cassette().compute_fingerprint() == "4f53cda18c2baa0c"  # of an empty list


def test_unknown_numbers_survive_a_file(tmp_path: Path) -> None:
    """They stand there as 0, marked, and are None again here; a value that JSON does not know is text, as in the original."""
    cassette = Cassette(created_at=1.0)
    cassette.add_span(
        span(SpanKind.LLM_RESPONSE, 1, duration_ms=None, token_usage=TokenUsage(None, 6, None, None, None))
    )
    path = cassette.save(tmp_path / "x.json")
    (plain,) = json.loads(path.read_text())["spans"]
    assert (plain["duration_ms"], plain["token_usage"]["total_tokens"]) == (0.0, 0)
    (again,) = Cassette.load(path).spans
    assert again == cassette.spans[0]
    assert again.metadata == {}
    path = tools(("t", {"when": Path("x")}, {1})).save(tmp_path / "x.json")
    assert Cassette.load(path).spans[0].tool_result == "{1}"


def test_spans_are_compared_by_value() -> None:
    """Two spans with the same members are equal, and get ids of their own by default."""
    assert Span(id="1", timestamp=0.0) == Span(id="1", timestamp=0.0)
    assert Span().id != Span().id
