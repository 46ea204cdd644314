"""What suites name travels to nodes, and reports of a cluster are in the order of the suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.report.events import Completed, Event, Finished, Selected, Started, Status
from llmproxy.suite.reading.load import load_suites
from llmproxy.suite.run.run_on_cluster import (
    RunEventReorderer,
    collect_referenced_env_values,
    list_files_in_agent_configs,
)
from tests.suite.rig import Told


def names(heard: Told) -> list[str]:
    """Return kind and run of everything that it was told."""
    return [f"{type(event).__name__} {getattr(event, 'run_id', '')}".strip() for event in heard.events]


def run(name: str, sample: int = 1) -> list[Event]:
    id_ = f"{name}{sample}"
    return [
        Started(run_id=id_, scenario=name, name=name, sample=sample),
        Finished(run_id=id_, scenario=name, status=Status.PASSED),
    ]


def test_a_run_is_told_when_all_before_it_were() -> None:
    """What ends first waits; at the end everything is told, what nobody expected last."""
    heard = Told()
    order = RunEventReorderer([heard], [("a", 1), ("a", 2), ("b", 1), ("c", 1)])
    order.handle(Selected(title="", scenarios=3, runs=4))
    for event in [*run("b"), *run("a", 2)]:
        order.handle(event)
    assert names(heard) == ["Selected"]
    for event in run("a"):
        order.handle(event)
    assert names(heard)[1:] == [f"{kind} {each}" for each in ("a1", "a2", "b1") for kind in ("Started", "Finished")]
    for event in [*run("x"), run("c")[0]]:
        order.handle(event)
    order.handle(Completed(exit_code=0, seconds=1.0))
    assert names(heard)[7:] == ["Started c1", "Started x1", "Finished x1", "Completed"]


def test_a_report_that_fails_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Told):
        def handle(self, event: Event) -> None:
            raise RuntimeError("full")

    heard = Told()
    order = RunEventReorderer([Broken(), heard], [("a", 1)])
    for event in run("a")[:-1]:
        order.handle(event)
    with pytest.warns(RuntimeWarning, match="Broken failed: RuntimeError: full"):
        order.handle(run("a")[-1])
    assert names(heard) == ["Started a1", "Finished a1"]
    assert "Broken failed at Started" in caplog.text


@pytest.mark.parametrize("agent", ['{python: "agent.py:answer"}', "{command: [python, agent.py]}"])
def test_files_that_an_agent_names_come_along(agent: str, tmp_path: Path) -> None:
    """The file of a function, the words of a command that are files."""
    (tmp_path / "agent.py").write_text("def answer(message): return message")
    (tmp_path / "other.py").write_text("")
    suite = tmp_path / "t.suite.yaml"
    suite.write_text(f"name: t\nagent: {agent}\nscenarios: [{{id: a, steps: [{{chat: hi}}]}}]\n")
    assert list_files_in_agent_configs(load_suites([suite]).scenarios) == [tmp_path / "agent.py"]
    assert list_files_in_agent_configs([], [({"python": "other.py:answer"}, tmp_path), (None, tmp_path)]) == [
        tmp_path / "other.py"
    ]


def test_variables_that_suites_name_come_along() -> None:
    """And no others: no key that the run does not need."""
    env = {"URL": "u", "OPENAI_API_KEY": "secret"}
    assert collect_referenced_env_values([b"agent: {http: '${env:URL}'}", b"x: ${env:NOT_SET}"], env) == {"URL": "u"}
