"""Options of the plugin: added, given up where somebody else has them. What they do is tested in real pytest processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.pytest.options import in_ci
from tests.support.pytest_run import run, write


@pytest.mark.parametrize(("value", "is_ci"), [("true", True), ("1", True), ("", False), ("0", False), ("False", False)])
def test_ci_says_so_in_the_environment(value: str, is_ci: bool) -> None:
    """As GitHub, GitLab and the others set it; switched off by what people write to switch it off."""
    assert in_ci({"CI": value}) is is_ci


def test_the_original_beside_us_keeps_its_option(tmp_path: Path) -> None:
    """Its plugin would fail at start if we had added --scenario-debug first."""
    (tmp_path / "scenario").mkdir()
    write(
        tmp_path / "scenario",
        __init__="",
        pytest_plugin="def pytest_addoption(parser):\n    parser.addoption('--scenario-debug', action='store_true')\n",
    )
    write(
        tmp_path, test_it="def test_it(pytestconfig):\n    assert pytestconfig.getoption('--scenario-debug') is False\n"
    )
    paths = f"{Path(__file__).parents[2]}:{tmp_path}"
    run(tmp_path, "-p", "scenario.pytest_plugin", PYTHONPATH=paths).assert_outcomes(passed=1)


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    """Not after an hour of tests."""
    write(tmp_path, test_it="def test_it(): ...\n")
    for asked, said in (("pdf=x", "there is no 'pdf'"), ("json=test_it.py/x", "cannot write there")):
        result = run(tmp_path, "--scenario-report", asked)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in result.stderr.str()


def test_a_mode_that_no_test_uses_is_said(tmp_path: Path) -> None:
    """Whoever types replay takes what runs for offline; a setting in a file is for other tests of the folder."""
    write(tmp_path, test_it="def test_it(): ...\n", test_other="def test_other(llmproxy): ...\n")
    said = "--llmproxy-mode replay: none of these tests uses the fixture `llmproxy` or has the marker `agent_test`"
    assert said in run(tmp_path, "test_it.py", "--llmproxy-mode", "replay").stdout.str()
    assert said not in run(tmp_path, "--collect-only", "--llmproxy-mode", "replay").stdout.str()
    (tmp_path / "pytest.ini").write_text("[pytest]\nllmproxy_mode = replay\n")
    assert "none of these tests" not in run(tmp_path, "test_it.py").stdout.str()
