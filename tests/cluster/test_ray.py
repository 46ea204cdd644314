"""Suites on a real Ray cluster of two nodes on this machine: the same report, whatever dies; recordings come home.

Ray is in no other environment of the tests: `scripts/test cluster` makes one with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider, load
from tests.support.forked import program
from tests.support.grown import Grown
from tests.support.postgres import postgres
from tests.support.process import ROOT, clean_env
from tests.support.reports import bare, differences
from tests.test_translated import statuses, translated  # noqa: F401 - the fixture

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_raylet_start_wait_time_s": "300"}
os.environ |= QUIET  # read when it is imported
pytest.importorskip("ray", reason="Ray is not installed here: `scripts/test cluster` brings it")

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{each}")
    for each in ("pytest.PytestUnraisableExceptionWarning", "ResourceWarning", "DeprecationWarning", "FutureWarning")
]
"""What Ray leaves open is Ray's."""
MANY = 54
AGENT = """
import json, os, sys, time, urllib.request
from pathlib import Path

def answer(message):
    stop(message)
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": message}]}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]

def stop(message):
    '''On the second node each message is held once, until somebody opens the gate.'''
    gate = os.environ.get("GATE", "")
    if not gate or os.environ["HEAD"] == sys.modules["ray"].get_runtime_context().get_node_id():
        return
    held = Path(gate, message)
    if not held.exists():
        held.with_suffix(".part").write_text(str(os.getpid()))
        held.with_suffix(".part").replace(held)
        while not Path(gate, "open").exists():
            time.sleep(0.02)
"""
SUITE = "name: t\nagent: {python: 'agent.py:answer'}\nscenarios:\n" + "".join(
    f"  - {{id: s{n}, runs: {2 if n % 10 == 3 else 1}, steps: [{{chat: 'hi {n}', response: {{contains: {'nope' if n == 5 else 'hi'}}}}}]}}\n"
    for n in range(MANY)
)
PATIENCE = 300.0
SHOP = """
import json, os, urllib.request
from llmproxy import scenario

class Shop(scenario.AgentAdapter):
    async def call(self, input):
        body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": input.last_new_user_message_str()}]}).encode()
        asked = urllib.request.Request(input.llm.base_url("openai") + "/chat/completions", body, {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
"""
PROGRAM = """
import asyncio, json, os, sys, time
from contextlib import nullcontext
from pathlib import Path
from llmproxy import scenario
from shop.agent import Shop

def told(state):
    assert state.messages[-1]["content"] == "hi there"
    if (mark := Path(os.environ.get("DIES", "none"))).is_dir():
        try:
            (mark / "died").mkdir()
        except FileExistsError:
            return
        os.kill(os.getpid(), 9)
    if (gate := Path(os.environ.get("GATE", "none"))).is_dir() and not (gate / "open").exists():
        if os.environ["HEAD"] != sys.modules["ray"].get_runtime_context().get_node_id():
            (gate / str(os.getpid())).touch()
            while not (gate / "open").exists():
                time.sleep(0.02)

async def main(where, mode):
    heard = []
    steps = [scenario.user("hi 0"), scenario.agent(), told, scenario.succeed()]
    sent = [name for name in ("DIES", "GATE", "HEAD") if name in os.environ]
    with scenario.on(where, send_env=sent) if where else nullcontext():
        made = await scenario.run("greet", "says hello", [Shop()], script=steps, runs=6, mode=mode, verbose=False, proxy=True, handlers=[heard.append])
    kinds = {}
    for event in heard:
        kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
    print(json.dumps([made.success, made.rate, made.counted_of_total_runs, made.replayed, made.cassette, [[e.sample, e.status, e.result.messages, e.result.cassette] for e in made.samples], kinds]))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster of one node of two processors, with a port for clients; `have_second` adds another one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": port}
    made = pytest.importorskip("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    made.client_port = port
    made.second = None
    yield made
    made.shutdown()


def have_second(cluster: Any) -> None:
    """Have a second node, which no test before this one killed."""
    cluster.second = cluster.second or cluster.add_node(num_cpus=2)


def kill_second(cluster: Any) -> None:
    cluster.remove_node(cluster.second, allow_graceful=False)
    cluster.second = None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose 60 runs are recorded."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "agent.py").write_text(AGENT)
    (folder / "t.suite.yaml").write_text(SUITE)
    with provider() as upstream:
        done = run(folder, "--mode", "record", "--upstream", f"openai={upstream.url}", "--report", "json=recorded.json")
    assert done.returncode == 1, done.stdout + done.stderr
    return folder


def provider() -> Provider:
    return Provider(
        load({"ordered": False, "steps": [{"user": f"hi {n}", "say": "hi there", "times": None} for n in range(MANY)]})
    )


def start(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    known = clean_env({"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "RAY_raylet_start_wait_time_s": "300", **env})
    with (folder / "out.txt").open("w") as out:
        return subprocess.Popen([*program("llmproxy"), "test", *words], cwd=folder, env=known, stdout=out, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = start(folder, *words, **env).wait(PATIENCE)
    return subprocess.CompletedProcess(words, code, (folder / "out.txt").read_text(), "")


def until(holds: Callable[[], Any], said: Path) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or only its parent has not asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_sixty_runs_are_told_as_on_one_machine_though_a_worker_and_a_node_die(cluster: Any, project: Path) -> None:
    """What died ran again, once, and is named; nothing of the recordings changed."""
    before = {path.name: path.read_bytes() for path in (project / "tests/cassettes").rglob("*.yaml")}
    assert run(project, "--report", "json=local.json").returncode == 1
    have_second(cluster)
    gate, out = project / "gate", project / "out.txt"
    gate.mkdir()
    env = {"RAY_ADDRESS": cluster.address, "GATE": str(gate), "HEAD": cluster.head_node.node_id}
    sent = ("--send-env", "GATE", "--send-env", "HEAD")
    test = start(project, "--on", "ray", "--report", "json=ray.json", *sent, **env)
    first = until(lambda: next((path for path in gate.iterdir() if path.suffix != ".part"), None), out)
    os.kill(int(first.read_text()), signal.SIGKILL)
    killed = f"s{first.name.partition(' ')[2]}"
    until(lambda: re.search(rf"^\w+  {killed} ", out.read_text(), re.MULTILINE), out)
    others = until(lambda: [path for path in gate.iterdir() if path.suffix != ".part" and path != first], out)
    kill_second(cluster)
    until(lambda: all(has_ended(int(path.read_text())) for path in others), out)  # else one could still end its run
    (gate / "open").touch()
    assert test.wait(PATIENCE) == 1, out.read_text()
    local, made = (json.loads((project / f"{name}.json").read_text()) for name in ("local", "ray"))
    assert list(differences(bare(local, ("notes",)), bare(made, ("notes",)))) == []
    note = next(each for each in made["notes"] if each.startswith("run again, because a worker or a node died: "))
    assert {killed, *(f"s{path.name.partition(' ')[2]}" for path in others)} <= set(note.partition(": ")[2].split(", "))
    assert local["notes"] == []
    said = out.read_text()
    assert f"llmproxy: to ray: agent.py, t.suite.yaml, {MANY} cassettes; variables: GATE, HEAD" in said
    assert before == {path.name: path.read_bytes() for path in (project / "tests/cassettes").rglob("*.yaml")}


def test_recordings_come_home_through_a_client_port(cluster: Any, tmp_path: Path) -> None:
    """Made on a node, in this folder afterwards; then they replay here. Who wants two processors has a node of two for itself."""
    if cluster.second:
        kill_second(cluster)
    two_scenarios(tmp_path, "resources: {cpu: 2}, ")
    where = f"ray://127.0.0.1:{cluster.client_port}"
    with provider() as upstream:
        recording = ("--mode", "record", "--upstream", f"openai={upstream.url}")
        done = run(tmp_path, "--on", where, *recording, "--report", "json=made.json")
    assert done.returncode == 0, done.stdout
    scenarios = json.loads((tmp_path / "made.json").read_text())["scenarios"]
    times = sorted((each["started"]["at"], each["finished"]["at"]) for one in scenarios for each in one["runs"])
    assert len(times) == 4
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times)), times
    assert "cassette files came home to tests/cassettes" in done.stdout
    again = run(tmp_path, "--mode", "replay", "--runs", "2")
    assert again.returncode == 0, again.stdout


def two_scenarios(folder: Path, more: str = "") -> None:
    (folder / "agent.py").write_text(AGENT)
    rows = [
        f"  - {{id: s{n}, runs: 2, {more}steps: [{{chat: 'hi {n}', response: {{contains: hi}}}}]}}\n" for n in range(2)
    ]
    (folder / "t.suite.yaml").write_text("name: t\nagent: {python: 'agent.py:answer'}\nscenarios:\n" + "".join(rows))


def test_with_a_teams_store_nodes_record_into_it_and_replay_from_it(cluster: Any, tmp_path: Path) -> None:
    """No cassette travels and none comes home; the store's password stands nowhere."""
    two_scenarios(tmp_path)
    with postgres() as server:
        env = {"RAY_ADDRESS": cluster.address, "LLMPROXY_STORE": f"{server.url('team')}&password=hush-hush"}
        with provider() as upstream:
            made = run(tmp_path, "--on", "ray", "--mode", "record", "--upstream", f"openai={upstream.url}", **env)
            assert len(upstream.requests) == 4
        assert made.returncode == 0, made.stdout
        for how in (("--on", "ray"), ()):
            again = run(tmp_path, "--mode", "replay", "--runs", "2", *how, **env)
            assert again.returncode == 0, again.stdout
            assert "hush-hush" not in made.stdout + again.stdout
        assert "where the store is (postgresql://" in made.stdout
        assert not list((tmp_path / "tests").rglob("*.yaml"))


