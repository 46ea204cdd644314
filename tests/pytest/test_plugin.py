"""The pytest plugin, in real pytest processes. In environments of strangers: tests/package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.provider import Provider, step
from tests.support import pytest_run
from tests.support.forked import program
from tests.support.process import ROOT, clean_env, llmproxy
from tests.support.pytest_run import APP, PLUGIN, at

pytest_plugins = ["pytester"]

HEAVY = ("mitmproxy", "litellm", "openai", "httpx", "vcr", "pydantic", "sqlite_utils", "rich", "typer", "http.client")

SUITE = """
import os
import pytest
from app import ask

def test_one(llmproxy):
    assert ask("one") == "hello"
    assert llmproxy.report().calls == 1

@pytest.mark.llmproxy(cassette="shared/ä")
def test_two():
    assert ask("two") == "hello"

class TestMore:
    @pytest.mark.parametrize("text", ["a b", "c"])
    def test_three(self, llmproxy, text):
        assert ask(os.environ.get("CHANGED", "") + text) == "hello"
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(app=APP, test_suite=SUITE)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider([step(say="hello", times=None)]) as running:
        yield running


def run(pytester: pytest.Pytester, *words: str, **env: Any) -> pytest.RunResult:
    """Run pytest in a process of its own, with hardly anything in its environment."""
    return pytest_run.run(pytester.path, *words, **env)


def record(pytester: pytest.Pytester, provider: Provider, *words: str, mode: str = "once") -> pytest.RunResult:
    """Record the suite at the provider, which the base URL named before we came."""
    return run(pytester, "--llmproxy-mode", mode, *words, **at(provider))


def test_a_suite_is_recorded_once_and_replayed_offline(suite: pytest.Pytester, provider: Provider) -> None:
    """Each test has its own cassette; the replay needs no key, and workers of xdist none either. Before it, one line says what to type."""
    nothing = run(suite, "-k", "one")
    nothing.stdout.fnmatch_lines(["Record what is missing, with your keys: pytest --llmproxy-mode auto"])
    first = record(suite, provider)
    first.assert_outcomes(passed=4)
    first.stdout.fnmatch_lines(["4 tests: 0 hits, 0 misses, 4 recorded*"])
    assert len(provider.requests) == 4
    again = run(suite)
    again.assert_outcomes(passed=4)
    again.stdout.fnmatch_lines(["4 tests: 4 hits, 0 misses, 0 recorded; $* not spent"])
    parallel = run(suite, "-n", "2")
    parallel.assert_outcomes(passed=4)
    parallel.stdout.fnmatch_lines(["4 tests: 4 hits, 0 misses, 0 recorded; $* not spent"])
    assert len(provider.requests) == 4
    changed = run(suite, "-k", "three", CHANGED="no ")
    changed.assert_outcomes(failed=2, deselected=2)
    changed.stdout.fnmatch_lines([
        '* llmproxy: 1 of its requests not in cassette "test_suite.TestMore.test_three-a-b-*" (mode replay) *',
        '*"a b" -> "no a b"*', "  1. record what is missing: pytest --llmproxy-mode auto",
        "2 tests: 0 hits, 2 misses, 0 recorded, 2 unused",
        "Record what is missing, with your keys: pytest --llmproxy-mode auto",
    ])  # fmt: skip


def test_tests_within_run_have_its_mode_and_its_advice(suite: pytest.Pytester, provider: Provider) -> None:
    """README's first command records them and its second replays them; what misses there, `run` alone can record."""
    tests = ["--", *program("pytest"), *pytest_run.QUICK, *PLUGIN, "-q"]
    recorded = llmproxy("run", "--mode", "record", *tests, cwd=suite.path, env=at(provider) | {"CI": "1"})
    assert recorded.returncode == 0, recorded.stdout
    assert "llmproxy: 0 hits, 0 misses, 4 recorded" in recorded.stderr
    assert "  (sessions of the command's own, store llmproxy.db)\n" in recorded.stderr
    replayed = llmproxy("run", *tests, "-n", "2", cwd=suite.path)
    assert (replayed.returncode, "llmproxy: 4 hits, 0 misses, 0 recorded" in replayed.stderr) == (0, True)
    changed = llmproxy("run", *tests, "-k", "three", cwd=suite.path, env={"CHANGED": "x"})
    assert "record what is missing: llmproxy run --mode auto --upstream " in changed.stdout
    assert "--llmproxy-" not in changed.stdout  # what the proxy of `run` refuses


