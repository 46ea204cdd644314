"""``llmproxy push`` and ``pull``, and the other commands over a server's store, on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.store.file.store import FileStore
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
    """Whole, once however often it is pushed, under another name if asked; the help names the kind of server."""
    assert "postgresql://USER@HOST/DATABASE" in said(capsys, "push", "--help")[1]
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "push", "default")
    assert (code, "there already, the same 1 interaction" in out) == (0, True)
    code, out = said(capsys, "pull", "default", "--file", "copy.db", "--as", "mine")
    assert code == 0, out
    with (
        FileStore.open(folder / "llmproxy.db", writable=False, now=lambda: NOW) as one,
        FileStore.open(folder / "copy.db", writable=False, now=lambda: NOW) as other,
    ):
        before, after = next(one.iter_interactions("default")), next(other.iter_interactions("mine"))
        assert (before.request, before.response, before.key) == (after.request, after.response, after.key)
        assert other.last_session_ended_cleanly("mine", 1) == one.last_session_ended_cleanly("default", 1)


def test_what_differs_is_said_and_replaced_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    """As at a file; what only a file has says how it can be done all the same."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "ls")
    assert (code, "other" in out, "default" in out) == (0, True, True)
    assert said(capsys, "show", "1")[0] == 0
    code, out = said(capsys, "verify")
    assert (code, "nothing is wrong" in out) == (0, True), out
    assert said(capsys, "export", "x.yaml", "--cassette", "other")[0] == 0
    code, out = said(capsys, "import", "x.yaml", "--cassette", "third")
    assert (code, "in postgresql://" in out) == (0, True), out
    code, out = said(capsys, "fork", "other")
    assert (code, "llmproxy pull NAME" in out) == (3, True), out
    code, out = said(capsys, "merge", "llmproxy.db", "--store", team_url)
    assert (code, "llmproxy push NAME" in out) == (2, True), out


def test_recordings_of_the_server_are_changed(folder: Path, capsys: pytest.CaptureFixture[str], team_url: str) -> None:
    """By the words that change them in a file."""
    assert said(capsys, "push", "default", "other")[0] == 0
    code, out = said(capsys, "rename", "other", "renamed")
    assert (code, out) == (0, "other is now renamed.\n")
    code, out = said(capsys, "rm", "renamed", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "Deleted 1 interaction.")
    assert f"of {team_url}" in out
    code, out = said(capsys, "ls")
    assert ("renamed" in out, "default" in out) == (False, True)
    fill(folder / "llmproxy.db", chat("One more?", "Yes."))
    assert said(capsys, "push", "default", "--replace")[0] == 0
    code, out = said(capsys, "prune", "--yes")
    assert (code, "1 interaction of cassette default: 0 live, 1 replaced" in out) == (0, True), out
    code, out = said(capsys, "prune")
    assert (code, out) == (0, f"There is nothing to delete in {team_url}.\n")


def test_keys_of_the_server_are_brought_up_to_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the rules of what is equal have changed."""
    assert said(capsys, "push", "default", "other")[0] == 0
    (folder / "pyproject.toml").write_text('[tool.llmproxy.normalize]\nignore = ["$.user"]\n')
    code, out = said(capsys, "verify", "--rekey")
    assert (code, "nothing is wrong" in out) == (0, True), out
    code, out = said(capsys, "verify")
    assert (code, "rules" in out) == (0, False), out


def test_a_file_is_no_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a cassette that is not there is said by name."""
    assert said(capsys, "push", "default", "--store", "x.db")[0] == 2
    code, out = said(capsys, "push", "nosuch")
    assert (code, "nosuch" in out) == (3, True)
    assert said(capsys, "push", "default", "other", "--as", "one")[0] == 2