def test_a_rate_holds_over_all_nodes_and_ctrl_c_cancels(cluster: Any, tmp_path: Path) -> None:
    """Of four who ask at once, on two nodes, one call goes to the provider; Ctrl-C ends those that wait."""
    have_second(cluster)
    two_scenarios(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT.replace("def answer(message):", "def answer(message):\n    Path(os.environ['ASKED'], str(os.getpid())).touch()"))  # fmt: skip
    (asked := tmp_path / "asked").mkdir()
    env = {"RAY_ADDRESS": cluster.address, "ASKED": str(asked)}
    with provider() as upstream:
        recording = ("--mode", "record", "--upstream", f"openai={upstream.url}", "--rate", "openai=1/h")
        test = start(tmp_path, "--on", "ray", "--send-env", "ASKED", *recording, **env)
        until(lambda: len(list(asked.iterdir())) > 1 and upstream.requests, tmp_path / "out.txt")
        time.sleep(1)  # nothing comes of it; what would come is on its way by then
        test.send_signal(signal.SIGINT)
        assert test.wait(PATIENCE) == 130
        assert len(upstream.requests) == 1


def test_scenarios_in_python_run_there(cluster: Any, tmp_path: Path) -> None:
    """`with scenario.on("ray"):` gives what the same gives here, though a worker and a node die; an agent's module comes along, recordings come home."""
    (tmp_path / "shop").mkdir()
    for name, text in {"shop/__init__.py": "", "shop/agent.py": SHOP, "prog.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    known = clean_env(
        {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": cluster.address, "LLMPROXY_CASSETTE_DIR": "tests/cassettes"}
    )

    def begin(where: str, mode: str, **env: str) -> subprocess.Popen[str]:
        with (tmp_path / "out.txt").open("w") as out, (tmp_path / "err.txt").open("w") as err:
            return subprocess.Popen([sys.executable, "prog.py", where, mode], cwd=tmp_path, env=known | env, stdout=out, stderr=err, text=True)  # fmt: skip

    def end(begun: subprocess.Popen[str]) -> tuple[Any, str]:
        code = begun.wait(PATIENCE)
        said, complained = ((tmp_path / f"{name}.txt").read_text() for name in ("out", "err"))
        assert code == 0, said + complained
        return json.loads(said.splitlines()[-1]), complained

    again = "llmproxy: run again, because a worker or a node died: greet"
    (dies := tmp_path / "dies").mkdir()
    with provider() as upstream:
        made, said = end(begin("ray", "record", LLMPROXY_UPSTREAM=f"openai={upstream.url}", DIES=str(dies)))
        assert len(upstream.requests) == 7  # the run of the worker that died is made again
    assert "llmproxy: to ray: shop/__init__.py, shop/agent.py, 0 cassettes; variables: DIES" in said
    assert "cassette files came home to tests/cassettes" in said
    assert again in said
    here, _ = end(begin("", "replay"))
    have_second(cluster)
    (gate := tmp_path / "gate").mkdir()
    begun = begin("ray", "replay", GATE=str(gate), HEAD=cluster.head_node.node_id)
    held = until(lambda: [int(path.name) for path in gate.iterdir()], tmp_path / "err.txt")
    kill_second(cluster)
    until(lambda: all(map(has_ended, held)), tmp_path / "err.txt")  # else one could still end its run
    (gate / "open").touch()
    there, said = end(begun)
    assert here == there
    assert (here[:4], made[:4]) == ([True, 1.0, "6 of 6", True], [True, 1.0, "6 of 6", False])
    assert again in said


def test_with_sentences_in_other_words_a_cluster_tells_the_same(
    cluster: Any,
    project: Path,
    translated: Grown,  # noqa: F811 - the fixture
) -> None:
    told = ("--report", "json=told.json")
    plain, here = run(project, *told).returncode, statuses(project / "told.json")
    nodes = json.dumps({"runtime_env": {"env_vars": {"PYTHONPATH": str(translated.folder)}}})
    env = {**QUIET, "RAY_JOB_CONFIG_JSON_ENV_VAR": nodes, "RAY_ADDRESS": cluster.address}
    other = translated.run("llmproxy", "test", "--on", "ray", *told, cwd=project, **env)
    assert (other.returncode, statuses(project / "told.json")) == (plain, here), other.stderr
