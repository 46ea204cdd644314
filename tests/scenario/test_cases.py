"""Cases from data in Python tests: pytest names, selects and reports each."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy import scenario
from llmproxy.scenario.values.rows import RowError

pytest_plugins = ("pytester",)


def test_a_case_is_a_mapping_with_a_name(tmp_path: Path) -> None:
    """Named by its id, by its short values, or by its number."""
    path = tmp_path / "cases.csv"
    path.write_text("id,city\nr,Rome\n")
    (case,) = scenario.cases(path)
    assert (case.id, case["city"], dict(case), case.fields) == ("r", "Rome", {"id": "r", "city": "Rome"}, dict(case))
    with pytest.raises(KeyError, match="there are id, city"):
        case["town"]
    path.write_text("city,n\nRome,1\nParis,2\n")
    assert [each.id for each in scenario.cases(path)] == ["Rome-1", "Paris-2"]
    path.write_text("city\nRome\nRome\n")
    assert [each.id for each in scenario.cases(path)] == ["1", "2"]
    with pytest.raises(RowError):
        scenario.cases(tmp_path / "none.csv")


def test_under_pytest_each_is_a_test(pytester: pytest.Pytester) -> None:
    """The file lies beside the test, `-k` chooses, and a failure names its case."""
    folder = pytester.mkdir("tests")
    (folder / "cities.csv").write_text("id,city\nrome,Rome\nparis,Paris\n")
    (folder / "test_it.py").write_text(
        "import pytest\nfrom llmproxy import scenario\n"
        "class Agent(scenario.AgentAdapter):\n    async def call(self, input):\n        return 'It rains in Rome'\n"
        "@pytest.mark.parametrize('case', scenario.cases('cities.csv'))\n"
        "def test_weather(case):\n"
        "    def check(state):\n        assert state.field('city') in state.last_agent_message()\n"
        "    script = [scenario.user(f\"Weather in {case['city']}?\"), scenario.agent(), check, scenario.succeed()]\n"
        "    scenario.run_sync(f'weather {case.id}', 'd', [Agent()], script=script, fields=case.fields, verbose=False)\n"
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED tests/test_it.py::test_weather[[]paris[]]*"])
    table = ["test_weather: 2 cases, 1 not passed", "  failed  paris", "  passed  rome"]
    assert [line for line in result.outlines if line in table] == table
    wanted = (
        (folder / "test_it.py")
        .read_text()
        .replace(
            "    scenario.run_sync(", "    if case.id == 'paris': check = lambda state: None\n    scenario.run_sync("
        )
    )
    (folder / "test_it.py").write_text(
        wanted.replace("agent(), check, scenario.succeed()]", "agent(), scenario.fail()]")
    )
    fine = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    fine.assert_outcomes(passed=2)
    assert "test_weather: 2 cases, 0 not passed" in fine.outlines, "a test may want its scenario to fail"
    pytester.runpytest_inprocess("-q", "-k", "rome").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cities.csv: is not there: it was looked for beside test_it.py (*) or in the working folder *"),
        (b"id,city\nrome,Rome\n,Oslo\n", "tests/cities.csv:3: this case has no `id`, and others have one"),
        (b"id,city\nmuc,M\xfcnchen\n", "tests/cities.csv:2: is not UTF-8 (byte 13, 0xfc)"),
    ],
)
def test_a_file_that_is_wrong_shows_the_line_that_asks(
    pytester: pytest.Pytester, content: bytes | None, words: str
) -> None:
    """And what is wrong, from where pytest stands; no line of ours."""
    folder = pytester.mkdir("tests")
    if content is not None:
        (folder / "cities.csv").write_bytes(content)
    (folder / "test_it.py").write_text("from llmproxy import scenario\nCASES = scenario.cases('cities.csv')\n")
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["tests/test_it.py:2: in <module>", f"E   *RowError: {words.replace('[', '[[]')}"])
    assert [line for line in result.outlines if "llmproxy/scenario/" in line] == []
