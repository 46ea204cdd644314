"""Children of cassettes: copies that replay whole, a row that says whose they are, names that do not collide."""

from __future__ import annotations

import math
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.forks.fork_rows import (
    CassetteNameTaken,
    CopiedRecording,
    Fork,
    find_fork,
    fork_cassette,
    lease_cassette_name,
    list_all_forks_in_store,
    parse_fork_in_cassette_file,
    store_fork_with_copies,
)
from llmproxy.core.forks.overrides import parse_answer_override_options
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteBusy, CassetteNotFound
from tests.support.chats import NOW, chat, fill
from tests.support.narrowing import known

ME = "me"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with the cassette `a`: one, two, one again; its second made an id."""
    path = tmp_path / "x.db"
    made = [chat("one", "1", cassette="a"), chat("two", "2", cassette="a", started_at=NOW + 1, made_ids=("resp_2",)),
            chat("one", "1 again", cassette="a", occurrence=2, started_at=NOW + 2)]  # fmt: skip
    fill(path, *made)
    return path


def opened(path: Path, *, writable: bool = True) -> Store:
    return SqliteCassetteStore.open(path, writable=writable, now=lambda: NOW + 9)


def test_a_child_holds_what_it_shares_and_says_whose_it_is(path: Path) -> None:
    """Copies with the same bytes, keys and made ids, in their order; the parent is as it was; bodies are not stored twice."""
    overrides = parse_answer_override_options(["get_weather=5"], ["1=cold"])
    fork = Fork("b", "a", 3, "because", shared=9, path="$.x", overrides=overrides)
    with opened(path) as store:
        before = list(store.iter_interactions("a"))
        bodies = store.conn.execute("SELECT count(*) FROM bodies").fetchone()
        copies = [CopiedRecording(1, 1), CopiedRecording(2, 1), CopiedRecording(1, 2)]
        store_fork_with_copies(store, fork, copies, NOW + 9)
        first, second, again = store.iter_interactions("b")
        assert (first.response, second.response, again.response) == (
            *(one.response for one in before[:2]),
            first.response,
        )
        assert (second.key, second.request, second.made_ids) == (before[1].key, before[1].request, ("resp_2",))
        # As they lay to each other, the last one's end now; what was served again follows.
        assert second.started_at - first.started_at == 1
        assert first.started_at < second.started_at < again.started_at < NOW + 9
        assert store.find_id_origin("b", 1, "resp_2") is not None
        assert list(store.iter_interactions("a")) == before
        assert store.conn.execute("SELECT count(*) FROM bodies").fetchone() == bodies
    with opened(path, writable=False) as store:
        found = known(find_fork(store, "b", 1))
        assert (found.parent, found.step, found.shared, found.path, found.overrides) == ("a", 3, 3, "$.x", overrides)
        assert found.describe_origin() == "fork of a at request 3: because (first at $.x)"
        assert list_all_forks_in_store(store) == [found]
        assert found.to_json()["overrides"]["tools"][0]["tool"] == "get_weather"
        assert find_fork(store, "a", 1) is None


def test_what_a_file_says_of_a_fork_comes_back() -> None:
    """Everything, and no more than there is to say."""
    plain = Fork("b", "a", 3, "because")
    assert plain.to_member() == {"parent": "a", "step": 3, "why": "because"}
    whole = Fork(
        "b", "a", 3, "because", 1, 2, 9, "$.x", parse_answer_override_options(["t#2=5", "u={}"], ["1=cold"]), NOW + 0.25
    )
    for fork in (plain, whole, replace(plain, live="http, mcp")):
        assert parse_fork_in_cassette_file("b", fork.to_member()) == fork


@pytest.mark.parametrize(("wrong", "said"), [
    ([], "`fork` is [], not a mapping"),
    ({"parent": "a", "step": 1, "why": "x", "when": 2}, "no member 'when'"),
    ({"parent": "a", "why": "x"}, "says no `step`"),
    ({"parent": "a", "step": "1", "why": "x"}, "`step` of `fork` cannot be '1'"),
    ({"parent": "a", "step": True, "why": "x"}, "`step` of `fork` cannot be True"),
    ({"parent": "a", "step": 0, "why": "x"}, "`step` of `fork` cannot be 0"),
    ({"parent": "a", "step": 10**30, "why": "x"}, "`step` of `fork` cannot be 1000"),
    ({"parent": "a", "step": 1, "why": "x", "created_at": math.nan}, "`created_at` of `fork` cannot be nan"),
    ({"parent": "a", "step": 1, "why": "x", "created_at": math.inf}, "`created_at` of `fork` cannot be inf"),
    ({"parent": "a", "step": 1, "why": "x", "overrides": {"tool": []}}, "`fork`: overrides: there is no"),
])  # fmt: skip
def test_what_a_file_cannot_mean_of_a_fork_is_said(wrong: object, said: str) -> None:
    """An override that silently does nothing is worse than none."""
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_fork_in_cassette_file("b", wrong)


def test_names_are_found_and_never_given_twice(path: Path) -> None:
    """The first free number; what is there, being recorded, or meant by another session of ours is not free."""
    with opened(path) as store, opened(path) as other:
        assert lease_cassette_name(store, "a", None, ME) == "a@fork-1"
        assert lease_cassette_name(other, "a", None, ME, taken=["a@fork-1"]) == "a@fork-2"
        assert lease_cassette_name(store, "a", "mine", ME) == "mine"
        with pytest.raises(CassetteNameTaken, match="'a' already"):
            lease_cassette_name(store, "a", "a", ME)
        with pytest.raises(CassetteNameTaken):
            lease_cassette_name(store, "a", "mine", ME, taken=["mine"])
        fill(path, chat("x", cassette="a@fork-3"))
        assert lease_cassette_name(store, "a", None, ME, taken=["a@fork-1", "a@fork-2"]) == "a@fork-4"


def test_somebody_elses_lease_is_stepped_over(path: Path) -> None:
    """Two runs at once: the other one's name is passed by; a name that was typed is refused."""
    with opened(path) as store:
        with store.sqlite_transaction() as conn:
            conn.execute("INSERT INTO cassettes (name, sample, created_at, holder, pid, host, heartbeat)"
                         " VALUES ('a@fork-1', 1, 0, 'other', 1, 'elsewhere', ?)", (NOW + 9,))  # fmt: skip
        assert lease_cassette_name(store, "a", None, ME) == "a@fork-2"
        with pytest.raises(CassetteBusy):
            lease_cassette_name(store, "a", "a@fork-1", ME)


