"""Errors of trace files are two kinds at once, and say what they are about."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from llmproxy.errors import CassetteCorrupt, LLMProxyError
from llmproxy.trace import Cassette
from llmproxy.trace.span_models import (
    TraceFileInvalidValueError,
    TraceFileMissingMemberError,
    TraceFileWrongShapeError,
    TraceNotJSON,
)


@pytest.mark.parametrize(("kind", "theirs"), [
    (TraceNotJSON, json.JSONDecodeError), (TraceFileWrongShapeError, AttributeError), (TraceFileMissingMemberError, KeyError),
    (TraceFileInvalidValueError, ValueError),
])  # fmt: skip
def test_each_is_both(kind: type[Exception], theirs: type[Exception]) -> None:
    """Ours and the original's, with our code."""
    assert issubclass(kind, theirs)
    assert issubclass(kind, CassetteCorrupt)
    assert kind.code == "llmproxy_cassette_corrupt"


def test_no_json_says_where(tmp_path: Path) -> None:
    """Line and column as the JSON reader gives them; it survives pickling, as xdist needs."""
    path = tmp_path / "cut.json"
    path.write_text('{"spans": [\n  {"id": ')
    with pytest.raises(TraceNotJSON, match=r"cut.json, line 2: not JSON, or cut off") as caught:
        Cassette.load(path)
    assert (caught.value.lineno, caught.value.colno) == (2, 10)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_missing_member_reads_as_a_sentence() -> None:
    """KeyError alone would print a bare name in quotes."""
    with pytest.raises(TraceFileMissingMemberError) as caught:
        Cassette.from_dict({"spans": [{"kind": "tool_call"}]})
    assert str(caught.value) == "A span has no 'id'."
    assert isinstance(caught.value, LLMProxyError)
