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
