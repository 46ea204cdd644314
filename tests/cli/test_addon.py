"""``llmproxy addon``."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli import main


def test_the_path_of_the_shipped_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be handed to mitmdump as it is."""
    assert main(["addon"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
