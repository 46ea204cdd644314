"""`pytest --llmproxy-shard 3/10`: parts of a test run, the same in every process, whose reports are put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.cli import main
from tests.support import pytest_run

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
        done = pytest_run.run(
            tmp_path, *chosen, *words, "--llmproxy-shard", f"{n}/2", "--scenario-report", f"json={report}"
        )
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--llmproxy-shard", "0/3"), "--llmproxy-shard is '0/3': there is no part 0 of 3"),
        (("--llmproxy-shard", "3"), "--llmproxy-shard is '3'"),
        (("--llmproxy-shard-times", "a.json"), "it goes with --llmproxy-shard 1/10"),
        (("--llmproxy-shard", "1/3", "--llmproxy-shard-times", "a.json"), "a.json cannot be read"),
    ],
)
def test_what_is_no_part_ends_before_a_test(
    words: tuple[str, ...], said: str, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a mistake of usage."""
    pytester.makepyfile("def test_x(): pass")
    done = pytester.runpytest_inprocess(*pytest_run.PLUGIN, *words)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in capsys.readouterr().err


def test_a_part_without_a_test_is_no_failure(pytester: pytest.Pytester) -> None:
    """Where another part has them; where nothing was selected at all it stays one."""
    pytester.makepyfile("def test_x(): pass")
    done = pytester.runpytest_inprocess(*pytest_run.PLUGIN, "--llmproxy-shard", "2/2")
    done.assert_outcomes(deselected=1)
    assert done.ret == 0
    assert pytester.runpytest_inprocess(*pytest_run.PLUGIN, "--llmproxy-shard", "2/2", "-k", "none").ret == 5
