"""Recorded in one folder under pytest, replayed in another, with what the test itself made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider, load
from tests.support.asking import ASK
from tests.support.pytest_run import run

AGENT = (
    f"{ASK}\n"
    """
def see(order, folder):
    '''Return what the model calls after a tool has told of an order.'''
    call = {"id": "c", "type": "function", "function": {"name": "get_order", "arguments": "{}"}}
    result = json.dumps({"order_id": order, "seats": 7}) + f"\\nkept in {folder}\\n"
    messages = [
        {"role": "system", "content": f"You work in {os.getcwd()}."}, {"role": "user", "content": "close it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
    return json.loads(ask(messages)["tool_calls"][0]["function"]["arguments"])
"""
)
SUITE = """
import os
import pytest
from agent import see

ORDER = int(os.environ.get("ORDER", "7"))

def close(order, folder):
    assert see(order, folder) == {"order_id": order, "seats": 7, "path": f"{folder}/note"}

def test_fixture(llmproxy, tmp_path):
    llmproxy.run_variable("order.id", ORDER)
    close(ORDER, tmp_path)
    assert llmproxy.report().bound_names == tuple(os.environ.get("NAMES", "").split())

@pytest.fixture
def order(llmproxy):
    llmproxy.run_variable("order.id", str(ORDER + 1), tool="get_order", path="$.order_id")
    return ORDER + 1

@pytest.mark.llmproxy(cassette="by-marker")
def test_marker(order, tmp_path):
    close(order, tmp_path)

@pytest.mark.parametrize("kind", ["a", "b"])
def test_each(llmproxy, tmp_path, kind):
    close(7, tmp_path / kind)

@pytest.mark.llmproxy(bind="paths")
def test_only_paths(tmp_path):
    close(7, tmp_path)

@pytest.mark.llmproxy(bind="none")
def test_nothing_bound():
    close(7, "/srv/fixed")
"""
STEPS: dict[str, Any] = {"ordered": False, "steps": [
    {"results": 1, "times": None, "takes": {"order": r'"order_id": (\d+)', "folder": r"kept in (\S+)"},
     "call": [{"name": "close_order", "arguments": {"order_id": {"number": "{order}"}, "seats": 7, "path": "{folder}/note"}}]},
]}  # fmt: skip
TESTS = 6
NAMES = "cwd order.id tmp"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the suite in the folder `here`, and copy it and its store to `elsewhere-today`; returns the folder of both."""
    place = tmp_path_factory.mktemp("bindings")
    first, second = place / "here", place / "elsewhere-today"
    first.mkdir()
    (first / "agent.py").write_text(AGENT)
    (first / "test_suite.py").write_text(SUITE)
    (first / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    with Provider(load(STEPS)) as up:
        env = {"OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": "sk-x"}
        _in(first, "--llmproxy-mode", "once", **env).assert_outcomes(passed=TESTS)
    shutil.copytree(first, second)
    return place


def _in(folder: Path, *words: str, **env: Any) -> pytest.RunResult:
    return run(folder, "--basetemp", str(folder / "temporary"), *words, **env)


@pytest.mark.slow
def test_a_suite_replays_in_another_folder_with_other_orders(recorded: Path) -> None:
    """By the fixture, by a fixture on it, by the marker and by parameters; one after the other, and by workers of xdist."""
    elsewhere = recorded / "elsewhere-today"
    for words in ((), ("-n", "2")):
        found = _in(elsewhere, *words, "--deselect", "test_suite.py::test_nothing_bound", ORDER="1007", NAMES=NAMES)
        found.assert_outcomes(passed=TESTS - 1, deselected=1) if not words else found.assert_outcomes(passed=TESTS - 1)
        found.stdout.fnmatch_lines(["5 tests: 5 hits (5 bound: cwd, order.id, tmp), 0 misses, 0 recorded*"])
    here = _in(recorded / "here")
    here.assert_outcomes(passed=TESTS)
    here.stdout.fnmatch_lines(["6 tests: 6 hits, 0 misses, 0 recorded*"])


@pytest.mark.slow
def test_the_scope_of_binding_is_the_marker_s_or_the_environment_s(recorded: Path) -> None:
    """`none`: only equal requests are hits; `paths`: folders are bound, an order is not."""
    elsewhere = recorded / "elsewhere-today"
    marked = _in(elsewhere, "-k", "only_paths or nothing_bound")
    marked.assert_outcomes(passed=1, failed=1, deselected=4)
    marked.stdout.fnmatch_lines(["*1 of its requests not in cassette*", "2 tests: 1 hit (1 bound: cwd, tmp), 1 miss*"])
    none = _in(elsewhere, "-k", "fixture or only_paths", LLMPROXY_BIND="none")
    none.assert_outcomes(passed=1, failed=1, deselected=4)
    paths = _in(elsewhere, "-k", "fixture or marker", ORDER="1007", NAMES=NAMES, LLMPROXY_BIND="paths")
    paths.assert_outcomes(failed=2, deselected=4)
    _in(elsewhere, "-k", "fixture", NAMES="cwd tmp", LLMPROXY_BIND="paths").assert_outcomes(passed=1, deselected=5)