def test_tests_without_the_fixture_are_recorded_within_run_as_by_any_command(
    pytester: pytest.Pytester, provider: Provider
) -> None:
    """In its cassette, although the mode that it tells them would make the plugin take over a client of the import."""
    pytester.makepyfile(app=APP, test_it="from app import ask\n\ndef test_it():\n    assert ask('one') == 'hello'\n")
    tests = ["--", *program("pytest"), *pytest_run.QUICK, *PLUGIN, "-q"]
    for mode, counts in (("record", "0 hits, 0 misses, 1 recorded"), ("replay", "1 hit, 0 misses, 0 recorded")):
        ran = llmproxy("run", "--mode", mode, *tests, cwd=pytester.path, env=at(provider))
        assert (ran.returncode, counts in ran.stderr) == (0, True), ran.stdout + ran.stderr


def test_a_test_without_the_fixture_is_told_so_and_its_miss_is_counted(
    pytester: pytest.Pytester, provider: Provider
) -> None:
    """Recording cannot help it, so no step says so: its requests belong to no cassette."""
    code = "from app import ask\n\ndef test_with(llmproxy):\n    ask('one')\n\ndef test_without():\n    ask('one')\n"
    pytester.makepyfile(app=APP, test_it=code)
    ran = record(pytester, provider, "-q", mode="auto")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines([
        "outside of tests with the fixture `llmproxy`: 0 hits, 1 miss, 0 recorded",
        "1 test: 0 hits, 0 misses, 1 recorded*",
    ])  # fmt: skip
    why = llmproxy("why", cwd=pytester.path).stdout
    assert "no test with the fixture `llmproxy` was running" in why
    assert ("1. request the fixture in this test" in why, "--llmproxy-mode" in why) == (True, False), why


@pytest.mark.slow
def test_a_cassette_is_complete_when_its_test_passed(suite: pytest.Pytester, provider: Provider) -> None:
    """Ctrl-C, then a failure between two calls leave it open, which the summary says: mode once adds what is missing, pays for nothing twice, and then adds nothing."""
    test = "from app import ask\ndef test_it(llmproxy):\n    ask('one')\n    {}\n    ask('two')\n"
    for between, told in (
        ("raise KeyboardInterrupt", "test_suite.py::test_it: interrupted: its cassette is incomplete"),
        ("assert 0", "1 test: 1 hit, 0 misses, 0 recorded*"),
    ):
        suite.makepyfile(test_suite=test.format(between))
        ended = record(suite, provider)
        assert ended.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
        ended.stdout.fnmatch_lines([told])
        assert len(provider.requests) == 1
    suite.makepyfile(test_suite=test.format("pass"))
    record(suite, provider).assert_outcomes(passed=1)
    assert len(provider.requests) == 2
    suite.makepyfile(test_suite=test.format("ask('three')"))
    record(suite, provider).assert_outcomes(failed=1)
    assert len(provider.requests) == 2


@pytest.mark.slow
def test_what_a_green_test_no_longer_asks_is_reported(suite: pytest.Pytester, provider: Provider) -> None:
    """A recording that nobody uses is found before it is years old."""
    suite.makepyfile(test_suite="from app import ask\ndef test_it(llmproxy):\n    ask('one'); ask('two')\n")
    record(suite, provider).assert_outcomes(passed=1)
    suite.makepyfile(test_suite="from app import ask\ndef test_it(llmproxy):\n    ask('one')\n")
    run(suite).stdout.fnmatch_lines(["test_suite.py::test_it: 1 recorded but not asked for: #2 gpt-4o 'two'"])


def test_a_test_that_changed_is_recorded_anew_by_the_command_that_its_failure_names(
    suite: pytest.Pytester, provider: Provider
) -> None:
    """Its old recording goes, the other tests keep theirs; with another mode beside it nobody knows what is meant."""
    record(suite, provider)
    failed = run(suite, "-k", "three", CHANGED="please ")
    failed.assert_outcomes(failed=2)
    typed = re.findall(r"^pytest (--llmproxy-update=all) \"(.*)\"$", failed.stdout.str(), re.MULTILINE)
    assert len(typed) == 2, failed.stdout.str()
    failed.stdout.re_match_lines([r"test_suite.py::\S*three.*: look at its recording: llmproxy ui \S*three\S*$"])
    fresh = run(suite, "--llmproxy-cassette-dir=none").stdout.str()
    assert not re.search("^pytest --llmproxy-update", fresh, re.MULTILINE)
    asked = len(provider.requests)
    run(suite, *typed[0], **at(provider), CHANGED="please ").assert_outcomes(passed=1)
    assert len(provider.requests) == asked + 1
    again = run(suite, CHANGED="please ")
    again.assert_outcomes(passed=3, failed=1)
    assert "not asked for" not in "".join(line for line in again.outlines if typed[0][1] in line)
    both = run(suite, "--llmproxy-update=all", "--llmproxy-mode=auto")
    assert "--llmproxy-update all and --llmproxy-mode exclude each other" in both.stderr.str()


