"""`scripts/test`: a test that fails only beside others is run again and named; one that fails by itself fails."""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import Future
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def test_a_killed_command_fails_its_part(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside one that ended well: subprocess says a signal's number as a negative code."""
    codes = iter([-9, 0])
    monkeypatch.setattr(script.Children, "run", lambda *_: next(codes))
    assert script.lint(script.Part("lint", script.Children(), sys.stdout, all=False)) == 137


@pytest.mark.parametrize("wanted", [("sdk", "bench"), ("environments", "py312"), ("types", "package")])
def test_a_part_waits_also_for_what_its_unwanted_parts_wait_for(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, str]
) -> None:
    order: list[str] = []

    def perform(_: object, part: Any) -> Any:
        order.append(f"{part.name} begins")
        time.sleep(0.1)
        order.append(f"{part.name} ends")
        return script.Done(part.name, 0.0, 0)

    monkeypatch.setattr(script, "perform", perform)
    script.in_order(set(wanted), script.Children(), everything=False)
    assert order == [f"{name} {what}" for name in wanted for what in ("begins", "ends")]


def test_a_character_cut_by_a_read_is_shown_whole(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    future, left = Future[Any](), [*"5 €".encode()]
    with tempfile.TemporaryFile("w+") as file:

        def wait(*_: object, **__: object) -> None:
            file.buffer.write(bytes([left.pop(0)]))
            file.buffer.flush()
            if not left:
                future.set_result("ended")

        monkeypatch.setattr(script, "futures", SimpleNamespace(wait=wait, FIRST_COMPLETED=""))
        script.show({script.lint: future}, {script.lint: file})
    assert capsys.readouterr().out == "5 €\nended\n"
