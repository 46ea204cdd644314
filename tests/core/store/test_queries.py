"""Rare questions about a store."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.queries import (
    count_recordings_live_at_time,
    count_unused,
    list_api_key_variables,
    read_interaction_summary,
)
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Request, Response, Usage
from llmproxy.errors import CassetteCorrupt, CassetteNotFound

NOW = 1_800_000_000.0
BASE = Interaction(
    provider="openai",
    operation="chat.completions",
    key=Key("v1:a"),
    request=Request("POST", "/v1/chat/completions", (), b"{}"),
    response=Response(200, "OK", (), (Chunk(0, b"{}"),)),
    started_at=NOW,
    usage=Usage(input=3, output=5),
    rules="r1",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a store of five recordings, one of them superseded."""
    with FileStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as made:
        for changes in (
            {},
            {"key": Key("v1:b"), "operation": "embeddings"},
            {"cassette": "other", "party": "judge"},
            {"cassette": "other", "sample": 2, "rules": "r2"},
        ):
            made.add_interaction(dataclasses.replace(BASE, **changes), supersede=False)
        made.add_interaction(dataclasses.replace(BASE, rules=""), supersede=True)
        yield made


def test_counts_are_of_live_recordings(store: Store) -> None:
    assert store.count_interactions("default", 1) == 2
    assert store.count_interactions("default", 1, kind=("openai", "embeddings")) == 1
    assert store.count_interactions("other", 1) == store.count_interactions("other", 2) == 1
    assert store.count_interactions("nobody", 1) == 0
    assert [count_unused(store, "default", 1, used) for used in ((), {2}, {1, 2, 5})] == [2, 1, 0]
    failed = dataclasses.replace(BASE, response=dataclasses.replace(BASE.response, status=401))
    store.add_interaction(failed, supersede=False)
    assert [count_recordings_live_at_time(store, "default", 1, since) for since in (NOW, NOW + 1)] == [0, 2]


def test_one_row_in_short(store: Store) -> None:
    """As `ls` shows it; a row that is not there is said."""
    assert (read_interaction_summary(store, 1).tokens_in, read_interaction_summary(store, 1).tokens_out) == (3, 5)
    with pytest.raises(CassetteNotFound, match="99"):
        read_interaction_summary(store, 99)


def test_errors_of_sqlite_come_out_as_ours(tmp_path: Path) -> None:
    with FileStore.open(tmp_path / "y.db", writable=True, now=lambda: NOW) as made:
        made.add_interaction(BASE, supersede=False)
        with sqlite3.connect(tmp_path / "y.db") as other:
            other.execute("PRAGMA foreign_keys=OFF")
            other.execute("ALTER TABLE interactions RENAME TO gone")
        other.close()
        with pytest.raises(CassetteCorrupt):
            made.count_interactions("default", 1)
        with sqlite3.connect(tmp_path / "y.db") as other:
            other.execute("ALTER TABLE gone RENAME TO interactions")
        other.close()


@pytest.mark.parametrize(("declared", "provider", "names"), [
    ("", "openai", None),
    ('[{"name":"cwd","value":"/a"}]', "openai", None),
    ('[{"name":"api_keys","value":"none"}]', "openai", ("OPENAI_API_KEY",)),
    ('[{"name":"api_keys","value":"GROQ_API_KEY"}]', "openai", ("GROQ_API_KEY", "OPENAI_API_KEY")),
    ('[{"name":"api_keys","value":"ANTHROPIC_AUTH_TOKEN"}]', "anthropic", ("ANTHROPIC_AUTH_TOKEN",)),
    ('[{"name":"api_keys","value":"none"}]', "http:x", ()),
])  # fmt: skip
def test_names_of_keys(tmp_path: Path, declared: str, provider: str, names: tuple[str, ...] | None) -> None:
    """Of the cassette's providers, and those that were set; nothing is known of a recording that says nothing."""
    with FileStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as made:
        made.add_interaction(dataclasses.replace(BASE, provider=provider, run_variables=declared), supersede=False)
        assert list_api_key_variables(made, "default") == names
