"""Calls of tools in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.mcp.texts import ToolText, read_call


def asked(**arguments: object) -> bytes:
    """Write a call."""
    params = {"name": "echo", "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def line(**said: Any) -> bytes:  # noqa: ANN401 - JSON
    """Write an answer."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode() + b"\n"


@pytest.mark.parametrize(
    ("answer", "result", "failed"),
    [
        (
            line(result={"content": [{"type": "text", "text": "a"}, {"type": "image", "data": "x"}]}),
            "a\n[image]",
            False,
        ),
        (line(result={"content": [{"type": "text", "text": "no"}], "isError": True}), "no", True),
        (line(error={"code": 1, "message": "gone"}), "gone", True),
        (line(id=9, method="roots/list") + line(result={"structuredContent": {"n": 1}}), '{"n": 1}', False),
        (b"", "", False),
    ],
)
def test_a_call_is_told_with_its_result(answer: bytes, result: str, *, failed: bool) -> None:
    """Texts as they are, other content by its kind; an error is one."""
    found = read_call(asked(text="é"), "application/x-ndjson", answer)
    assert found == ToolText("echo", '{"text": "é"}', result, failed)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"method":"tools/list"}', b'{"method":"tools/call"}'])
def test_what_is_no_call_is_none(body: bytes) -> None:
    """Whatever it is."""
    assert read_call(body, "application/json", b"") is None
