"""``llmproxy scan``, on real stores and files that an older version could have written."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.core.store.file.store import FileStore
from llmproxy.core.traffic.interaction import Chunk, Interaction
from tests.support.chats import chat, fill, run

GITHUB = "ghp_aB3dE5fG7hJ9kL1mN0pQ2rS4tU6vW8xYz1Q9"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI5OTkifQ.abcdefGHIJ0123456789klmnopQRSTUVWXYZ42"


def leaky(text: str, answer: str, **more: str) -> Interaction:
    """Return an interaction as it would be stored without redaction."""
    made = chat(**more)
    body = made.request.body.replace(b"}", f', "note": {json.dumps(text)}}}'.encode(), 1)
    request = dataclasses.replace(made.request, body=body)
    response = dataclasses.replace(made.response, chunks=(*made.response.chunks, Chunk(9, answer.encode())))
    return dataclasses.replace(made, request=request, response=response)


def test_a_clean_store_is_said_to_be_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 0."""
    fill(tmp_path / "x.db", chat())
    assert run(capsys, tmp_path / "x.db", "scan") == (0, f"No secrets in {tmp_path / 'x.db'}.\n")


def test_secrets_are_named_by_place_and_kind_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In requests and answers of a store; followed as printed, the advice takes them out."""
    path = tmp_path / "x.db"
    fill(path, leaky(f"use {GITHUB}", f" {JWT} "), chat("other"))
    code, out = run(capsys, path, "scan")
    assert code == 1
    assert "interaction 1 of cassette default, request body: github" in out
    assert "interaction 1 of cassette default, answer body: jwt" in out
    assert GITHUB not in out
    assert JWT not in out
    assert "interaction 2" not in out
    assert f"llmproxy export clean --all --store {path}" in out
    clean, folder = tmp_path / "clean.db", tmp_path / "clean"
    assert run(capsys, path, "export", str(folder), "--all")[0] == 0
    assert run(capsys, clean, "import", *map(str, sorted(folder.iterdir())))[0] == 0
    assert run(capsys, clean, "scan")[0] == 0
    with FileStore.open(clean, writable=False, now=lambda: 0.0) as store:
        assert len(store.list_summaries()) == 2


def test_files_and_folders_are_looked_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the lines on which secrets stand; what cannot be read is an error, not clean."""
    (tmp_path / "cassettes").mkdir()
    (tmp_path / "cassettes" / "a.yaml").write_text(f"a: 1\nb: {GITHUB}\nc: {GITHUB}\n")
    (tmp_path / "cassettes" / "b.html").write_text("<p>nothing</p>")
    code, out = run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))
    assert code == 1
    assert f"{tmp_path / 'cassettes' / 'a.yaml'}: line 2, 3: github" in out
    (tmp_path / "cassettes" / "a.yaml").unlink()
    assert run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))[0] == 0
    (tmp_path / "cassettes" / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    assert run(capsys, tmp_path / "none.db", "scan", str(tmp_path / "cassettes"))[0] == 3


def test_whom_git_names_is_shown_and_is_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a store, and in the cassette for a pull request, where nobody but git's lines names who recorded."""
    path, file = tmp_path / "x.db", tmp_path / "fix.yaml"
    log = "commit 1a2b3c4\nAuthor: Ann Smith <ann@example.com>\nDate: today\n\n    Commit: soon\n"
    fill(path, leaky(log, "\nGit user: Kim Lee\n"), chat("other"))
    code, out = run(capsys, path, "scan")
    assert code == 0
    where = f"{path}: interaction 1 of cassette default: git names"
    assert out.splitlines() == [
        f"{where} Ann Smith <ann@example.com>", f"{where} Kim Lee", f"No secrets in {path}; git names 2 people there.",
    ]  # fmt: skip
    assert run(capsys, path, "export", "--cassette", "default", "--format", "review", str(file))[0] == 0
    code, out = run(capsys, path, "scan", str(file))
    assert code == 0
    numbers = [n for n, line in enumerate(file.read_text().splitlines(), 1) if "Ann Smith" in line]
    assert f"{file}: line {', '.join(map(str, numbers))}: git names Ann Smith <ann@example.com>" in out


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device without an end here")
def test_what_has_no_end_is_an_error(tmp_path: Path) -> None:
    """Not clean, and not read until memory is full."""
    (tmp_path / "zero").symlink_to("/dev/zero")
    command = [sys.executable, "-m", "llmproxy", "scan", str(tmp_path / "zero")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert "zero: it has over 268,435,456 bytes, and no more are read" in ended.stderr
