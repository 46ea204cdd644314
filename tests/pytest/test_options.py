"""Options of the plugin: added, given up where somebody else has them. What they do is tested in real pytest processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.client.child_env import in_ci
from tests.support import pytest_run
from tests.support.pytest_run import run, write


@pytest.mark.parametrize(("value", "is_ci"), [("true", True), ("1", True), ("", False), ("0", False), ("False", False)])
def test_ci_says_so_in_the_environment(value: str, is_ci: bool) -> None:
    """As GitHub, GitLab and the others set it; switched off by what people write to switch it off."""
    assert in_ci({"CI": value}) is is_ci


def test_the_original_beside_us_keeps_its_option(tmp_path: Path) -> None:
    """Its plugin would fail at start if we had added --scenario-debug first."""
    (tmp_path / "scenario").mkdir()
    original = "def pytest_addoption(parser):\n    parser.addoption('--scenario-debug', action='store_true')\n"
    write(tmp_path / "scenario", __init__="", pytest_plugin=original)
    test = "def test_it(pytestconfig):\n    assert pytestconfig.getoption('--scenario-debug') is False\n"
    write(tmp_path, test_it=test)
    paths = f"{Path(__file__).parents[2]}:{tmp_path}"
    run(tmp_path, "-p", "scenario.pytest_plugin", PYTHONPATH=paths).assert_outcomes(passed=1)


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
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


pytest_plugins = ["pytester"]

TESTS = """
import pytest
import llmproxy.scenario as scenario

class Echo(scenario.AgentAdapter):
    async def call(self, input):
        return "ok"

@pytest.mark.agent_test
@pytest.mark.parametrize("n", range(6))
async def test_it(n):
    done = await scenario.run(name=f"n{n}", description="d", agents=[Echo()], script=[scenario.user("hi"), scenario.agent(), scenario.succeed()])
    assert done.success

def test_plain():
    pass
"""


def test_parts_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With xdist as without; every test in one part, what -k chose before; put together they are in the order of the whole."""
    pytest_run.write(tmp_path, test_x=TESTS)
    chosen = ("-k", "not plain")
    whole = pytest_run.run(tmp_path, *chosen, "--scenario-report", f"json={tmp_path / 'whole.json'}")
    assert whole.ret == 0, whole.outlines
    names: list[str] = []
    for n, words in ((1, ()), (2, ("-n", "1"))):
        report = tmp_path / f"{n}.json"
        part = ("--llmproxy-shard", f"{n}/2", "--scenario-report", f"json={report}")
        done = pytest_run.run(tmp_path, *chosen, *words, *part)
        assert done.ret == 0, done.outlines
        names += [each["id"] for each in json.loads(report.read_text())["scenarios"]]
    assert sorted(names) == [f"n{n}" for n in range(6)]
    files = [str(tmp_path / name) for name in ("2.json", "1.json")]
    assert main(["merge", *files, "--report", f"json={tmp_path / 'all.json'}"]) == 0
    made, known = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("all", "whole"))
    for key in ("title", "exit_code", "notes", "summary"):
        assert made[key] == known[key], key
    assert [each["id"] for each in made["scenarios"]] == [each["id"] for each in known["scenarios"]]
    assert list(made["times"]) == list(known["times"])
    assert main(["merge", files[0], "--report", f"json={tmp_path / 'all.json'}"]) == 3
    assert "part 1/2 is missing: nothing is known of test_x.py::test_it[0]" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (("--llmproxy-shard", "0/3"), "--llmproxy-shard is '0/3': there is no part 0 of 3"),
    (("--llmproxy-shard", "3"), "--llmproxy-shard is '3'"),
    (("--llmproxy-shard-times", "a.json"), "it goes with --llmproxy-shard 1/10"),
    (("--llmproxy-shard", "1/3", "--llmproxy-shard-times", "a.json"), "a.json cannot be read"),
])  # fmt: skip
def test_what_is_no_part_ends_before_a_test(
    words: tuple[str, ...], said: str, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile("def test_x(): pass")
    assert pytester.runpytest_inprocess(*pytest_run.PLUGIN, *words).ret == pytest.ExitCode.USAGE_ERROR
    assert said in capsys.readouterr().err


def test_a_part_without_a_test_is_no_failure(pytester: pytest.Pytester) -> None:
    """Where another part has them; where nothing was selected at all it stays one."""
    pytester.makepyfile("def test_x(): pass")
    done = pytester.runpytest_inprocess(*pytest_run.PLUGIN, "--llmproxy-shard", "2/2")
    done.assert_outcomes(deselected=1)
    assert done.ret == 0
    assert pytester.runpytest_inprocess(*pytest_run.PLUGIN, "--llmproxy-shard", "2/2", "-k", "none").ret == 5
