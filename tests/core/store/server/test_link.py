"""Texts that PostgreSQL's columns cannot hold."""

from __future__ import annotations

from hypothesis import given, strategies

from llmproxy.core.store.rows import from_sql, to_sql
from llmproxy.core.store.server.link import from_pg, in_column


@given(strategies.text(strategies.characters(codec=None) | strategies.sampled_from("\0\x01\udcff")))
def test_every_text_comes_back(text: str) -> None:
    """And what stands in the column is text without a NUL."""
    said = in_column(text)
    assert "\0" not in said
    said.encode()
    back = from_pg(said)
    assert isinstance(back, str | bytes)
    assert from_sql(back) == text
    assert back == to_sql(text)
