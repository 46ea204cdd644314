"""What is asked of Ray, and what is said when it cannot: with a Ray of our own making, which dies when it is told to."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy.errors import MachineError, MissError, SettingsError
from llmproxy.report.events import Event, Finished, Started, Status
from llmproxy.scenario.cluster.remote_runner import (
    RayClusterRunner,
    build_cluster_unusable_error,
    build_ray_resource_options,
    connect_ray_counting_tries,
    open_ray_connection,
    ray_address,
)
from llmproxy.scenario.cluster.worker_node import NodeRunResult, make_error_picklable
from llmproxy.suite.reading.load import SuiteCase, load_suites
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.case_runner import CaseResult
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.run_on_cluster import RemoteCaseRunner, SuiteParcel
from tests.scenario.people import Ear


class Died(Exception):
    """A worker is gone."""


class Cancelled(Exception):
    """A task was cancelled."""


class Ref:
    def __init__(self, done: Future[object]) -> None:
        self.future = lambda: done


class Ray:
    exceptions = SimpleNamespace(WorkerCrashedError=Died, TaskCancelledError=Cancelled)

    def __init__(self, *answers: object, cpus: float = 2.0) -> None:
        self.answers, self.asked = list(answers), list[dict[str, Any]]()
        self.cpus = cpus
        self.done = Future[object]()

    def put(self, value: object) -> object:
        return value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cpus}}, {"Alive": False, "Resources": {"CPU": 99.0}}]

    def remote(self, *_: object, **_options: object) -> Any:
        return (lambda _function: self) if _options else Ref(self.done)

    def options(self, **options: object) -> Ray:
        self.asked.append(options)
        answer, self.done = self.answers.pop(0), Future[object]()
        if isinstance(answer, Exception):
            self.done.set_exception(answer)
        else:
            self.done.set_result(answer)
        return self

    def wait(self, *_: object, **__: object) -> None:
        """Nothing is open."""


def parcel() -> SuiteParcel:
    return SuiteParcel(
        batch="b", version="1", files={}, cassettes={}, paths=(), options=SuiteCommandOptions(), proxy=()
    )


def case_of(folder: Path, more: str = "") -> SuiteCase:
    path = folder / "t.suite.yaml"
    path.write_text(f"name: t\nagent: {{command: [x]}}\nscenarios: [{{id: a, {more}steps: [{{chat: hi}}]}}]\n")
    return load_suites([path]).scenarios[0]


def execute(ray: Ray, case: SuiteCase) -> tuple[CaseResult, list[Event], RayClusterRunner]:
    heard, runner = Ear(), RayClusterRunner(ray, {})
    world = SuiteRunContext(options=SuiteCommandOptions(mode="replay"), proxy=None, handlers=[heard])
    ran = asyncio.run(RemoteCaseRunner(runner, parcel()).run_case(world, case, 1, 1, alone=True))
    runner.wait_for_cancelled_runs()
    return ran, heard.events, runner


def back() -> NodeRunResult[CaseResult]:
    begun = Started(run_id="r", scenario="a", name="a")
    done = Finished(run_id="r", scenario="a", status=Status.PASSED)
    return NodeRunResult(CaseResult(Status.PASSED), [begun, done], {"a.yaml": b"x"})


def test_a_worker_that_dies_costs_one_more_try(tmp_path: Path) -> None:
    """Nothing of the first is told but that it was."""
    ray = Ray(Died("gone"), back())
    ran, events, cluster = execute(ray, case_of(tmp_path))
    assert (ran.status, len(events), cluster.recorded) == (Status.PASSED, 2, [{"a.yaml": b"x"}])
    assert cluster.list_notes() == ["run again, because a worker or a node died: a"]
    assert ray.asked == [{"name": "a", "num_cpus": 1.0}] * 2


def test_who_missed_on_a_node_is_told_where_to_look(tmp_path: Path) -> None:
    """What a miss advises looks at this machine's store, which was not asked; whatever words it is in."""
    told: list[Event] = [
        Started(run_id="r", scenario="a", name="a"),
        Finished(run_id="r", scenario="a", status=Status.ENVIRONMENT_ERROR, misses=("ingen inspelning",)),
    ]
    _, events, cluster = execute(Ray(NodeRunResult(CaseResult(Status.ENVIRONMENT_ERROR), told, {})), case_of(tmp_path))
    assert events == told
    assert [note.partition(": ")[2] for note in cluster.list_notes()] == ["run what missed without the cluster first"]
    assert execute(Ray(back()), case_of(tmp_path))[2].list_notes() == []


