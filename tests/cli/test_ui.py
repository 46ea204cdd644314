"""`llmproxy ui`: what it looks at, and what it says where there is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli.ui import asker, meant
from llmproxy.core.cassettes.adopt import release_all
from llmproxy.core.cassettes.formats.vcr_yaml import write
from tests.support.chats import chat, fill, run
from tests.ui import samples


def test_a_store_a_cassette_and_a_file_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is there: a database, a file of recordings, else a name in the store."""
    store = samples.store(tmp_path / "x.db")
    file = tmp_path / "weather.yaml"
    write(file, release_all([chat()]), "weather", force=False)
    with meant(str(store), None) as (path, start):
        assert (path, start) == (store, {"store": str(store)})
    with meant("hostile", store) as (path, start):
        assert start["start"] == "#/c/hostile"
    with meant(str(file), None) as (path, start):
        assert start == {"store": "weather.yaml"}
        assert [each["name"] for each in asker(path)("cassettes", {})["cassettes"]] == ["weather"]
    assert not path.exists()


def test_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what there is; nothing is served, nothing is made."""
    path = tmp_path / "x.db"
    code, said = run(capsys, path, "ui")
    assert code == 3
    assert "x.db" in said
    fill(path, chat())
    code, said = run(capsys, path, "ui", "weather")
    assert code == 3
    assert "there is no file and no cassette weather" in said
    assert "default" in said
    assert [each.name for each in tmp_path.iterdir()] == ["x.db"]
