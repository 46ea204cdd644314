"""``llmproxy cache``, on real cache files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.scenario.cache_store import CacheStore
from tests.support.chats import run_typed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a cache of three values, which the environment names."""
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(tmp_path))
    store, now = CacheStore(tmp_path / "cache.db"), 1_800_000_000.0
    store.put("call:a", '"Fine.\x1b[2J"', name="agent.ask", cache_key="v1", now=now)
    store.put("call:b", r'"\u4e2d"', name="agent.ask", cache_key="v2", sample=3, now=now)
    store.put("llm:c", "3", name="model call of judge", cache_key="v2", now=now)
    store.get("call:a")
    return tmp_path


def test_stats_say_how_much_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values, bytes and hits, by what made them."""
    code, out = run_typed(capsys, "cache", "stats")
    assert code == 0
    assert out.splitlines() == [
        f"{folder / 'cache.db'}: 3 values, 20 bytes, 1 hit",
        "       2  agent.ask",
        "       1  model call of judge",
    ]
    found = json.loads(run_typed(capsys, "cache", "stats", "--json")[1])
    assert (found["entries"], found["mode"]) == (3, "auto")


def test_list_shows_what_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name; values when they are asked for, with nothing in them that a terminal would obey."""
    code, out = run_typed(capsys, "cache", "list", "ask", "--values")
    assert code == 0
    assert "call:b" in out
    assert "2027-01-15 08:00" in out
    assert '"Fine.\\u001b[2J"' in out
    assert '"\N{CJK UNIFIED IDEOGRAPH-4E2D}"' in out
    assert "judge" not in out
    found = json.loads(run_typed(capsys, "cache", "list", "--json", "--values", "-n", "1")[1])
    assert [(each["key"], each["value"], each["sample"]) for each in found] == [("call:a", '"Fine.\x1b[2J"', 1)]
    assert run_typed(capsys, "cache", "list", "nothing") == (0, f"{folder / 'cache.db'}: nothing is kept of nothing.\n")


def test_clear_forgets_what_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, cache key, age; without any, all."""
    assert run_typed(capsys, "cache", "clear", "--older-than", "5000w")[1].endswith(": 0 values forgotten.\n")
    assert run_typed(capsys, "cache", "clear", "ask", "--cache-key", "v2")[1].endswith(": 1 value forgotten.\n")
    assert run_typed(capsys, "cache", "clear", "--cache-key", "v2")[1].endswith(": 1 value forgotten.\n")
    assert run_typed(capsys, "cache", "clear")[1].endswith(": 1 value forgotten.\n")
    code, out = run_typed(capsys, "cache", "clear", "--older-than", "soon")
    assert (code, "'soon' is no age" in out) == (2, True)


def test_a_cache_that_is_off_or_broken_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off: how to name one. Broken: an error, and the file as it was. Not there: nothing is kept."""
    (folder / "broken").mkdir()
    (folder / "broken" / "cache.db").write_bytes(b"no database at all, but long enough" * 40)
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(folder / "broken"))
    for command in ("stats", "list", "clear"):
        code, out = run_typed(capsys, "cache", command)
        assert (code, "is damaged" in out, "Traceback" in out) == (3, True, False)
    assert (folder / "broken" / "cache.db").read_bytes().startswith(b"no database")
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(folder / "new"))
    assert run_typed(capsys, "cache", "stats")[1].endswith("(not made yet): 0 values, 0 bytes, 0 hits\n")
    monkeypatch.setenv("SCENARIO_CACHE_MODE", "replay")
    assert "mode: replay" in run_typed(capsys, "cache", "stats")[1]
    monkeypatch.setenv("SCENARIO_CACHE_DIR", "")
    code, out = run_typed(capsys, "cache", "stats")
    assert (code, "switched off" in out) == (2, True)
