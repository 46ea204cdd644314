"""client x (base URL, interception) x (plain, stream, tools, error): each way recorded, and replayed as the other way recorded it.

Four acts for each client, each in a process of its own: record by base URL, record by interception (`llmproxy start --forward`), upstream away,
replay by interception what came by base URL, replay by base URL what came by interception. The environments are those that
`llmproxy run` makes (`llmproxy.client.child_env`), with nothing of this machine's in them: in replay no key, and no network, since
the upstream has stopped and a proxy that replays connects to nobody; what knocks at the upstream's port is counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from llmproxy.client.child_env import TrustedCertificateFiles, plan_env
from tests.provider import Provider, Seen
from tests.support import Proxy, proxy
from tests.support.process import clean_env

from .drivers import CANARY, KEYS, Driver, Outcome, run, script

WAYS = ("base URL", "interception")
COLUMNS = ("plain", "stream", "tools", "error")
PROVIDERS = ("openai", "anthropic", "gemini", "bedrock")
AT_ONCE = 2
WIDTH = 9
"""Columns of a cell."""
SIGNED = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-secret-that-only-signs",
    "AWS_SESSION_TOKEN": f"{CANARY}session", "AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1",
}  # fmt: skip
"""AWS's own way to say who asks: SigV4, anew for each request."""
BEARER = {"AWS_BEARER_TOKEN_BEDROCK": f"{CANARY}bedrock"} | {name: SIGNED[name] for name in SIGNED if "REGION" in name}
"""A Bedrock API key."""


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """A client of the matrix: a driver, and how its cases are called."""

    name: str
    driver: Driver
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """By column, where other than the column's name behind the prefix: its case."""
    extra: tuple[str, ...] = ()
    """Cases beyond the four columns."""
    keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By way, where other than KEYS: what it records with."""
    tls: bool = False
    """Records by base URL over https at the port."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By way: what a user should know."""
    older: bool = False
    """Whether it is the older of two versions of one SDK."""

    @property
    def cases(self) -> list[str]:
        return [self.case(column) for column in COLUMNS] + list(self.extra)

    def case(self, column: str) -> str:
        return self.renamed.get(column, f"{self.prefix}{column}")

    @property
    def node(self) -> bool:
        return self.driver.environment == "node"


def _client(name: str, environment: str, program: str, prefix: str = "", **more: object) -> Client:
    return Client(name, Driver(name, environment, program, (), {}), prefix, **more)  # type: ignore[arg-type]


BEDROCK_NOTE = (
    "recorded with a Bedrock API key over https at the port: a SigV4 signature is made for the host that is asked"
)
LITELLM_NOTE = "litellm asks api.openai.com alone for usage in streams; the stream asks for it both ways here"
CLIENTS = (
    _client("openai-py", "newest", "drive_openai.py"),
    _client("anthropic-py", "newest", "drive_anthropic.py"),
    _client("genai-py", "newest", "drive_genai.py"),
    _client(
        "litellm", "previous", "drive_litellm.py", "openai_", renamed={"stream": "openai_stream_usage"},
        notes=dict.fromkeys(WAYS, LITELLM_NOTE),
    ),
    _client(
        "boto3 Bedrock", "newest", "drive_bedrock.py", extra=("invoke", "invoke_stream"), tls=True,
        keys={"base URL": BEARER, "interception": SIGNED}, notes={"base URL": BEDROCK_NOTE},
    ),
    _client(
        "boto3 1.43 Bedrock", "previous", "drive_bedrock.py", extra=("invoke", "invoke_stream"), tls=True,
        keys={"base URL": BEARER, "interception": SIGNED}, notes={"base URL": BEDROCK_NOTE}, older=True,
    ),
    _client("langchain-openai", "newest", "drive_langchain.py"),
    _client("langchain-openai 1.0", "previous", "drive_langchain.py", older=True),
    _client("pydantic-ai", "newest", "drive_pydantic_ai.py"),
    _client("pydantic-ai 1", "previous", "drive_pydantic_ai.py", older=True),
    _client("openai-js", "node", "drive_openai.mjs"),
    _client("anthropic-js", "node", "drive_anthropic.mjs"),
    _client("genai-js", "node", "drive_genai.mjs"),
    _client("ai-sdk", "node", "drive_ai.mjs", "chat_"),
    _client("fetch", "node", "drive_fetch.mjs"),
    _client("curl", "newest", "drive_curl.py"),
)  # fmt: skip
NEWEST = tuple(client for client in CLIENTS if not client.older)
"""One of each SDK."""


@cache
def node_version() -> str:
    """Return Node's version, ``v20.20.2``; empty if there is none."""
    node = shutil.which("node")
    return subprocess.run([node, "-v"], capture_output=True, text=True, check=False).stdout.strip() if node else ""


def node_has_env_proxy() -> bool:
    """Return whether Node's fetch can obey HTTPS_PROXY: 22.21 and later of 22, 24 and later."""
    found = re.match(r"v(\d+)\.(\d+)", node_version())
    major, minor = (int(found[1]), int(found[2])) if found else (0, 0)
    return major >= 24 or (major == 22 and minor >= 21)


