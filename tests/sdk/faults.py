"""Each kind of fault against each SDK of the matrix: what it does with a call that met a fault once, as the proxy saw it.

One proxy records every client's plain, streamed and tool-calling cases by base URL; another replays them, offline. One process for each
client goes through all kinds: before each case it announces it, and the session gets that fault for its first call. `refused` and
`tls-failure` meet more than one session, so each has a proxy, and each client a process, of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

from llmproxy.core.faults.kinds import KINDS
from llmproxy.protocol import Channel
from tests.provider import Provider
from tests.support import Proxy, proxy
from tests.support.services import QuietHandler, serving

from .drivers import run, script
from .matrix import PROVIDERS, Client, environment

AT_ONCE = 2
PLAIN, STREAM, TOOLS, TOOLS_STREAM = "plain", "stream", "tools", "tools_stream"
UNDISTURBED = ""
"""In the place of a kind: no fault."""
OF_CALLS = ("truncated-arguments", "duplicate-call", "unknown-tool")
"""Kinds that need a tool call."""
STREAMS_TOOLS = ("openai-py", "anthropic-py", "openai-js", "anthropic-js")
"""Clients whose driver has a case for it."""
APART = ("refused", "tls-failure")
BRIEF: Mapping[str, Mapping[str, float]] = {
    "slow-start": {"seconds": 2}, "slow-tokens": {"seconds": 0.2}, "stall": {"seconds": 3},
}  # fmt: skip
"""Where the defaults would take long: no client here has a limit below."""


@dataclass(frozen=True, slots=True)
class Seen:
    calls: int
    """Requests that the proxy got."""
    injected: int
    line: Mapping[str, Any]
    """What the driver printed."""


@dataclass
class FaultLab:
    folder: Path
    clients: tuple[Client, ...]
    kinds: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if Channel.LLM in kind.channels)
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)
    """By client, then by case with its kind: ``plain@http-429``."""

    def perform(self) -> FaultLab:
        with Provider(script(), check=False) as up, self._proxy("record", up.url) as px:
            self._all(partial(self._record, px))
        with self._proxy("replay", DEAD) as px, _conductor(px) as conductor:
            self._all(partial(self._inject, px, conductor))
        for kind in set(APART) & set(self.kinds):
            with self._proxy("replay", DEAD, "--faults", kind) as px:
                for client in self.clients:
                    self._strike_apart(px, kind, client)
        return self

    def _proxy(self, mode: str, url: str, *more: str) -> Any:
        env = {"XDG_DATA_HOME": str(self.folder / "data")}
        upstreams = dict.fromkeys(PROVIDERS, url)
        return proxy(mode, self.folder / "llmproxy.db", upstreams=upstreams, options=("--forward", *more), env=env)

    def _all(self, act: Any) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(act, self.clients))

    def _record(self, px: Proxy, client: Client) -> None:
        env = environment(px, client, "base URL", session_of(client), record=True)
        cases = [client.case(column) for column in columns(client)]
        outcome = run(client.driver, cases, env, self.folder, "record")
        if wrong := [line for line in outcome.values() if "error" in line]:
            msg = f"{client.name} cannot be recorded: {wrong[0]}"
            raise RuntimeError(msg)

    def _inject(self, px: Proxy, conductor: Conductor, client: Client) -> None:
        name = session_of(client)
        env = environment(px, client, "base URL", name, record=False)
        px.control("sessions", {"name": name, "run_variables": {}})
        env["ANNOUNCE"] = f"{conductor.url}/{name}"
        cases = list(self._cases(client))
        outcome = run(client.driver, cases, env, self.folder, "strike", seconds=len(cases) * 20)
        conductor.note(name)
        self.seen[client.name] = {case: conductor.seen(name, case, outcome[case]) for case in cases}

    def _cases(self, client: Client) -> Iterator[str]:
        for column in columns(client):
            yield f"{client.case(column)}@{UNDISTURBED}"
            of_calls = column in (TOOLS, TOOLS_STREAM)
            for kind in self.kinds:
                if kind not in APART and (kind in OF_CALLS) == of_calls:
                    yield f"{client.case(column)}@{kind}"

    def _strike_apart(self, px: Proxy, kind: str, client: Client) -> None:
        # Only a new connection has a handshake: the first call's.
        way, found = ("interception", (PLAIN,)) if kind == "tls-failure" else ("base URL", (PLAIN, STREAM))
        name, cases = session_of(client), [client.case(column) for column in found]
        env = environment(px, client, way, name, record=False)
        outcome = run(client.driver, cases, env, self.folder, kind)
        calls = _control(px, f"calls?session={name}")["calls"]
        for case in cases:
            self.seen[client.name][f"{case}@{kind}"] = Seen(len(calls), 1, outcome[case])


def columns(client: Client) -> tuple[str, ...]:
    return (PLAIN, STREAM, TOOLS, *((TOOLS_STREAM,) if client.name in STREAMS_TOOLS else ()))


def session_of(client: Client) -> str:
    return client.name.replace(" ", "-")


def _control(px: Proxy, path: str) -> Any:
    until = time.monotonic() + 20
    while True:
        try:
            return px.control(path)
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


DEAD = "http://127.0.0.1:9"
"""Nobody is there."""


class Conductor:
    """Hears which case comes next in which session, and gives the session its fault; counts what came of the one before."""

    def __init__(self, px: Proxy, url: str) -> None:
        self._px, self.url = px, url
        self._running: dict[str, tuple[str, int]] = {}
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def announce(self, session: str, case: str) -> None:
        """Stand before the first call again, with one fault for it."""
        self.note(session)
        arrived = self._px.control(f"sessions/{session}/reset", {})["arrived"]
        kind = case.partition("@")[2]
        rule = {"kind": kind, "call": 1, **BRIEF.get(kind, {})}
        self._px.control(f"sessions/{session}/faults", {"faults": [rule] if kind else []})
        self._running[session] = case, arrived

    def note(self, session: str) -> None:
        if running := self._running.pop(session, None):
            case, arrived = running
            calls = self._px.control(f"calls?session={session}&after={arrived}")["calls"]
            self._counts[session, case] = len(calls), sum(bool(each["fault"]) for each in calls)

    def seen(self, session: str, case: str, line: Mapping[str, Any]) -> Seen:
        return Seen(*self._counts.get((session, case), (0, 0)), line)


@contextmanager
def _conductor(px: Proxy) -> Iterator[Conductor]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - as the library names it
            case = self.rfile.read(int(self.headers["content-length"])).decode()
            conductor.announce(self.path.strip("/"), case)
            self.send_response(204)
            self.end_headers()

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        conductor = Conductor(px, url)
        yield conductor


NOTHING, RETRIES, RAISES, WAITS, QUIET = "", "retries", "raises", "waits", "quiet"
MISSED = "no recorded response"
"""Stands in the message of who went on with what came, and asked what nobody recorded."""


def word(lab: FaultLab, client: Client, column: str, kind: str) -> str:
    """Return what a client did with a call that was struck; empty where there was nothing to strike."""
    seen = lab.seen[client.name].get(f"{client.case(column)}@{kind}")
    if seen is None or not seen.injected:
        return NOTHING
    if error := seen.line.get("error"):
        return QUIET if MISSED in error["message"] else RAISES
    sound = lab.seen[client.name][f"{client.case(column)}@{UNDISTURBED}"]
    if seen.line["result"] != sound.line["result"]:
        return QUIET
    return WAITS if kind in BRIEF else RETRIES


def cell(lab: FaultLab, client: Client, kind: str) -> str:
    """Say it for the plain and for the streamed call; once where both are alike, or one cannot be struck."""
    found = (PLAIN, STREAM) if kind not in OF_CALLS else (TOOLS, TOOLS_STREAM)
    words = [each for column in found if (each := word(lab, client, column, kind))]
    return " / ".join(dict.fromkeys(words)) or "-"


def summarize(outcomes: Mapping[str, str]) -> str:
    """Return client -> outcome as a cell: what most do, then the others by name ("retries; raises: fetch, curl")."""
    groups: dict[str, list[str]] = {}
    for client, outcome in outcomes.items():
        groups.setdefault(outcome, []).append(client)
    usual, *others = sorted(groups, key=lambda outcome: -len(groups[outcome]))
    return "; ".join([usual, *(f"{outcome}: {', '.join(groups[outcome])}" for outcome in others)])


def outcome_in(summary: str, client: str) -> str:
    """Return what a cell of the table says of one client."""
    usual, *others = summary.split("; ")
    named = (each.partition(": ") for each in others)
    return next((outcome for outcome, _, clients in named if client in clients.split(", ")), usual)


def tables(lab: FaultLab) -> str:
    """Write the table in Markdown: what clients do at each kind."""
    together: dict[str, list[str]] = {}
    for name in lab.kinds:
        summary = summarize({client.name: cell(lab, client, name) for client in lab.clients})
        together.setdefault(summary, []).append(f"`{name}`")
    lines = ["| faults | SDKs |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {each} |" for each, names in together.items()]
    return "\n".join(lines) + "\n"
