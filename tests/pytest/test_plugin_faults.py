"""The marker `faults`: a test whose calls meet injected faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.provider import Provider, step
from tests.support.pytest_run import APP, run, write

SUITE = """
import urllib.error
import pytest
from app import ask

def again(text):
    try:
        return ask(text)
    except OSError:
        return ask(text)

@pytest.mark.faults("http-429")
def test_recovers(llmproxy):
    assert again("one") == "hello"
    assert llmproxy.report().injected == 1
    assert [call.fault for call in llmproxy.calls()] == ["http-429", None]

@pytest.mark.faults({"kind": "reset", "call": 2}, "http-500@1", seed=7)
def test_two_rules_ask_for_the_fixture():
    assert again("two") + again("three") == "hellohello"

@pytest.mark.faults(kind="http-503", times="always")
def test_gives_up(llmproxy):
    again("four")

@pytest.mark.faults("reset@9")
def test_never_met(llmproxy):
    assert ask("five") == "hello"

@pytest.mark.faults("http-500@1")
@pytest.mark.faults(kind="reset", call=2, seed=3)
def test_two_markers(llmproxy):
    assert again("seven") + again("eight") == "hellohello"
    assert [rule["kind"] for rule in llmproxy.report().faults["faults"]] == ["http-500", "reset"]

@pytest.mark.faults("reset@1", seed=1)
@pytest.mark.faults("http-500@2", seed=2)
def test_two_seeds(llmproxy):
    pass

@pytest.mark.faults("http-42")
def test_unknown(llmproxy):
    pass

def test_without(llmproxy):
    assert ask("six") == "hello"
    assert llmproxy.report().faults is None
"""


@pytest.mark.slow
def test_marked_tests_meet_faults_and_no_others(tmp_path: Path) -> None:
    """Recovery passes, giving up fails and shows what it met, a fault that met no call is an error, a bad marker too."""
    plain = re.sub(r"@pytest.mark.faults.*|    assert .*(injected|fault).*", "", SUITE)
    plain = plain.replace("rules_ask_for_the_fixture()", "rules_ask_for_the_fixture(llmproxy)")
    write(tmp_path, app=APP, test_suite=plain)
    with Provider([step(say="hello", times=None)]) as p:
        done = run(tmp_path, "--llmproxy-mode", "record", OPENAI_BASE_URL=p.url + "/v1", OPENAI_API_KEY="k")
        done.assert_outcomes(passed=8)
    write(tmp_path, test_suite=SUITE)
    done = run(tmp_path)
    done.assert_outcomes(passed=5, failed=1, errors=3)
    done.stdout.fnmatch_lines_random([
        "*llmproxy: injected faults that it met*",
        "call 1: openai chat.completions gpt-4o: fault http-503 (rule 1)",
        "*the test passed without the faults that it asks for:*",
        "*fault reset (rule 1) met no call: no call came that is its number 9*",
        "*the markers faults say different seeds (1, 2)*",
        "*the marker faults: 'http-42' is no preset, no kind and no file; did you mean 'http-429'?*",
    ])  # fmt: skip