@pytest.mark.parametrize(("answers", "said"), [
    ((Died("gone"), Died("gone too")), "its worker or node died twice: gone too"),
    ((ModuleNotFoundError("No module named 'llmproxy'"),), "a node could not run it: No module named 'llmproxy'"),
    ((MachineError("a node has llmproxy 1"),), "a node has llmproxy 1"),
])  # fmt: skip
def test_what_cannot_be_run_is_an_error_of_the_environment(
    answers: tuple[Exception, ...], said: str, tmp_path: Path
) -> None:
    """Told as a run, so that no report misses it."""
    ran, events, _ = execute(Ray(*answers), case_of(tmp_path))
    assert ran.status is Status.ENVIRONMENT_ERROR
    assert isinstance(events[0], Started)
    assert isinstance(events[1], Finished)
    assert said in events[1].error


def test_what_no_node_has_is_not_waited_for(tmp_path: Path) -> None:
    """Ray would wait for a node that has it."""
    ray = Ray()
    _, events, _ = execute(ray, case_of(tmp_path, "resources: {cpu: 4}, "))
    assert "a wants cpu: 4, and no node has more than 2" in getattr(events[1], "error", "")
    assert ray.asked == []


def test_where_a_cluster_is() -> None:
    """Named, asked for by the environment, or started here; what a scenario needs is said in Ray's words, one processor at least."""
    assert ray_address("ray", {}) == "local"
    assert ray_address("ray", {"RAY_ADDRESS": "10.0.0.1:6379"}) == "10.0.0.1:6379"
    assert ray_address("ray://h:10001", {}) == "ray://h:10001"
    for wrong in ("dask", "ray://", "http://h"):
        with pytest.raises(SettingsError, match="it can be `ray`"):
            ray_address(wrong, {})
    assert build_ray_resource_options(None) == {"num_cpus": 1.0}
    assert build_ray_resource_options({"cpu": 2, "gpu": 1, "memory": 3, "tpu": 1}) == {
        "num_cpus": 2, "num_gpus": 1, "memory": 3 << 20, "resources": {"tpu": 1},
    }  # fmt: skip


def test_a_ray_of_another_python_is_said_with_both_versions() -> None:
    """In Ray's own words, without a traceback."""
    text = "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1"
    found = build_cluster_unusable_error("ray://h:1", RuntimeError(text))
    assert "is of another Ray or Python than this one" in str(found)
    assert "3.12.1" in str(found)
    found = build_cluster_unusable_error("ray", ConnectionError("no route\nmore"))
    assert str(found) == "the cluster at ray cannot be used: no route"


class Busy:
    """A Ray whose cluster refuses the first connections."""

    def __init__(self, failures: int, said: str = "Initialization failure from server:\nTraceback") -> None:
        self.left, self.said, self.ended = failures, said, 0

    def init(self, *_: object, **__: object) -> None:
        self.left -= 1
        if self.left >= 0:
            raise ConnectionAbortedError(self.said)

    def shutdown(self) -> None:
        self.ended += 1


def test_a_busy_cluster_is_asked_again() -> None:
    """A few times, and the end of the test says so; anything else is an error at once."""
    waited: list[float] = []
    ray = Busy(2)
    assert connect_ray_counting_tries(ray, "ray", "local", "n", waited.append) == 3
    assert (ray.ended, waited) == (2, [1, 2])
    assert RayClusterRunner(Ray(), {}, 3).list_notes() == ["connecting to the cluster took 3 tries"]
    with pytest.raises(MachineError, match="cannot be used: Initialization failure from server"):
        connect_ray_counting_tries(Busy(9), "ray", "local", "n", waited.append)
    other = Busy(9, "no route")
    with pytest.raises(MachineError, match="cannot be used: no route"):
        connect_ray_counting_tries(other, "ray", "local", "n", waited.append)
    assert other.left == 8


def test_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for where, address in (("ray", f"127.0.0.1:{port}"), (f"ray://127.0.0.1:{port}",) * 2):
            with pytest.raises(MachineError, match=r"no cluster answers at .*refused") as caught:
                connect_ray_counting_tries(Busy(0), where, address, "n")
            assert ("(RAY_ADDRESS)" in str(caught.value)) is (where == "ray")
            assert "ray status" in (caught.value.hint or "")


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with (
        pytest.raises(MachineError, match=r"ray needs Ray, which is not installed[^$]*(--extra ray|,ray|\[ray)"),
        open_ray_connection("ray", "b", {}),
    ):
        pass


def test_errors_travel() -> None:
    """With their kind and code; one that cannot, by its text."""

    class Odd(MissError):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one + two)

    kept = make_error_picklable(MissError("never recorded", hint="record it"))
    assert str(kept) == "never recorded\nrecord it"
    made = make_error_picklable(Odd("a", "b"))
    assert (type(made), str(made)) == (MissError, "ab")
