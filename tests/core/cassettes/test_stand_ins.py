"""Cassettes as files for pull requests: circumstances and slots are there to be seen, nobody's name is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.core.bindings import Circumstance, Slot, read_circumstances, write_circumstances
from llmproxy.core.cassettes.folder import CassetteDir
from llmproxy.core.cassettes.stand_ins import HOME, without_names
from llmproxy.core.keys.normalize import Rules
from llmproxy.core.store.store import Store
from llmproxy.core.store.varying import put_slots, slots_of
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_binding import _answer, _ask, _open, _request, _text
from tests.core.engine.test_engine import answered, engine

KIM = (
    Circumstance("cwd", "/home/kim.ono/code/app"),
    Circumstance("home", "/home/kim.ono"),
    Circumstance("tmp", "/tmp/pytest-of-kim.ono/pytest-1"),
    Circumstance("user", "kim.ono"),
    Circumstance("host", "kims-laptop"),
    Circumstance("date", "2026-11-22"),
)
CI = (
    Circumstance("cwd", "/builds/app"),
    Circumstance("home", "/root"),
    Circumstance("tmp", "/tmp/x"),
    Circumstance("user", "root"),
    Circumstance("host", "runner"),
    Circumstance("date", "2026-12-24"),
)


def _of(run: tuple[Circumstance, ...]) -> tuple[str, str, str]:
    named = {each.name: each.value for each in run}
    return named["cwd"], named["home"], named["tmp"]


def _body(run: tuple[Circumstance, ...]) -> bytes:
    cwd, home, tmp = _of(run)
    return _request(
        cwd, {each.name: each.value for each in run}["date"], question=f"see {home}/notes, {tmp}/y and ~/code"
    )


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path]:
    """Record a run of Kim's, and keep its file; return the store and the folder."""
    path, folder = tmp_path / "s.db", tmp_path / "cassettes"
    cwd, home, tmp = _of(KIM)
    with engine(path) as made:
        _open(made, KIM)
        answered(made, _ask(made, _body(KIM)), _answer(f"in {cwd}/x, {home}, {tmp}"))
    with Store.open(path, writable=True, now=lambda: 1.0) as store:
        put_slots(store, "default", [Slot("chunk", "hex", "exec", before="Chunk ID: ")])
        CassetteDir(folder, now=lambda: 1.0).save(store, "default")
    return path, folder


def test_a_file_names_nobody(recorded: tuple[Path, Path]) -> None:
    """Home, user, host, and folders that hold the user's name have stand-ins; slots and circumstances stand at the head."""
    text = (recorded[1] / "default.yaml").read_text()
    assert "kim" not in text.lower()
    head = text.partition("interactions:")[0]
    assert 'before: "Chunk ID: "' in head or "before: 'Chunk ID: '" in head
    for word in ("circumstances:", "run-1:", HOME, "2026-11-22", "chunk"):
        assert word in head, head


def test_a_file_is_replayed_elsewhere(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    """A colleague's fresh store has the circumstances and the slots from the file."""
    path = tmp_path / "theirs.db"
    with Store.open(path, writable=True, now=lambda: 2.0) as store:
        loaded = CassetteDir(recorded[1], now=lambda: 2.0).load_into(store, rules=Rules())
        assert loaded.imported == ("default",)
        assert slots_of(store, "default") == (Slot("chunk", "hex", "exec", before="Chunk ID: "),)
    with engine(path, Mode.REPLAY) as made:
        _open(made, CI)
        cwd, home, tmp = _of(CI)
        assert _text(made, _ask(made, _body(CI))) == f"in {cwd}/x, {home}, {tmp}"
    with engine(path, Mode.REPLAY) as made:
        _open(made, KIM)
        cwd, home, tmp = _of(KIM)
        assert _text(made, _ask(made, _body(KIM))) == f"in {cwd}/x, {home}, {tmp}"


def test_a_file_that_was_written_is_in_step_with_its_store(recorded: tuple[Path, Path]) -> None:
    """The store keeps what was recorded, byte for byte; nothing is brought in again."""
    path, folder = recorded
    with Store.open(path, writable=True, now=lambda: 2.0) as store:
        assert CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules()).imported == ()
    with engine(path, Mode.REPLAY) as made:
        _open(made, KIM)
        exchange = _ask(made, _body(KIM))
        assert exchange.decision is Decision.REPLAY
        assert made.outcome(exchange, 200).bound == ()


def test_an_edited_slot_of_a_file_counts(recorded: tuple[Path, Path]) -> None:
    """A reviewer takes one out; a slot that cannot be is an error, and nothing is changed."""
    path, folder = recorded
    file = folder / "default.yaml"
    text = file.read_text()
    file.write_text(text.replace("kind: hex", "kind: nonsense"))
    with Store.open(path, writable=True, now=lambda: 2.0) as store:
        with pytest.raises(CassetteCorrupt, match="nonsense"):
            CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules())
        assert slots_of(store, "default")
        file.write_text(text.replace("kind: hex", "kind: uuid"))
        assert CassetteDir(folder, now=lambda: 2.0).load_into(store, rules=Rules()).imported == ("default",)
        assert [slot.kind for slot in slots_of(store, "default")] == ["uuid"]


def test_circumstances_survive_the_store_and_its_text() -> None:
    """One text for the same ones; a recording without any stays the same object."""
    said = write_circumstances(reversed(KIM))
    assert said == write_circumstances(KIM)
    assert set(read_circumstances(said)) == set(KIM)
    assert json.loads(said)[0]["name"] == "cwd"


def test_what_names_nobody_stays(recorded: tuple[Path, Path]) -> None:
    """A run of root's in a folder of no one keeps its bytes; only user and host are left out."""
    path = recorded[0]
    with engine(path) as made:
        made.sessions.open("other", circumstances=CI)
        exchange = made.arrive("post", "/s/other/openai/v1/chat/completions", None, ())
        made.identify(exchange, _body(CI))
        answered(made, exchange, _answer("ok"))
    with Store.open(path, writable=False, now=lambda: 2.0) as store:
        (one,) = store.interactions("other")
        assert without_names(one).request == one.request
        assert {each.name for each in read_circumstances(without_names(one).circumstances)} == {
            "cwd",
            "home",
            "tmp",
            "date",
        }
