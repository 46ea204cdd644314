"""A proxy on a free port: `llmproxy start` as a process, or the same proxy in a thread of the test's own process.

with proxy("record", tmp_path / "x.db", upstreams={"openai": p.url}) as px:
    OpenAI(base_url=px.url + "/v1")
assert px.exit_code == 0

with near("replay", tmp_path / "x.db") as px:
    OpenAI(base_url=px.url + "/v1")

Where tests run side by side the process is forked from one that has loaded mitmproxy already (tests/support/forked.py); tests that ask about
the process itself, its pid or its death, take `alone`, which starts as a user's does. `near` is for tests that ask about somebody else and need a proxy for it: it starts in 0.05 s of processor time,
a forked one in 0.2, one alone in 0.8.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from .process import Process, clean_env, free_port

DIRECT = build_opener(ProxyHandler({}))
"""Asks our own servers, whatever proxy variables this machine has set."""


def ask_chat(base: str, text: str = "hi", headers: Mapping[str, str] | None = None) -> int:
    """Ask for a chat at what a client calls its base URL; returns the status."""
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    fields = {"content-type": "application/json", **(headers or {})}
    try:
        with DIRECT.open(Request(f"{base}/chat/completions", body, fields), timeout=60) as answer:
            answer.read()  # who leaves after the head is recorded as having left
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


class Listening:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def session_url(self, name: str) -> str:
        """Base URL of a session (`name` as it stands in a path)."""
        return f"{self.url}/s/{name}"

    def control(self, path: str, body: object = None) -> Any:
        """GET, or POST of a JSON body, at /_llmproxy/`path`; returns the parsed answer."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}/_llmproxy/{path}", data, {"content-type": "application/json"})
        with DIRECT.open(request, timeout=60) as answer:
            return json.loads(answer.read())


class Proxy(Process, Listening):
    mode: str
    store: Path

    def is_healthy(self) -> bool:
        """Ask its health; the port that it took for itself it says first."""
        if not self.port and (said := re.search(r"^llmproxy: http://[^ ]*:([0-9]+) ", self.stdout, re.MULTILINE)):
            self.port = int(said[1])
        try:
            with DIRECT.open(f"{self.url}/_llmproxy/health", timeout=60) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def files(self) -> list[Path]:
        """Every file that it wrote: store, journal, output (for canary tests)."""
        return [self.out_path, self.err_path, *sorted(self.store.parent.glob(self.store.name + "*"))]


def start(
    mode: str,
    store: Path,
    *,
    upstreams: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    name: str | None = None,
    patience: float = 30,
    alone: bool = False,
) -> Proxy:
    """Start a proxy and wait until it serves, at most `patience` seconds; the caller ends it. Its output goes beside the store, as `name`.out and .err."""
    # Without a port it takes a free one itself: one that was free a moment ago may be another test's by now.
    port = port or (free_port() if "--quiet" in options else 0)  # a quiet one does not say which
    environment = clean_env({"PYTHONUNBUFFERED": "1"} | dict(env or {}))
    program = [] if alone else shlex.split(environment.get("LLMPROXY_COMMAND", ""))
    program = program or [sys.executable, "-m", "llmproxy"]
    command = [*program, "start", "--mode", mode, "--port", str(port), "--store", str(store)]
    for provider, url in (upstreams or {}).items():
        command += ["--upstream", f"{provider}={url}"]
    px = Proxy([*command, *options], store.parent, name or f"proxy-{mode}", environment)
    px.port, px.mode, px.store = port, mode, store
    px.wait_until(px.is_healthy, patience)
    return px


@contextmanager
def proxy(mode: str, store: Path, **more: Any) -> Iterator[Proxy]:
    """Run a proxy for the block; ended by SIGINT, its `exit_code` and output can be looked at afterwards. Options: see `start`."""
    px = start(mode, store, **more)
    try:
        yield px
    finally:
        px.end(signal.SIGINT)


alone = partial(proxy, alone=True)
"""One whose process is started as a user's is."""
_ONE = threading.Lock()


class Near(Listening):
    def __init__(self, port: int) -> None:
        self.port = port


@contextmanager
def near(mode: str, store: Path, *, upstreams: Mapping[str, str] | None = None, **options: Any) -> Iterator[Near]:
    """Run a proxy in this process for the block; one at a time, since mitmproxy keeps its options in a global."""
    from tests.mitm.rig import Rig

    assert _ONE.acquire(blocking=False), "there is one near already: let one of the two be a process"
    try:
        with Rig(mode, store, upstreams, **options) as rig:
            yield Near(rig.port)
    finally:
        _ONE.release()