def test_the_command_names_all_tests_of_a_cassette_that_it_replaces(
    pytester: pytest.Pytester, provider: Provider
) -> None:
    """Two tests share one, and both miss: who types what the first of them prints would lose what only the second asks."""
    pytest_run.write(pytester.path, app=pytest_run.APP)
    test = "@pytest.mark.llmproxy(cassette='shared')\ndef test_{0}():\n    ask(os.environ.get('V', '') + '{0}')\n"
    pytester.makepyfile(
        test_shared="import os, pytest\nfrom app import ask\n" + test.format("one") + test.format("two")
    )
    record(pytester, provider, mode="record").assert_outcomes(passed=2)
    failed = run(pytester, V="two ")
    failed.assert_outcomes(failed=2)
    (_, typed) = re.findall(r"^pytest --llmproxy-update=all (.*)$", failed.stdout.str(), re.MULTILINE)
    assert sorted(shlex.split(typed)) == ["test_shared.py::test_one", "test_shared.py::test_two"]


def test_a_suite_that_does_not_use_it_is_left_alone(pytester: pytest.Pytester) -> None:
    """No variable is set, no proxy started, nothing heavy imported, nothing written."""
    pytester.makepyfile(
        test_plain=f"""
        import os, sys
        def test_it():
            assert "OPENAI_BASE_URL" not in os.environ and "LLMPROXY_URL" not in os.environ
            assert not set({HEAVY!r}) & set(sys.modules)
        """
    )
    result = pytest_run.run(pytester.path, python=sys.executable, LLMPROXY_COMMAND="/nosuch")
    result.assert_outcomes(passed=1)
    assert "llmproxy:" not in result.stdout.str()
    assert not (pytester.path / "llmproxy.db").exists()


def test_where_no_selected_test_uses_it_the_environment_is_given_back(suite: pytest.Pytester) -> None:
    """The suite names the fixture, but this run does not need it."""
    suite.makepyfile(test_plain="import os\ndef test_plain():\n    assert 'LLMPROXY_URL' not in os.environ\n")
    run(suite, "-k", "plain", LLMPROXY_COMMAND="/nosuch").assert_outcomes(passed=1, deselected=4)


def test_the_environment_is_set_before_a_conftest_is_imported(suite: pytest.Pytester) -> None:
    """Where clients are often made; settings of the ini file count, and `llmproxy_autouse` needs no change of a test."""
    suite.makeini("[pytest]\npythonpath = .\nllmproxy_autouse = true\nllmproxy_mode = none\n")
    suite.makeconftest("import app, os\nassert '/s/pytest-' in os.environ['OPENAI_BASE_URL']\n")
    suite.makepyfile(
        test_suite="""
        import pytest, urllib.error
        from app import ask
        def test_it():
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask("one")
        """
    )
    result = run(suite)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_suite.py::test_it: passed with 1 miss: no recorded response*"])


def test_in_ci_nothing_is_recorded_unless_the_command_line_says_so(suite: pytest.Pytester, provider: Provider) -> None:
    """A marker that was left behind spends no money there."""
    test = "import pytest\nfrom app import ask\n@pytest.mark.llmproxy(mode='record')\ndef test_it():\n    ask('one')\n"
    suite.makepyfile(test_suite=test)
    run(suite, **at(provider), CI="true").assert_outcomes(failed=1)
    assert provider.requests == []
    run(suite, "--llmproxy-mode", "record", **at(provider), CI="true").assert_outcomes(passed=1)
    assert len(provider.requests) == 1