def test_a_child_is_made_by_hand(path: Path) -> None:
    """Of the first so many interactions, or of all; a child's child keeps the overrides that it needs."""
    with opened(path) as store:
        made = fork_cassette(store, ("a", 1), 2, None, ME, NOW)
        assert (made.cassette, made.shared, made.step) == ("a@fork-1", 2, 3)
        child, parent = ([one.response.body for one in store.iter_interactions(name)] for name in ("a@fork-1", "a"))
        assert child == parent[:2]
        store_fork_with_copies(
            store,
            Fork("b", "a", 1, "x", overrides=parse_answer_override_options(["t=1"], [])),
            [CopiedRecording(1, 1)],
            NOW,
        )
        again = fork_cassette(store, ("b", 1), None, "c", ME, NOW)
        assert (again.shared, again.overrides.tools[0].tool) == (1, "t")
        assert store.last_session_ended_cleanly("c", 1)


@pytest.mark.parametrize(("parent", "at"), [(("a", 1), 0), (("a", 1), 4), (("a", 2), None), (("nobody", 1), None)])
def test_what_is_not_there_cannot_be_forked(path: Path, parent: tuple[str, int], at: int | None) -> None:
    with opened(path) as store, pytest.raises(CassetteNotFound, match="recorded"):
        fork_cassette(store, parent, at, None, ME, NOW)


def test_a_store_of_an_older_version_has_no_forks(path: Path) -> None:
    """It is read as it is; the table comes with the first write."""
    with sqlite3.connect(path) as conn:
        conn.execute("DROP TABLE forks")
        conn.execute("DELETE FROM _sqlite_migrations WHERE name IN ('m002_forks', 'm006_live')")
    conn.close()
    with opened(path, writable=False) as store:
        assert list_all_forks_in_store(store) == []
        assert find_fork(store, "a", 1) is None
    with opened(path) as store:
        assert fork_cassette(store, ("a", 1), None, None, ME, NOW).shared == 3
