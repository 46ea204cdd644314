"""What a suite runs around its scenarios."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llmproxy.errors import LLMProxyError, MachineError, SuiteError
from llmproxy.suite.run.case_resources import run_hook
from llmproxy.suite.schema.suite import SuiteHook

MODULE = """
from pathlib import Path
def note(env):
    Path("noted").write_text(env["A"])
async def later():
    Path("later").write_text("x")
def fail():
    raise KeyError("oops")
text = "no function"
"""


def run(folder: Path, **hook: object) -> None:
    asyncio.run(run_hook(SuiteHook.model_validate(hook), folder, {"A": "b c"}, "beforeEach"))


def test_commands_run_in_the_folder_with_the_environment(tmp_path: Path) -> None:
    run(tmp_path, command=["sh", "-c", 'printf "%s" "$A" > out'])
    assert (tmp_path / "out").read_text() == "b c"
    run(tmp_path, command="cp out copy")
    assert (tmp_path / "copy").is_file()


def test_functions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the environment if they take it; async ones too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_hooks.py").write_text(MODULE)
    run(tmp_path, python="own_hooks.py:note")
    run(tmp_path, python="own_hooks.py:later")
    assert ((tmp_path / "noted").read_text(), (tmp_path / "later").is_file()) == ("b c", True)


@pytest.mark.parametrize(("hook", "message"), [
    ({"command": "false"}, "ended with 1"),
    ({"command": ["sh", "-c", "echo why >&2; exit 3"]}, "ended with 3:\nwhy"),
    ({"command": "no-such-program-here"}, "cannot be executed"),
    ({"command": "echo 'x"}, "No closing quotation"),
    ({"command": ["echo", "a\0b"]}, "null byte"),
    ({"python": "own_hooks.py:fail"}, "KeyError"),
    ({"python": "own_hooks.py:text"}, "no function"),
    ({"python": "own_hooks.py:nothing"}, "nothing"),
])  # fmt: skip
def test_a_hook_that_fails_says_why(tmp_path: Path, hook: dict[str, object], message: str) -> None:
    (tmp_path / "own_hooks.py").write_text(MODULE)
    with pytest.raises(LLMProxyError, match=message) as caught:
        run(tmp_path, **hook)
    assert isinstance(caught.value, MachineError | SuiteError)


def test_a_hook_that_hangs_is_ended(tmp_path: Path) -> None:
    since = time.monotonic()
    with pytest.raises(MachineError, match=r"did not end within 0\.2 s"):
        run(tmp_path, command=["sh", "-c", "sleep 300 & sleep 300"], timeout=200)
    assert time.monotonic() - since < 200
