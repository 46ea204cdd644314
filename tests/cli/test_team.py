"""``llmproxy push`` and ``pull``, and the other commands over a server's store, on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.store.store import Store
from tests.support.chats import NOW, chat, fill


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, team_url: str) -> Path:
    """A folder with a store in a file, where LLMPROXY_STORE names a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMPROXY_STORE", team_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fill(tmp_path / "llmproxy.db", chat(), chat("And now?", "Still fine.", cassette="other"))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Type a command; returns its exit code and all that it said."""
    code = main(list(words))
    found = capsys.readouterr()
    return code, found.out + found.err


def test_a_cassette_goes_to_the_server_and_comes_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, once however often it is pushed, under another name if asked."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "push", "default")
    assert (code, "there already, the same 1 interaction" in out) == (0, True)
    code, out = said(capsys, "pull", "default", "--file", "copy.db", "--as", "mine")
    assert code == 0, out
    with (
        Store.open(folder / "llmproxy.db", writable=False, now=lambda: NOW) as one,
        Store.open(folder / "copy.db", writable=False, now=lambda: NOW) as other,
    ):
        before, after = next(one.interactions("default")), next(other.interactions("mine"))
        assert (before.request, before.response, before.key) == (after.request, after.response, after.key)
        assert other.closed_cleanly("mine", 1) == one.closed_cleanly("default", 1)


def test_what_differs_is_said_and_replaced_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither side wins silently."""
    assert said(capsys, "push", "default")[0] == 0
    fill(folder / "llmproxy.db", chat("One more?", "Yes."))
    code, out = said(capsys, "push", "default")
    assert (code, "1 of 2 recordings are new" in out, "--replace" in out) == (2, True, True)
    code, out = said(capsys, "push", "default", "--replace")
    assert (code, "1 that it had there are replaced" in out) == (0, True)
    code, out = said(capsys, "ls")
    assert "Yes." in out
    assert said(capsys, "push", "default")[1].count("there already") == 1


def test_commands_look_at_the_server(folder: Path, capsys: pytest.CaptureFixture[str], team_url: str) -> None:
    """As at a file; what changes recordings says that it cannot, and how it can be done."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "ls")
    assert (code, "other" in out, "default" in out) == (0, True, True)
    assert said(capsys, "show", "1")[0] == 0
    code, out = said(capsys, "verify")
    assert (code, "nothing is wrong" in out) == (0, True), out
    assert said(capsys, "export", "x.yaml", "--cassette", "other")[0] == 0
    code, out = said(capsys, "rm", "other", "--yes")
    assert (code, "llmproxy pull" in out) == (3, True), out
    assert said(capsys, "rm", "other", "--yes", "--store", "llmproxy.db")[0] == 0


def test_a_file_is_no_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a cassette that is not there is said by name."""
    assert said(capsys, "push", "default", "--store", "x.db")[0] == 2
    code, out = said(capsys, "push", "nosuch")
    assert (code, "nosuch" in out) == (3, True)
    assert said(capsys, "push", "default", "other", "--as", "one")[0] == 2
