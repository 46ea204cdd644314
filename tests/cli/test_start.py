"""``llmproxy start`` up to the moment when the proxy takes over."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.cli.start import proxy_module
from llmproxy.settings import options


def test_the_help_has_a_flag_and_a_variable_for_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are derived, so none can be forgotten."""
    assert main(["start", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())
    for option in options():
        assert option.flag in text
        assert not option.has_flag or option.env in text


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--mode", "reply"], ["did you mean 'replay'", "flag --mode"]),
        (["--speed=-1"], ["'-1' is not a speed"]),
        (["--upstream", "x"], ["NAME=URL"]),
        (["--mod", "auto"], ["Did you mean '--mode'"]),
        (["--quiet", "--verbose"], ["exclude each other"]),
    ],
)
def test_a_misuse_ends_with_2_and_a_suggestion(
    typed: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started on a guess."""
    assert main(["start", *typed]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert gc.isenabled()  # it rests while a proxy starts, and no longer


def test_a_bug_in_our_own_module_is_not_taken_for_a_missing_extra() -> None:
    """Only the extra's packages are explained away."""
    with pytest.raises(ModuleNotFoundError, match="nothing_of_ours"):
        proxy_module("llmproxy.nothing_of_ours")


def test_without_the_extra_it_says_what_to_type(tmp_path: Path) -> None:
    """The base package is light; the proxy's own parts are one command away."""
    code = "import sys; sys.modules['mitmproxy'] = None\nfrom llmproxy.cli import main\nsys.exit(main(['start']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert "needs mitmproxy" in done.stderr
    assert "'llmproxy-replay[proxy]" in done.stderr
    assert "Traceback" not in done.stderr
