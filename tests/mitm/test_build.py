"""One engine out of the settings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmproxy.calls import Call
from llmproxy.core.sessions.exchange import Config
from llmproxy.errors import CassetteCorrupt, CassetteNotFound
from llmproxy.mitm.build import build, check_store, config_of, from_files
from llmproxy.protocol import Exhausted, Mode
from llmproxy.settings import load


def ignore(_outcome: Call) -> None:
    """Hear nothing."""


def test_every_setting_reaches_the_engine(tmp_path: Path) -> None:
    """What is set is what counts."""
    flags = {
        "mode": "auto", "cassette": "c", "speed": "2", "exhausted": "miss", "miss_status": "503", "max_request": "1234",
        "store": str(tmp_path / "s.db"), "upstream": ["x=http://127.0.0.1:1/v1"],
    }  # fmt: skip
    config = config_of(load(flags, {}, tmp_path).settings)
    assert (config.mode, config.cassette, config.speed, config.exhausted) == (Mode.AUTO, "c", 2.0, Exhausted.MISS)
    assert (config.miss_status, config.max_request, config.store) == (503, 1234, tmp_path / "s.db")
    assert config.upstreams == {"x": "http://127.0.0.1:1/v1"}


def test_what_is_built_can_be_closed(tmp_path: Path) -> None:
    """A note for the user is there before the first request."""

    async def run() -> tuple[str, ...]:
        built = build(load({"store": str(tmp_path / "x.db")}, {}, tmp_path), ignore)
        await built.close()
        return built.notes

    assert "there is no store" in asyncio.run(run())[0]


def test_a_store_that_cannot_be_used_leaves_nothing_open(tmp_path: Path) -> None:
    """The error comes out, the journal is closed."""
    (tmp_path / "x.db").write_text("no store")
    with pytest.raises(CassetteCorrupt):
        build(load({"store": str(tmp_path / "x.db")}, {}, tmp_path), ignore)


def test_a_folder_of_cassettes_that_is_not_there_is_said(tmp_path: Path) -> None:
    """In replay a typo would only give misses with the wrong advice; a recording makes the folder."""
    missing = tmp_path / "nowhere"
    with pytest.raises(CassetteNotFound, match="nowhere"):
        from_files(Config(cassette_dir=missing, store=tmp_path / "x.db"))
    assert from_files(Config(mode=Mode.RECORD, cassette_dir=missing, store=tmp_path / "x.db")) == []
    assert from_files(Config(allow_live=True, cassette_dir=missing, store=tmp_path / "x.db")) == []


def test_nothing_is_written_beside_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    """A foreign file is refused before the journal is made; a missing folder is made for a recording."""
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    with pytest.raises(CassetteCorrupt):
        check_store(Config(store=foreign))
    assert list(tmp_path.iterdir()) == [foreign]
    check_store(Config(mode=Mode.RECORD, store=tmp_path / "new" / "x.db"))
    assert (tmp_path / "new").is_dir()