@pytest.mark.slow
def test_an_option_that_another_plugin_has_is_left_to_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        other="def pytest_addoption(parser):\n    parser.addoption('--llmproxy-mode', default='theirs')\n",
        test_suite="def test_it(llmproxy):\n    assert llmproxy.mode == 'replay'\n",
    )
    code = "import sys, pytest, other; sys.exit(pytest.main(sys.argv[1:], plugins=[other]))"
    command = [sys.executable, "-c", code, *PLUGIN]
    env = clean_env({"PYTHONPATH": f"{ROOT}{os.pathsep}{suite.path}"})
    done = subprocess.run(command, cwd=suite.path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


MARKERS = {
    "cassete='x'": "*the marker llmproxy has no cassete; it has cassette, mode, speed*",
    "mode='sometimes'": "*'sometimes' is not one of replay, auto*",
    "'x'": "*the marker llmproxy takes names only, as cassette='x'*",
    "speed=-1": "*speed is -1*",
}
"""A marker that makes no sense, and the sentence that says so."""


def test_a_marker_that_makes_no_sense_fails_its_test_with_a_sentence(suite: pytest.Pytester) -> None:
    tests = (f"@pytest.mark.llmproxy({marker})\ndef test_{number}(): ...\n" for number, marker in enumerate(MARKERS))
    suite.makepyfile(test_suite="\n".join(["import pytest", *tests]))
    result = run(suite)
    result.assert_outcomes(errors=len(MARKERS))
    result.stdout.fnmatch_lines(list(MARKERS.values()))
    assert "Traceback" not in result.stdout.str()


QUOTED = """
import json, urllib.error
from app import ask

def test_it(llmproxy):
    try:
        ask("one")
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"Error code: 404 - {json.load(error)}") from None
"""


def test_a_miss_that_an_sdk_quotes_is_told_once_line_by_line(suite: pytest.Pytester) -> None:
    """In place of the one line of its error, in at most twelve."""
    suite.makepyfile(test_suite=QUOTED)
    result = run(suite)
    result.assert_outcomes(failed=1)
    told = [line for line in result.outlines if line.startswith("E ")]
    assert told[0].startswith("E   RuntimeError: llmproxy: no recorded response for this request")
    assert "E       1. record what is missing: pytest --llmproxy-mode auto" in told
    assert len(told) <= 12
    assert "of its requests not in cassette" not in result.stdout.str()


def test_a_mode_that_is_none_is_a_usage_error(suite: pytest.Pytester) -> None:
    result = run(suite, "--llmproxy-mode", "sometimes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mode 'sometimes' is not one of replay, auto*"])


def test_a_proxy_that_cannot_start_fails_each_test_with_the_reason(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_plain="def test_plain(): ...")
    result = run(suite, LLMPROXY_COMMAND="/nosuch/llmproxy")
    result.assert_outcomes(passed=1, errors=4)
    result.stdout.fnmatch_lines(["*cannot start the proxy: /nosuch/llmproxy*"])
    result.stdout.no_fnmatch_line("During handling of the above exception*")


def test_what_stands_in_no_file_is_said_and_is_an_error_in_ci(suite: pytest.Pytester, provider: Provider) -> None:
    """Advice keeps the folder of cassettes; a replay that the store alone serves says so, until it is exported."""
    folder = ("-k", "one", "--llmproxy-cassette-dir", "my cassettes")
    advice = "*record what is missing: pytest --llmproxy-cassette-dir 'my cassettes' --llmproxy-mode auto*"
    run(suite, *folder).stdout.fnmatch_lines([advice])
    record(suite, provider, "-k", "one", mode="auto").assert_outcomes(passed=1, deselected=3)
    (suite.path / "my cassettes").mkdir()
    alone = "*1 hit is of what stands in the store alone*llmproxy export --all 'my cassettes'"
    run(suite, *folder).stdout.fnmatch_lines([alone])
    run(suite, *folder, CI="1").assert_outcomes(passed=1, errors=1, deselected=3)
    shutil.rmtree(suite.path / "my cassettes")
    record(suite, provider, *folder, mode="record").assert_outcomes(passed=1, deselected=3)
    run(suite, *folder, CI="1").assert_outcomes(passed=1, deselected=3)


CHOOSES = """
import os
from app import ask
from llmproxy import scenario

def chosen():
    return ask("by " + ("openrouter" if "OPENROUTER_API_KEY" in os.environ else "openai"))

class Chooser(scenario.AgentAdapter):
    async def call(self, input):
        return chosen()

def test_plain(llmproxy):
    assert chosen() == "hello"

def test_scenario():
    result = scenario.run_sync("s", "d", [Chooser()], script=[scenario.user("hi"), scenario.agent(), scenario.succeed()])
    assert result.success

def test_unrecorded(llmproxy):
    assert os.environ["OPENROUTER_API_KEY"]
"""


def test_a_program_that_goes_by_which_key_is_set_chooses_as_it_did(
    pytester: pytest.Pytester, provider: Provider
) -> None:
    """A placeholder stands for the keys that a test or a scenario had when it was recorded, and for no other provider's."""
    pytester.makepyfile(app=APP, test_suite=CHOOSES)
    first = run(pytester, "--llmproxy-mode", "once", "-k", "not unrecorded", **at(provider))
    first.assert_outcomes(passed=2, deselected=1)
    assert all(b"by openai" in each.body for each in provider.requests)
    run(pytester).assert_outcomes(passed=3)
