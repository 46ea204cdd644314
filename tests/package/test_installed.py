"""What a stranger types first, in environments that hold nothing but the built package."""

from __future__ import annotations

import re
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mitm.wire import Wire
from tests.provider import Provider, step
from tests.support.process import Process, free_port
from tests.support.pytest_run import APP, write

from .environments import Built, environment

Installed = Callable[[str], Path]
TEST = "from app import ask\n\ndef test_hello(llmproxy):\n    assert ask('hi') == 'hello'\n"


def run(words: Sequence[str | Path], folder: Path, *programs: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an empty folder, with these programs on PATH."""
    given = environment(*programs, PYTHONWARNINGS="ignore", **env)
    return subprocess.run(
        [str(each) for each in words], cwd=folder, env=given, capture_output=True, text=True, timeout=120, check=False
    )


def test_wheel_and_sdist_hold_what_they_need_and_nothing_else(built: Built) -> None:
    """The demo's recording, prompts, the schema, types; no tests, no recordings of ours, no developer's files."""
    inside = set(zipfile.ZipFile(built.wheel).namelist())
    assert {each.partition("/")[0] for each in inside} == {"llmproxy", built.wheel.name.split("-py3")[0] + ".dist-info"}
    needed = ["py.typed", "data/demo.yaml", "data/record_replay.py", "data/suite.schema.json", "data/prompts/judge.md"]
    assert {f"llmproxy/{each}" for each in needed} <= inside
    with tarfile.open(built.sdist) as archive:
        roots = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"llmproxy", "docs", "README.md", "LICENSE", "pyproject.toml", "CHANGELOG.md"} <= roots
    assert not roots & {".venv", ".github", ".mypy_cache", "uv.lock", "node_modules", ".venv-package"}


DEMOS = ("proxy", "all")


@pytest.fixture(scope="module")
def demos(
    installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run all demos at once: most of each is waiting, in recorded time."""
    folder = tmp_path_factory.mktemp("empty")
    commands: dict[str, list[str | Path]] = {name: [installed(name) / "llmproxy", "demo"] for name in DEMOS}
    with ThreadPoolExecutor(len(commands)) as pool:
        done = dict(zip(commands, pool.map(lambda words: run(words, folder), commands.values()), strict=True))
    assert list(folder.iterdir()) == []
    return done


@pytest.mark.parametrize("name", DEMOS)
def test_the_demo_runs(name: str, demos: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """With the openai client where it is installed, with a plain one where only the proxy is; nothing is left behind."""
    done = demos[name]
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"4 calls replayed in \d+\.\d s, as recorded", done.stdout)
    assert ("openai.NotFoundError: HTTP 404" if name == "all" else "  HTTP 404") in done.stdout
    assert ("the real openai client" if name == "all" else "openai is not installed here") in done.stdout
    assert "differs at message 1 (user)" in " ".join(done.stdout.split())


def test_without_the_proxy_every_command_says_what_to_install(installed: Installed, tmp_path: Path) -> None:
    """Nothing is downloaded, and nothing fails without advice."""
    programs = installed("base")
    for words in (["demo"], ["start"], ["run", "--", "true"]):
        done = run([programs / "llmproxy", *words], tmp_path, programs)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("llmproxy: the proxy needs mitmproxy, which is not installed here"), done.stderr
        assert "llmproxy-replay[proxy]" in done.stderr
    assert run([programs / "llmproxy", "ls"], tmp_path).returncode == 3  # no store yet, which is no matter of extras
    assert run([programs / "python", "-c", "from llmproxy import scenario, trace"], tmp_path).stderr == ""


def test_the_plugin_takes_the_proxy_on_the_path(installed: Installed, tmp_path: Path) -> None:
    """`pip install llmproxy-replay` beside pytest, the proxy as a tool: recorded once, replayed offline, no tool asked."""
    base, tool = installed("base"), installed("proxy")
    write(tmp_path, app=APP, test_x=TEST)
    stub = tmp_path / "stub"
    _tool(stub, "uvx", "touch asked; exit 1")
    with Provider([step(say="hello")]) as provider:
        env = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "sk-x", "PYTHONPATH": str(tmp_path)}
        words: list[str | Path] = [base / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        recorded = run([*words, "--llmproxy-mode", "once"], tmp_path, base, stub, tool, **env)
    replayed = run(words, tmp_path, base, stub, tool, PYTHONPATH=str(tmp_path))
    assert (recorded.returncode, replayed.returncode) == (0, 0), recorded.stdout + replayed.stdout + replayed.stderr
    assert "1 hit, 0 misses" in replayed.stdout
    assert "download" not in replayed.stdout
    assert not (tmp_path / "asked").exists()


def test_the_plugin_says_before_a_tool_may_download(installed: Installed, tmp_path: Path) -> None:
    """In the header, also of a run in several processes, with what avoids it; uvx is first asked for what it has."""
    base, tool = installed("base"), installed("proxy")
    write(tmp_path, app=APP, test_x=TEST)
    stub = tmp_path / "stub"
    call = f'shift 2; shift; exec {tool / "llmproxy"} "$@"'
    _tool(stub, "uvx", f'echo "$@" >> asked; case "$1" in --offline) exit 1;; esac\n{call}')
    words: list[str | Path] = [base / "python", "-m", "pytest", "-p", "no:cacheprovider"]
    done = run(words, tmp_path, base, stub, PYTHONPATH=str(tmp_path))
    header = done.stdout.partition("collected")[0]
    assert "may download one now" in header, done.stdout + done.stderr
    assert "LLMPROXY_COMMAND" in header
    assert "not in cassette" in done.stdout  # the proxy that came so was asked, and had no recording
    assert [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == ["--offline", "--from"]


def _tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_addon_works_in_somebody_elses_mitmproxy(installed: Installed, tmp_path: Path) -> None:
    """Mitmdump -s "$(llmproxy addon)", where only mitmproxy is installed."""
    script = run([installed("base") / "llmproxy", "addon"], tmp_path).stdout.strip()
    port = free_port()
    words = [installed("mitmproxy") / "mitmdump", "-s", script, "--listen-host", "127.0.0.1", "-p", str(port)]
    options = [f"confdir={tmp_path}", f"llmproxy_store={tmp_path / 'x.db'}"]
    command = [*map(str, words), *(word for option in options for word in ("--set", option))]
    child = Process(command, tmp_path, "mitmdump", environment(PYTHONUNBUFFERED="1"), cwd=tmp_path)
    try:
        child.wait_until(lambda: "listening" in child.stdout, 60)
        with Wire(port) as wire:
            answer = wire.ask(b"GET /_llmproxy/health HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET")
    finally:
        child.end(signal.SIGINT)
    assert answer.status == 200, child.stdout + child.stderr
