"""Trace files on disk: read whole or not at all, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import CassetteCorrupt, CassetteNotFound, MachineError
from llmproxy.files import replace_file
from llmproxy.trace import Cassette
from tests.trace.runs import weather


def test_missing_names_the_file_and_a_command(tmp_path: Path) -> None:
    """FileNotFoundError, and what to type."""
    with pytest.raises(CassetteNotFound, match=r"none.json.*\n.*export"):
        Cassette.load(tmp_path / "none.json")


@pytest.mark.parametrize(("data", "words"), [
    (b"", "the file is empty"), (b" \n", "the file is empty"), (b"\xff\xfe{", "not UTF-8"),
    (b"[" * 100_000, "nested|cut off"),
])  # fmt: skip
def test_what_is_no_json(tmp_path: Path, data: bytes, words: str) -> None:
    """Empty, binary, endlessly deep."""
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(CassetteCorrupt, match=words):
        Cassette.load(path)


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = weather().save(tmp_path / "x.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Cassette.load(path) == weather()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """That is the machine's business."""
    with pytest.raises(MachineError, match="cannot be read"):
        Cassette.load(tmp_path)


def test_writing_under_a_file_says_so(tmp_path: Path) -> None:
    """A folder that cannot be made."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        weather().save(tmp_path / "file" / "x.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """And nothing beside it."""
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
