"""Errors of trace files are two kinds at once, and say what they are about."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from llmproxy.errors import LLMProxyError
from llmproxy.trace import Cassette
from llmproxy.trace.span_models import (
    TraceFileMissingMemberError,
    TraceNotJSON,
)


def test_no_json_says_where(tmp_path: Path) -> None:
    """Line and column as the JSON reader gives them; it survives pickling, as xdist needs."""
    path = tmp_path / "cut.json"
    path.write_text('{"spans": [\n  {"id": ')
    with pytest.raises(TraceNotJSON, match=r"cut.json, line 2: not JSON, or cut off") as caught:
        Cassette.load(path)
    assert (caught.value.lineno, caught.value.colno, caught.value.code) == (2, 10, "llmproxy_cassette_corrupt")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_missing_member_reads_as_a_sentence() -> None:
    """KeyError alone would print a bare name in quotes."""
    with pytest.raises(TraceFileMissingMemberError) as caught:
        Cassette.from_dict({"spans": [{"kind": "tool_call"}]})
    assert str(caught.value) == "A span has no 'id'."
    assert isinstance(caught.value, LLMProxyError)
