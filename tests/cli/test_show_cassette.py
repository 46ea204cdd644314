"""A cassette as a conversation, at the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.cli.show import show_cassette
from tests.support.chats import chat, fill


def test_what_holds_no_conversation_says_where_the_rest_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server of tools that was recorded alone, say: else a line of sums stands there as if nothing had happened."""
    path = tmp_path / "x.db"
    tool = replace(chat("two", "2", cassette="b"), provider="stdio:h", operation="mcp:tools/call x")
    fill(path, chat("one", "1", cassette="a"), tool)
    for cassette, alone in (("a", False), ("b", True)):
        show_cassette(cassette, path, single="", as_json=False)
        said = capsys.readouterr().out
        assert (f"llmproxy ls b --store {path}" in said) is alone, said
