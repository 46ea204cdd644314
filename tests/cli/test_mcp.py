"""`llmproxy mcp -- server`: a real server over stdio recorded by a real client, alone and in a run, and never started again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import program
from tests.support.process import llmproxy, python
from tests.support.tools import HERE, SERVER, http_server, use

LLMPROXY = program("llmproxy")
CALLS: list[Any] = [
    ["echo", {"text": "a"}], ["count", {}], ["count", {}], ["steps", {"number": 3}], ["where", {}], ["delete_all", {}],
    ["environment", {"name": "DEPLOY_TOKEN"}],
]  # fmt: skip
SECRET = "a-token-of-ours-4711"


def folders(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "a", tmp_path / "another-one"
    one.mkdir()
    other.mkdir()
    return one, other


def test_alone_it_records_once_and_replays_in_another_folder(tmp_path: Path) -> None:
    """Every answer comes from the store, in this run's folder, and no tool runs; consent declined, another argument, and secrets are seen to."""
    one, other = folders(tmp_path)
    log, store = tmp_path / "log", tmp_path / "x.db"
    env = {"DEPLOY_TOKEN": SECRET, "CREDENTIAL_STORE": "everything", "XDG_DATA_HOME": str(tmp_path)}

    def shim(mode: str) -> list[str]:
        return [
            *LLMPROXY, "mcp", "--mode", mode, "--store", str(store), "--name", "tools", "--", *SERVER, "stdio",
            str(log),
        ]  # fmt: skip

    (recorded,) = use(shim("record"), cwd=one, env=env, calls=CALLS)
    ran = len(log.read_text().splitlines())
    assert (recorded[4]["text"], recorded[6]["text"], ran) == (f"I am in {one}", SECRET, 7)
    assert SECRET.encode() not in store.read_bytes()
    assert "incomplete" not in llmproxy("ls", "--store", str(store)).stdout
    changed: list[Any] = [["echo", {"text": "b"}]]
    again, _ = use(shim("replay"), cwd=other, env=env, calls=[*CALLS, *changed], runs=2)
    (declined,) = use(shim("replay"), cwd=other, env=env, calls=[CALLS[5]], consent="decline")
    assert [each["text"] for each in again[:4]] == [each["text"] for each in recorded[:4]]
    assert again[3]["progress"] == [1.0, 2.0, 3.0]
    assert (again[4]["text"], again[5]["text"]) == (f"I am in {other}", "everything is deleted")
    shown = llmproxy("show", "4", "--store", str(store))
    assert "\nchannel     mcp\n" in shown.stdout
    assert shown.stdout.index("call of echo") < shown.stdout.index('"text": "a"') < shown.stdout.index("echo: a")
    assert again[7]["error"] is True
    assert '$.params.arguments.text: "a" -> "b"' in again[7]["text"]
    assert declined[0]["error"] is True
    assert "is deleted" not in declined[0]["text"]
    assert len(log.read_text().splitlines()) == ran


@pytest.mark.slow
def test_in_a_run_it_belongs_to_the_run_s_cassette(tmp_path: Path) -> None:
    """The run's proxy is the one writer; its summary counts the tools, and in replay none of them runs, parallel calls in any order."""
    one, other = folders(tmp_path)
    log, store = tmp_path / "log", tmp_path / "x.db"
    plan = json.dumps({"calls": CALLS[:5], "together": True, "shuffle": 3})
    agent = [python(), str(HERE / "mcp_client.py"), plan, "--", *LLMPROXY, "mcp", "--", *SERVER, "stdio", str(log)]

    def run(mode: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        words = ("run", "--mode", mode, "--store", str(store), "--", *agent)
        return llmproxy(*words, cwd=cwd, env={"XDG_DATA_HOME": str(tmp_path)})

    recorded = run("record", one)
    assert "8 recorded" in recorded.stderr, recorded.stderr
    ran = len(log.read_text().splitlines())
    replayed = run("replay", other)
    assert "8 hits (1 bound: cwd), 0 misses" in replayed.stderr, replayed.stderr
    (before,), (after,) = json.loads(recorded.stdout), json.loads(replayed.stdout)
    assert [each["text"] for each in after[:4]] == [each["text"] for each in before[:4]]
    assert after[4]["text"] == f"I am in {other}"
    assert len(log.read_text().splitlines()) == ran == 5


def test_a_run_puts_itself_before_the_servers_of_a_configuration(tmp_path: Path) -> None:
    """Over stdio and over HTTP: recorded once, then everything dead; the user's file is not touched, and each server is named."""
    one, other = folders(tmp_path)
    log, store = tmp_path / "log", tmp_path / "x.db"
    agent = (
        "import json, subprocess, sys\n"
        "for server in json.load(open(sys.argv[1]))['mcpServers'].values():\n"
        "    where = [server['url']] if 'url' in server else ['--', server['command'], *server['args']]\n"
        "    plan = json.dumps({'calls': [['echo', {'text': 'a'}], ['count', {}]]})\n"
        "    subprocess.run([*sys.argv[2:], plan, *where], check=True)\n"
    )

    def run(mode: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        given = ["--mcp-config", str(config), "--mode", mode, "--store", str(store)]
        words = ("run", *given, "--", python(), "-c", agent, str(config), python(), str(HERE / "mcp_client.py"))
        return llmproxy(*words, cwd=cwd, env={"XDG_DATA_HOME": str(tmp_path)})

    config = tmp_path / "tools.json"
    stdio = {"command": SERVER[0], "args": [SERVER[1], "stdio", str(log)]}
    with http_server(tmp_path / "http.log", tmp_path) as origin:
        config.write_text(json.dumps({"mcpServers": {"near": stdio, "far": {"type": "http", "url": f"{origin}/mcp"}}}))
        before = config.read_bytes()
        recorded = run("record", one)
        assert recorded.returncode == 0, recorded.stderr
    assert "mcp: near: over stdio, behind `llmproxy mcp`" in recorded.stderr
    assert "mcp: far: over HTTP, behind the proxy" in recorded.stderr
    replayed = run("replay", other)
    assert ", 0 misses" in replayed.stderr, replayed.stderr
    assert (replayed.stdout, replayed.returncode) == (recorded.stdout, 0)
    assert config.read_bytes() == before
    assert [len((tmp_path / each).read_text().splitlines()) for each in ("log", "http.log")] == [2, 2]
