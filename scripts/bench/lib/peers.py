"""The peers: how each is started to record and to replay, and what it does not do.

Each fills itself by recording through itself from the same upstream, and is asked afterwards whether its answers are the right ones;
`wrong` in the tables is what it got wrong. Commands and versions as of 2026-11.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib import install, traffic
from lib.machine import ROOT, Server, free_port, load, start

Role = str
"""``record`` or ``replay``."""
Command = Callable[[Role, int, int], Sequence[str]]
"""(role, port, upstream's port) -> what to start, in the peer's own folder."""


@dataclass(frozen=True)
class Peer:
    """One way to replay."""

    name: str
    needs: Callable[[], object]
    """Raises install.Failed, or OSError, if it cannot be had."""
    command: Command
    lacks: str
    """What it does not do that we do; a figure without this would mislead."""
    path: str = traffic.PATH
    health: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    most: int = 1_000
    """Recordings that it is asked to hold; more than that takes it minutes."""

    def start(self, role: Role, folder: Path, upstream: int) -> Server:
        """Start it in `folder`, where it keeps what it records."""
        port = free_port()
        command = self.command(role, port, upstream)
        return start(f"{self.name.replace(' ', '-')}-{role}", command, port, folder, env=self.env, health=self.health)

    def fill(self, folder: Path, upstream: int, count: int, *, stream: bool = False, base: int = 0) -> None:
        """Record `count` requests through it."""
        server = self.start("record", folder, upstream)
        try:
            load(
                what="throughput", port=server.port, connections=1, requests=count, numbers=count, path=self.path,
                stream=stream, base=base,
            )  # fmt: skip
        finally:
            server.stop()


def llmproxy(name: str = "llmproxy", tree: Path = ROOT, *options: str) -> Peer:
    """Return ourselves as a user types it, out of the source tree `tree`."""

    def command(role: Role, port: int, upstream: int) -> Sequence[str]:
        main = [
            sys.executable,
            "-m",
            "llmproxy",
            "start",
            "--mode",
            role,
            "--port",
            str(port),
            "--store",
            "llmproxy.db",
        ]
        return [*main, "--upstream", f"openai=http://127.0.0.1:{upstream}", *options]

    env = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    return Peer(name, lambda: None, command, "-", health="/_llmproxy/health", env=env, most=100_000)


def quiet(tree: Path = ROOT) -> Peer:
    """Return ourselves without the line for each request."""
    return replace(llmproxy("llmproxy --quiet", tree, "--quiet"), most=1)


def bare(**options: object) -> Peer:
    """Return the server that does nothing."""
    import json

    def command(_: Role, port: int, upstream: int) -> Sequence[str]:  # noqa: ARG001
        return [
            str(install.python("httptools")),
            str(Path(__file__).parent / "bare.py"),
            json.dumps({"port": port, **options}),
        ]

    lacks = "everything: parses HTTP and sends one constant answer"
    return Peer("bare server", lambda: install.python("httptools"), command, lacks, most=1 << 30)


def _aimock(role: Role, port: int, upstream: int) -> Sequence[str]:
    script = str(install.node("@copilotkit/aimock") / "dist" / "cli.js")
    common = ["node", script, "-p", str(port), "-f", ".", "--journal-max", "1", "--log-level", "silent"]
    return [
        *common,
        *(("--record", "--provider-openai", f"http://127.0.0.1:{upstream}") if role == "record" else ("--strict",)),
    ]


def _wiremock(role: Role, port: int, upstream: int) -> Sequence[str]:
    (jar,) = (install.node("wiremock") / "build").glob("*.jar")
    quick = [
        "--no-request-journal",
        "--disable-request-logging",
        "--disable-gzip",
        "--disable-banner",
    ]  # what its manual says for load
    common = [install.java(), "-jar", str(jar), "--port", str(port), "--root-dir", ".", "--bind-address", "127.0.0.1"]
    recording = ["--proxy-all", f"http://127.0.0.1:{upstream}", "--record-mappings", "--disable-banner"]
    return [*common, *(recording if role == "record" else quick)]


def _mitmdump(role: Role, port: int, upstream: int) -> Sequence[str]:
    common = [
        str(install.tool("mitmdump")), "-q", "--mode", f"reverse:http://127.0.0.1:{upstream}", "--listen-host", "127.0.0.1",
        "-p", str(port), "--set", "confdir=mitm",
    ]  # fmt: skip
    replay = ["--server-replay", "flows", "--set", "server_replay_reuse=true", "--set", "server_replay_extra=404"]
    replay += ["--set", "server_replay_refresh=false", "--set", "connection_strategy=lazy"]
    return [*common, *(("-w", "flows") if role == "record" else replay)]


def _ddapm(role: Role, port: int, upstream: int) -> Sequence[str]:
    program = install.python("ddapm-test-agent").parent / "ddapm-test-agent"
    folders = [
        "--web-ui-port",
        "0",
        "--vcr-cassettes-directory",
        ".",
        "--otlp-http-port",
        str(free_port()),
        "--otlp-grpc-port",
        str(free_port()),
    ]
    common = [str(program), "--port", str(port), "--vcr-provider-map", f"fake=http://127.0.0.1:{upstream}/", *folders]
    return [*common, "--log-level", "ERROR", *(("--vcr-ci-mode", "true") if role == "replay" else ())]


def _proxay(role: Role, port: int, upstream: int) -> Sequence[str]:
    script = str(install.node("proxay") / "dist" / "cli.js")
    common = ["node", script, "--mode", role, "--tapes-dir", ".", "--port", str(port)]
    return [
        *common,
        *(("--host", f"http://127.0.0.1:{upstream}") if role == "record" else ("--exact-request-matching",)),
    ]


def _agent_vcr(role: Role, port: int, upstream: int) -> Sequence[str]:
    program = install.python("coding-agent-vcr").parent / "llmreplay"
    common = [str(program), role, "--cassette", "cassette", "--port", str(port)]
    return [*common, *(("--upstream", f"http://127.0.0.1:{upstream}") if role == "record" else ())]


OTHERS = (
    Peer(
        "aimock",
        lambda: install.node("@copilotkit/aimock"),
        _aimock,
        "matches a substring of the last user message (system prompt, tools, earlier turns do not count) and writes the answer anew; "
        "no recorded bytes, headers or chunk borders",
        health="/health",
    ),
    Peer(
        "WireMock",
        lambda: (install.java(), install.node("wiremock")),
        _wiremock,
        "general HTTP stubs, tried one after another; a stub it recorded ignores further members and array order; streams come as one piece",
        health="/__admin/health",
    ),
    Peer(
        "mitmdump",
        lambda: install.tool("mitmdump"),
        _mitmdump,
        "matches the raw body, so white space or a new id is a miss; a stream comes as one piece; nothing is redacted",
    ),
    Peer(
        "ddapm-test-agent",
        lambda: install.python("ddapm-test-agent"),
        _ddapm,
        "key of 8 hex digits, no sequences (a repeat gets the same answer), a stream comes as one piece, nothing is redacted",
        path="/vcr/fake" + traffic.PATH,
    ),
    Peer(
        "proxay",
        lambda: install.node("proxay"),
        _proxay,
        "a tape in YAML, written anew for each request (1,000 take it minutes); streams come as one piece; tokens are stored in clear",
        most=1,
    ),
    Peer(
        "coding-agent-vcr",
        lambda: install.python("coding-agent-vcr"),
        _agent_vcr,
        "five routes; no status, headers or chunks of the answer kept, errors not recorded, repeats collapse to the last",
        env={"LLMREPLAY_HMAC_KEY": "bench"},
    ),
)


def named(names: str) -> list[Peer]:
    """Return the peers that a comma-separated list names; ``all`` and ``none`` are understood."""
    wanted = [] if names == "none" else names.split(",")
    unknown = [name for name in wanted if name != "all" and name not in {peer.name for peer in OTHERS}]
    if unknown:
        raise SystemExit(f"unknown peer {', '.join(unknown)}; there are: {', '.join(peer.name for peer in OTHERS)}")
    return [peer for peer in OTHERS if "all" in wanted or peer.name in wanted]


def available(peers: Sequence[Peer]) -> list[Peer]:
    """Return those that can be had, and say loudly which cannot."""
    found = []
    for peer in peers:
        if why := install.missing(peer.needs):
            print(f"SKIPPED {peer.name}: {why}", flush=True)
        else:
            found.append(peer)
    return found
