"""Every name of langwatch-scenario 1.6.0 is played by a case of `today.py`, or it is said why it is not here: `surface.tsv`."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from llmproxy import scenario
from tests.scenario import today
from tests.scenario.surface import surface

ROWS = dict(
    line.split("\t") for line in Path(__file__).with_name("surface.tsv").read_text(encoding="utf-8").splitlines()
)
PLAYED = {name: where for name, where in ROWS.items() if not where.startswith("-")}
WHY = {
    "- refused": "of voice, or of what LangWatch's servers compute: it is not here",
    "- pydantic": "values are models of pydantic, and have it from there",
    "- attack telemetry": "a strategy of one's own is a prompt, a phase and a reader; what else is reported of attacks is ours",
    "- voice and servers": "a result has no place for what was spoken or computed on servers; it reads as empty",
    "- voice and spans": "what a judge of voice or spans makes of its arguments",
    "- bookkeeping": "the executor's own, not for scripts",
}


def _words(case: str) -> set[str]:
    """Return what a case names: itself, what it calls of this file, and what the stage does for all."""
    own = inspect.getsource(today.CASES[case])
    called = [
        today.Stage,
        *(getattr(today, each) for each in ("checkpoints", "attacked", "served") if f"{each}(" in own),
    ]
    given = repr(today.GIVEN) if "GIVEN" in own else ""
    return set(re.findall(r"\w+", own + given + "".join(map(inspect.getsource, called))))


def test_a_case_names_what_it_plays() -> None:
    """Each row's case is there, and speaks of the name."""
    words = {case: _words(case) for case in set(PLAYED.values())}
    last = {name: re.split(r"[.(]", name)[-1].rstrip(")") for name in PLAYED}
    assert [name for name, case in PLAYED.items() if last[name] not in words[case]] == []


def test_what_is_not_played_has_a_reason() -> None:
    """One of the few; what is called refused is no name here, and what pydantic gives is there."""
    rest = {name: why for name, why in ROWS.items() if name not in PLAYED}
    assert set(rest.values()) == set(WHY)
    refused = [name for name, why in rest.items() if why == "- refused" and not re.search(r"[.(]", name)]
    assert [name for name in refused if hasattr(scenario, name)] == []
    inherited = [name.partition(".")[2] for name, why in rest.items() if why == "- pydantic"]
    assert [name for name in inherited if not hasattr(scenario.ScenarioResult, name)] == []


def test_the_names_are_those_of_the_original() -> None:
    """Where it is installed; where it is not, this says so."""
    try:
        found = version("langwatch-scenario")
    except PackageNotFoundError:
        pytest.skip("langwatch-scenario is not installed: its names are taken from tests/scenario/surface.tsv")
    assert (found, surface("scenario")) == ("1.6.0", list(ROWS))
