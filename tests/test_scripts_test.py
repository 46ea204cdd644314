"""`scripts/test`: a test that fails only beside others is run again and named; one that fails by itself fails."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.forked import program
from tests.support.process import ROOT

FIRST = """
from pathlib import Path

def test_first_time_only():
    seen = Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before

def test_good():
    pass
"""
ALWAYS = FIRST + "\ndef test_bad():\n    assert False\n"
MANY = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_bad(n):\n    assert False\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_loader("scripts_test", SourceFileLoader("scripts_test", str(ROOT / "scripts/test")))
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules["scripts_test"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "code", "unstable", "runs"),
    [
        (FIRST, 0, ["test_first_time_only"], 2),
        (ALWAYS, 1, ["test_first_time_only"], 2),
        (MANY, 1, [], 1),
        ("def test_good():\n    pass\n", 0, [], 1),
    ],
    ids=["unstable", "bad", "many", "good"],
)
def test_few_failures_are_run_once_more(
    script: ModuleType, tmp_path: Path, text: str, code: int, unstable: list[str], runs: int
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    with (tmp_path / "out").open("w+") as out:
        part = script.Part("tried", script.Children(), out, all=False, caches=tmp_path / "caches")
        found = part.test(*program("pytest"), "-q", "-p", "no:hypothesispytest", str(file))
        out.seek(0)
        said = out.read()
    assert (found, [name.rpartition("::")[2] for name in part.unstable]) == (code, unstable), said
    assert said.count("$ ") == runs
