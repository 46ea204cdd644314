"""A folder with another path for one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.client.process.mounted import check_mount, main, mounted_command
from llmproxy.errors import SettingsError


@pytest.mark.parametrize("path", ["/", "relative/path"])
def test_a_path_that_cannot_be_mounted_at_is_a_misuse(path: str) -> None:
    """Before anything is tried."""
    with pytest.raises(SettingsError, match="must be an absolute path"):
        check_mount(Path(path))


def test_a_folder_that_cannot_be_made_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason and the path, and a code that is not the command's."""
    assert main(["/proc/no-such-place/x", "true"]) == 125
    assert "/proc/no-such-place" in capsys.readouterr().err


def test_the_command_stays_as_it_is() -> None:
    """Words are handed on, not quoted again."""
    assert mounted_command(Path("/wk"), ["sh", "-c", "a 'b'"])[-4:] == ("/wk", "sh", "-c", "a 'b'")