def node_note() -> str:
    """Return what Node needed so that it could be intercepted."""
    if node_has_env_proxy():
        return ""
    return f"Node {node_version()} has no env proxy (22.21 and 24 have), so the preload of llmproxy gives it one"


@dataclass
class Matrix:
    folder: Path
    clients: tuple[Client, ...]
    recorded: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """By the way that recorded."""
    replayed: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """By the way that replayed: what the *other* way recorded."""
    seen: list[Seen] = field(default_factory=list)
    late_connections: int = 0
    proxies: list[Proxy] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "llmproxy.db"

    def perform(self) -> Matrix:
        with Provider(script(), check=False) as up:
            with self._proxy("record", up.url) as px:
                self.proxies.append(px)
                for way in WAYS:
                    self.recorded[way] = self._all(partial(self._run, px, way, way))
            self.seen = up.requests
        with Provider([], port=up.port, check=False) as counter:
            with self._proxy("replay", counter.url) as px:
                self.proxies.append(px)
                for way in WAYS:
                    self.replayed[way] = self._all(partial(self._run, px, way, other(way)))
            self.late_connections = counter.connections
        return self

    def _proxy(self, mode: str, url: str) -> AbstractContextManager[Proxy]:
        env = {"XDG_DATA_HOME": str(self.folder / "data")}
        return proxy(mode, self.store, upstreams=dict.fromkeys(PROVIDERS, url), options=("--forward",), env=env)

    def _all(self, act: Callable[[Client], Outcome]) -> dict[str, Outcome]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip((c.name for c in self.clients), pool.map(act, self.clients), strict=True))

    def _run(self, px: Proxy, way: str, recorded_by: str, client: Client) -> Outcome:
        record = px.mode == "record"
        env = environment(px, client, way, f"{client.name} by {recorded_by}", record=record)
        label = f"{'record' if record else 'replay'}-{way.partition(' ')[0]}"
        return run(client.driver, client.cases, env, self.folder, label)

    def verdict(self, client: Client, way: str, case: str) -> str:
        """Say ``yes``, or what went wrong."""
        recorded = self.recorded[way][client.name][case]
        expected, got = self.recorded[other(way)][client.name][case], self.replayed[way][client.name][case]
        if case.endswith("error"):
            if "That cannot be" not in recorded.get("error", {}).get("message", ""):
                return f"recording: not the provider's error: {recorded}"
        elif "result" not in recorded:
            return f"recording: {recorded['error']}"
        keys = ("result", "error")
        if [got.get(key) for key in keys] != [expected.get(key) for key in keys]:
            return f"replay differs: {got.get('error') or got.get('result')} for {expected.get('error') or expected.get('result')}"
        return "yes"


def other(way: str) -> str:
    return WAYS[1 - WAYS.index(way)]


def environment(px: Proxy, client: Client, way: str, session: str, *, record: bool) -> dict[str, str]:
    """Return what the client's process gets: what `llmproxy run` would give it, and keys where it records."""
    health = px.control("health")
    intercepted = way == "interception"
    how = TrustedCertificateFiles(health["ca"], health["ca_bundle"]) if intercepted else None
    keys = {"AWS_EC2_METADATA_DISABLED": "true", **(client.keys.get(way, KEYS) if record else {})}
    kind = {"replay": not record, "base_urls": not intercepted, "interception": how}
    given = plan_env(px.url, session, clean_env(keys), **kind)  # type: ignore[arg-type]
    env = keys | given.changes
    if client.tls and record and not intercepted:
        secure = env["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"].replace("http://", "https://", 1)
        env |= {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": secure, "AWS_CA_BUNDLE": health["ca"]}
    return env


def table(matrix: Matrix, missing: Mapping[str, str]) -> list[str]:
    """Write the matrix; `missing` are environments that are not there, with the reason."""
    notes: list[str] = []
    lines = [
        f"{'':<22}" + "".join(f"{way:<{WIDTH * len(COLUMNS)}}" for way in WAYS),
        f"{'client':<22}" + "".join(f"{column:<{WIDTH}}" for _ in WAYS for column in COLUMNS),
    ]
    for client in CLIENTS:
        cells = []
        for way in WAYS:
            note = client.notes.get(way) or (node_note() if client.node and way == "interception" else "")
            if note and note not in notes:
                notes.append(note)
            mark = f" [{notes.index(note) + 1}]" if note else ""
            for column in COLUMNS:
                if client not in matrix.clients:
                    cells.append("not run")
                    continue
                word = matrix.verdict(client, way, client.case(column))
                cells.append(word + mark if word == "yes" else "NO")
        lines.append(f"{client.name:<22}" + "".join(f"{cell:<{WIDTH}}" for cell in cells))
    lines += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return lines + [f"not run: {reason}" for reason in missing.values() if reason]
