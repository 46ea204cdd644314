"""What travels to a node is what is named, and numbers of its store do not stand in a report of this machine."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.report.events import Assertion, Event, Started, Status, Step
from llmproxy.scenario.cluster.transfer_files import (
    glob_files,
    map_recording_names_to_ids,
    read_project_files_for_cluster,
    use_local_store_ids_in_events,
)
from llmproxy.scenario.cluster.worker_node import ClusterRateLimiter, serve_rate_limit_socket, start_rate_actor
from llmproxy.trace.observing.tool_calls import InteractionIdsLabel
from tests.support.narrowing import narrow
from tests.support.recordings import interaction, key, reopened


def run(interactions: tuple[int, ...], recordings: tuple[str, ...], where: str = "") -> list[Event]:
    said = Assertion(name="tools.a", status=Status.PASSED, where=where)
    step = Step(run_id="r", index=0, kind="chat", interactions=interactions, recordings=recordings, assertions=(said,))
    return [Started(run_id="r", scenario="a", name="a", cassette="t/a", sample=2), step]


def moved(events: list[Event], ids: Callable[[str, int], Mapping[str, int]]) -> Step:
    return narrow(Step, use_local_store_ids_in_events(events, ids)[1])


def test_numbers_become_those_of_the_store_here() -> None:
    """By what a recording is called in every store; also where an assertion names it."""
    made = moved(run((14, 15), ("x", "", "y"), InteractionIdsLabel(14, 15)), lambda _, n: {"x": 3, "y": n})
    assert (made.interactions, made.assertions[0].where) == ((3, 2), "interactions 3 to 2")
    assert pickle.loads(pickle.dumps(InteractionIdsLabel(3, None))).interactions == (3, None)
    named = moved(run((14,), ("x",), "row interaction 14"), lambda _cassette, _n: {"x": 3})
    assert named.assertions[0].where == "row interaction 14"


def test_a_store_knows_its_numbers(tmp_path: Path) -> None:
    with reopened(tmp_path / "x.db", writable=True) as store:
        for n in (1, 2):
            store.add_interaction(interaction(n, cassette="other" if n == 1 else "t/a"), supersede=False)
    found = map_recording_names_to_ids(tmp_path / "x.db", "t/a", 1)
    assert [(name.partition("#")[0], number) for name, number in found.items()] == [(key(2), 2)]


def test_what_is_not_here_has_no_number(tmp_path: Path) -> None:
    """Neither without a store, nor where it was recorded anew."""
    nothing = partial(map_recording_names_to_ids, tmp_path / "none.db")
    made = moved(run((14,), ("x",), InteractionIdsLabel(14)), nothing)
    assert (made.interactions, made.recordings, made.assertions[0].where) == ((), ("x",), "interaction ?")
    plain = run((), ())
    assert use_local_store_ids_in_events(plain, nothing) == plain


def test_files_are_named_relative_to_the_folder(tmp_path: Path) -> None:
    """One outside of it would be missing there: it is refused here."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.py").write_bytes(b"a")
    assert read_project_files_for_cluster([tmp_path / "lib/a.py", tmp_path / "lib" / ".." / "lib/a.py"], tmp_path) == {
        "lib/a.py": b"a"
    }
    with pytest.raises(SuiteError, match="lies outside of"):
        read_project_files_for_cluster([tmp_path / "lib/a.py"], tmp_path / "other")
    with pytest.raises(SuiteError, match=r"none\.py cannot be sent to a node"):
        read_project_files_for_cluster([tmp_path / "none.py"], tmp_path)


def test_patterns_name_files_and_never_a_folder(tmp_path: Path) -> None:
    """A folder holds keys and stores; who wants its files names them."""
    (tmp_path / "lib/deep").mkdir(parents=True)
    for name in ("lib/a.py", "lib/deep/b.py", "lib/c.db"):
        (tmp_path / name).write_text(name)
    found = [path.relative_to(tmp_path).as_posix() for path in glob_files(["lib/**/*.py", "lib/c.db"], tmp_path)]
    assert found == ["lib/a.py", "lib/deep/b.py", "lib/c.db"]
    for pattern in ("lib", "none.txt", ""):
        with pytest.raises(SuiteError, match="there is no such file"):
            list(glob_files([pattern], tmp_path))


def ask(where: str, said: str) -> str:
    with socket.create_connection(("127.0.0.1", int(where.partition("/")[0])), timeout=120) as one:
        one.sendall(f"{said}\n".encode())
        return one.makefile().read()


def test_a_proxy_asks_and_is_told_how_long_to_wait() -> None:
    count = ClusterRateLimiter({"*": "1/min"}, clock=lambda: 7.0)
    with serve_rate_limit_socket(count.count_call) as where:
        secret = where.partition("/")[2]
        assert [ask(where, f"{secret} 1 openai") for _ in range(2)] == ["0.0\n", "60.0\n"]
        assert ask(where, f"{secret} 0 http:example.com") == "0.0\n"
        assert ask(where, f"{secret} 1 openai") == "120.0\n"


def test_a_stranger_is_told_nothing() -> None:
    count = ClusterRateLimiter({"*": "1/min"}, clock=lambda: 7.0)
    with serve_rate_limit_socket(count.count_call) as where:
        assert ask(where, "guess 1 openai") == ask(where, "") == ""
    assert count.count_call("openai", True) == 0.0


def test_who_takes_over_knows_nothing_of_what_went() -> None:
    """And lets a whole window pass; where no rate was said nobody is started."""
    assert ClusterRateLimiter({"*": "5/min"}, anew=True, clock=lambda: 7.0).count_call("openai", True) == 60.0
    assert start_rate_actor(None, {}) is None
