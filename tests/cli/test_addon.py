"""``llmproxy addon``."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["record_replay", "inject_faults"])
def test_the_path_of_the_shipped_script_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be handed to mitmdump as it is, and is the one that lies in addons/."""
    assert main(["addon", name]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == (ROOT / "addons" / f"{name}.py").read_bytes()
