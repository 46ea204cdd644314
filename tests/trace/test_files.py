"""Trace files on disk: read whole or not at all, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.errors import CassetteCorrupt, CassetteNotFound, MachineError
from llmproxy.file_io import replace_file
from llmproxy.trace import Cassette, replay
from tests.trace.runs import weather


@pytest.mark.parametrize(("data", "errors", "words"), [
    pytest.param(None, (CassetteNotFound, FileNotFoundError), r"x.json.*\n.*export", id="missing: the file and a command"),
    pytest.param(b"", (CassetteCorrupt, json.JSONDecodeError), "x.json.*the file is empty", id="empty"),
    pytest.param(b" \n", (CassetteCorrupt,), "the file is empty", id="white space"),
    pytest.param(b'{"spans": [', (CassetteCorrupt, json.JSONDecodeError), r"x\.json", id="cut off"),
    pytest.param(b"[]", (CassetteCorrupt, AttributeError), r"x\.json", id="a list"),
    pytest.param(b'{"spans": [{"id": "1", "kind": "dream", "timestamp": 1}]}', (CassetteCorrupt, ValueError), r"x\.json", id="no kind"),
    pytest.param(b'{"spans": [{"id": "1", "kind": "tool_call"}]}', (CassetteCorrupt, KeyError), r"x\.json", id="no time"),
    pytest.param(b"\xff\xfe{", (CassetteCorrupt,), "not UTF-8", id="binary"),
    pytest.param(b"[" * 100_000, (CassetteCorrupt,), "nested|cut off", id="endlessly deep"),
    pytest.param("folder", (MachineError,), "cannot be read", id="a folder is the machine's business"),
])  # fmt: skip
def test_what_is_no_trace_is_an_error(
    tmp_path: Path, data: bytes | str | None, errors: tuple[type[Exception], ...], words: str
) -> None:
    """With the file's name; what the original raises can be caught, and so can what llmproxy raises, in replay too."""
    path = tmp_path / "x.json"
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif data:
        path.mkdir()
    for error in errors:
        with pytest.raises(error, match=words):
            Cassette.load(path)
        with pytest.raises(error, match=words):
            replay(path)


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = weather().save(tmp_path / "x.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Cassette.load(path) == weather()


def test_writing_under_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        weather().save(tmp_path / "file" / "x.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")

    def breaks() -> None:
        with replace_file(path) as file:
            file.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x.json", "old")]


def test_permissions_stay(tmp_path: Path) -> None:
    """A file that was private stays private; a new one can be read."""
    path = weather().save(tmp_path / "x.json")
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    weather().save(path)
    assert path.stat().st_mode & 0o777 == 0o600
