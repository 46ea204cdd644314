"""Tests in other languages use the control API and replay offline; the snippets of docs/clients.md are run as they stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request

import pytest

from tests.provider import Provider, Reply, Step
from tests.support import Proxy, needed, proxy
from tests.support.process import ROOT, clean_env
from tests.support.proxy import DIRECT

HERE = Path(__file__).parent
PAGE = (ROOT / "docs/clients.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ADDRESS = "http://127.0.0.1:8080"
QUESTION = "How is the weather?"


def program(name: str) -> str:
    """Return where a program is; without it the test is skipped loudly."""
    return shutil.which(name) or needed(f"{name} is not installed", name)


def run(folder: Path, px: Proxy, *command: str) -> str:
    """Run a client in an environment that knows the proxy and no key; it must succeed. Returns what it printed."""
    env = clean_env({"LLMPROXY_URL": px.url, "NO_PROXY": "127.0.0.1"})
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{px.stdout}\n{px.stderr}"
    return done.stdout


def tell(url: str, body: object) -> bytes:
    """POST JSON."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with DIRECT.open(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the cassette `weather`: two answers to one question, and a stream."""
    path = tmp_path_factory.mktemp("clients") / "llmproxy.db"
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": QUESTION}]}
    steps = (Step(Reply("Rain.")), Step(Reply("Sun.")), Step(Reply("Snow."), stream=True))
    with Provider(steps) as p, proxy("record", path, upstreams={"openai": p.url}) as px:
        px.control("sessions", {"name": "weather"})
        for more in ({}, {}, {"stream": True}):
            tell(f"{px.session_url('weather')}/v1/chat/completions", asked | more)
        assert px.control("sessions/weather/close", {})["recorded"] == 3
        p.finish()
    return path


@pytest.fixture
def px(store: Path) -> Iterator[Proxy]:
    """Run a replay proxy; the provider is gone."""
    with proxy("replay", store) as running:
        yield running
    assert running.exit_code == 0, running.stderr


@pytest.mark.slow
def test_node_suite(px: Proxy) -> None:
    """node:test with fetch: sessions, streams, misses, bindings, fifty at once."""
    said = run(HERE, px, program("node"), "--test", "--test-reporter=tap", "suite.test.mjs")
    assert re.search(r"^# pass 8$", said, re.MULTILINE)
    assert re.search(r"^# fail 0$", said, re.MULTILINE)


def test_shell_script(px: Proxy) -> None:
    program("curl")
    assert "shell: all passed" in run(HERE, px, program("sh"), "client.sh")


@pytest.mark.slow
def test_java_program(px: Proxy, tmp_path: Path) -> None:
    """Java's own HTTP client, which invites every server to HTTP/2."""
    assert "java: all passed" in run(tmp_path, px, program("java"), str(HERE / "Client.java"))


def snippet(language: str, px: Proxy) -> str:
    """Return the page's snippet of a language, at this proxy's address."""
    (found,) = (text for name, text in SNIPPETS if name == language)
    assert ADDRESS in found
    return str(found.replace(ADDRESS, px.url))


RUN = {
    "python": ("weather.py", [sys.executable, "weather.py"]),
    "java": ("Weather.java", ["java", "Weather.java"]),
    "sh": ("weather.sh", ["sh", "weather.sh"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("language", RUN)
def test_the_page_is_true(language: str, px: Proxy, tmp_path: Path) -> None:
    """Each snippet runs as it stands, replays offline, and closes its session."""
    name, command = RUN[language]
    (tmp_path / name).write_text(snippet(language, px), "utf-8")
    run(tmp_path, px, command[0] if language == "python" else program(command[0]), *command[1:])
    assert px.control("sessions") == {"sessions": []}
    px.end()
    assert "1 hit, 0 misses" in px.stdout


@pytest.mark.slow
def test_the_go_snippet(px: Proxy, tmp_path: Path) -> None:
    """Run by Go where it is installed."""
    go = shutil.which("go")
    if go is None:
        needed("Go is not installed", "go", rare=True)
    (tmp_path / "go.mod").write_text("module weather\n\ngo 1.21\n")
    (tmp_path / "weather_test.go").write_text(snippet("go", px))
    run(tmp_path, px, go, "test", "./...")


def test_every_snippet_is_run_or_read() -> None:
    assert {name for name, _ in SNIPPETS} == {*RUN, "go"}


def test_the_page_names_every_endpoint() -> None:
    """What a test can say is all there."""
    document = json.loads((ROOT / "llmproxy/data/openapi.json").read_text("utf-8"))
    said = PAGE.replace("sessions/weather", "sessions/{name}").replace("sessions/worker-1", "sessions/{name}")
    missing = [
        path for path in document["paths"] if path.removeprefix("/_llmproxy/").removesuffix("/unbind") not in said
    ]
    assert "`ui/`" in said
    assert [path for path in missing if not path.startswith("/_llmproxy/ui/")] == []
