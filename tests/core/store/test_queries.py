"""Rare questions about a store, and keys derived anew."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import (
    canonicalize_stored,
    count_recordings_unsuperseded_at,
    count_unused,
    derive_keys_under_current_rules,
    derive_route_of_recording,
    find_recordings_losing_shared_key,
    find_recordings_now_sharing_key,
    iter_recordings_with_new_keys,
    list_cassette_api_key_vars,
    read_interaction_summary,
)
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Request, Response, Usage
from llmproxy.errors import CassetteCorrupt, CassetteNotFound
from tests.support.chats import NOW, chat, fill

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
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as made:
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
    assert [count_recordings_unsuperseded_at(store, "default", 1, since) for since in (NOW, NOW + 1)] == [0, 2]


def test_one_row_in_short(store: Store) -> None:
    """As `ls` shows it; a row that is not there is said."""
    assert (read_interaction_summary(store, 1).tokens_in, read_interaction_summary(store, 1).tokens_out) == (3, 5)
    with pytest.raises(CassetteNotFound, match="99"):
        read_interaction_summary(store, 99)


def test_errors_of_sqlite_come_out_as_ours(tmp_path: Path) -> None:
    with SqliteCassetteStore.open(tmp_path / "y.db", writable=True, now=lambda: NOW) as made:
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
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: NOW) as made:
        made.add_interaction(dataclasses.replace(BASE, provider=provider, run_variables=declared), supersede=False)
        assert list_cassette_api_key_vars(made, "default") == names


OTHER = Key("v1:" + "0" * 64)


def test_sound_keys_come_out_the_same(tmp_path: Path) -> None:
    """Under the rules of recording each key is what it was; a target that routing refuses stops nothing."""
    fill(tmp_path / "a.db", chat("one"), chat("two"), chat(request=Request("GET", "", (), b"")), chat())
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        found = list(iter_recordings_with_new_keys(store, Rules(), {}))
    assert len(found) == 4
    sound = [(each.old == each.new, each.has_unexplained_key, each.other_rules) for each in found[:2]]
    assert sound == [(True, False, False)] * 2


def test_another_key_under_the_same_rules_is_damage(tmp_path: Path) -> None:
    """It is not when the rules have changed since, or are unknown and the key is right."""
    fill(tmp_path / "a.db", chat(key=OTHER), chat(key=OTHER, rules="old"), chat(rules=""))
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        assert [each.has_unexplained_key for each in iter_recordings_with_new_keys(store, Rules(), {})] == [
            True,
            False,
            False,
        ]


def test_merges_and_splits_are_within_a_place(tmp_path: Path) -> None:
    """Only recordings of one cassette, sample and party can answer each other's requests."""
    same = [chat("same", rules="old", key=Key(f"v1:{n:064x}"), cassette=name) for n, name in enumerate("aab")]
    split = [chat(text, rules="old", key=OTHER, cassette=name) for text, name in (("x", "c"), ("y", "c"), ("z", "d"))]
    fill(tmp_path / "a.db", *same, *split)
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        found = list(iter_recordings_with_new_keys(store, Rules(), {}))
    assert [[each.id for each in group] for group in find_recordings_now_sharing_key(found)] == [[1, 2]]
    assert [[each.id for each in group] for group in find_recordings_losing_shared_key(found)] == [[4, 5]]


@pytest.mark.parametrize(("provider", "target"), [
    ("openai", "/v1/chat/completions"),
    ("openai", "/v1/files/file-1/content"),
    ("anthropic", "/v1/messages?beta=true"),
    ("gemini", "/v1beta/models/gemini-2.0-flash:generateContent"),
    ("mistral", "/v1/chat/completions"),
    ("groq", "/openai/v1/chat/completions"),
    ("openrouter", "/api/v1/chat/completions"),
    ("ollama", "/api/chat"),
    ("bedrock", "/model/anthropic.claude-v2%3A1/invoke"),
    ("cohere", "/v2/chat"),
    ("mycompany", "/v1/chat/completions"),
    ("localhost:8000", "/v1/chat/completions"),
    ("openai", "/nobody/knows?x=%20y"),
])  # fmt: skip
def test_a_recorded_target_keeps_its_route(tmp_path: Path, provider: str, target: str) -> None:
    """The route of a recording names its provider and the very target that was recorded."""
    made = chat(provider=provider, request=dataclasses.replace(chat().request, target=target))
    assert (derive_route_of_recording(made, {}).provider.name, derive_route_of_recording(made, {}).target) == (
        provider,
        target,
    )
    fill(tmp_path / "a.db", made)
    with SqliteCassetteStore.open(tmp_path / "a.db", writable=False, now=lambda: NOW) as store:
        assert canonicalize_stored(store, store.load(1), Rules(), {}).provider == provider


ODD = ["x", "[", "{", "null", "[1]", "[" * 100_000, b"\xff", 1e308, ""]


@pytest.mark.parametrize("odd", ODD, ids=lambda each: repr(each)[:12])
@pytest.mark.parametrize("column", ["request_headers", "status", "ending", "occurrence", "target", "method"])
def test_a_value_that_is_none_of_its_columns_is_damage_in_words(tmp_path: Path, column: str, odd: object) -> None:
    """Of recordings under other rules as well: whatever is asked of them, it is the error of a damaged store, and no other."""
    path = tmp_path / "a.db"
    fill(path, chat("one", key=OTHER, rules="old"))
    with closing(sqlite3.connect(path)) as conn, conn:
        try:
            conn.execute(f"UPDATE interactions SET {column} = ?", (odd,))
        except sqlite3.IntegrityError:
            return
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store:
        for ask in (
            lambda: list(iter_recordings_with_new_keys(store, Rules(), {})),
            lambda: derive_keys_under_current_rules(store, "default", 1, Rules(), {}),
            lambda: [store.response(each.id) for each in store.find_keyed("default", 1, "agent", OTHER)],
        ):
            with suppress(CassetteCorrupt):
                ask()


@pytest.mark.parametrize("odd", ["x", b"\xff"])
def test_a_damaged_name_of_an_id_is_damage_in_words(tmp_path: Path, odd: object) -> None:
    """A later turn asks for what made its id."""
    path = tmp_path / "a.db"
    fill(path, replace(chat("one"), made_ids=("resp_1",)))
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE made_ids SET ordinal = ?", (odd,))
    damaged = pytest.raises(CassetteCorrupt, match="What made the id 'resp_1'")
    with SqliteCassetteStore.open(path, writable=False, now=lambda: NOW) as store, damaged:
        store.find_id_origin("default", 1, "resp_1")
