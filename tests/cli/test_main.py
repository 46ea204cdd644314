"""The frame of the command: errors become a message and an exit code."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

import llmproxy
from llmproxy.cli import main


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llmproxy {llmproxy.__version__} (mitmproxy {version('mitmproxy')})\n"


def test_a_folder_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody removed it while a terminal stood in it."""
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["ls"]) == 3
    assert "the folder in which this was typed is not there any more" in capsys.readouterr().err
