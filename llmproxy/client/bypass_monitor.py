"""Traffic that bypasses the proxy: tables of runtimes and clients, how to make them use it, and detection for `doctor`.

The tables are measured (WIRE.md 4.1); entries from documentation only say "documented". `ProxyBypassMonitor` samples
a process and its descendants on Linux through /proc, without privileges, so a short connection can be missed: each
report is a fact, no report proves nothing. Host lookups of Python and Node (`data/watch_host_lookups.*`) need no DNS.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from llmproxy.core.providers.upstreams_and_rate_limits import provider_of_host
from llmproxy.file_io import DATA


class KnownBypassingClient(NamedTuple):
    name: str
    advice: str
    program: str = ""
    package: str = ""
    configured: str = ""
    """Pattern of a word of the command that shows that it is already configured."""


CLIENTS = (
    KnownBypassingClient(
        "Codex",
        "it reads no variable: codex exec -c model_provider=x -c model_providers.x.name=x -c "
        "model_providers.x.base_url="
        '"$OPENAI_BASE_URL" -c model_providers.x.env_key=OPENAI_API_KEY -c model_providers.x.wire_api=responses ... '
        "(in `sh -c '...'`, so that the variable is the command's)",
        program=r"codex(\.js|\.exe)?",
        configured=r"base_url",
    ),
    KnownBypassingClient(
        "pi",
        'it reads no variable: {"providers": {"openai": {"baseUrl": "..."}}} in ~/.pi/agent/models.json, with what '
        "$OPENAI_BASE_URL says in `sh -c '...'`",
        package="@mariozechner/pi-coding-agent",
    ),
    KnownBypassingClient(
        "@ai-sdk/google",
        "it reads no variable: createGoogleGenerativeAI({ baseURL: process.env.GOOGLE_GEMINI_BASE_URL && "
        "process.env.GOOGLE_GEMINI_BASE_URL + '/v1beta' })",
        package="@ai-sdk/google",
    ),
    KnownBypassingClient(
        "Mistral's client",
        'it reads no variable: pass server_url (serverURL in JavaScript), os.environ["LLMPROXY_URL"] + "/mistral"',
        package="mistralai",
    ),
    KnownBypassingClient(
        "Ollama for JavaScript",
        "it reads no variable: new Ollama({ host: process.env.OLLAMA_HOST })",
        package="ollama",
    ),
)  # fmt: skip

_RUNS = r"(?:^|[;|&(]\s*|\b(?:npx|exec|env|nice)\s+)(?:[^\s;|&()]*[/\\])?(?:{0})(?=\s|$)"
"""Pattern of the beginning of a command: a prompt may contain the name as well."""
_PACKAGE = r"(?<![\w@/.-]){0}(?![\w/.-])"
PROJECTS = ("package.json", "pyproject.toml", "requirements.txt")


def find_known_bypassers(command: Sequence[str], files: Mapping[str, str]) -> list[KnownBypassingClient]:
    """Return the known clients in a command, or in its folder's project (name -> text of PROJECTS)."""
    words = [word for each in command for word in re.split(r"[\s;|&()'\"]+", each)]
    names = {word.replace("\\", "/").rpartition("/")[2] for word in words}
    return [
        client
        for client in CLIENTS
        if (client.program and any(re.fullmatch(client.program, name) for name in names))
        or (client.package and re.search(_PACKAGE.format(re.escape(client.package)), "\n".join(files.values())))
    ]


def is_client_configured_in_command(client: KnownBypassingClient, command: Sequence[str]) -> bool:
    return bool(client.configured) and any(re.search(client.configured, each) for each in command)


def list_known_bypasser_warnings(command: Sequence[str]) -> list[str]:
    shell = len(command) > 2 and command[1] == "-c"
    text = command[2] if shell else " ".join(command[:2])
    found = [each for each in CLIENTS if each.program and re.search(_RUNS.format(each.program), text)]
    known = [each for each in found if not is_client_configured_in_command(each, command)]
    return [f"llmproxy: {each.name} will go past the proxy, to its provider: {each.advice}" for each in known]


class LanguageRuntimeAdvice(NamedTuple):
    name: str
    programs: str
    base_url: str
    intercept: str


RUNTIMES = (
    LanguageRuntimeAdvice(
        "Python", r"python[0-9.]*|pypy[0-9.]*|pytest|uv|uvx|uvicorn|gunicorn|celery|poetry|tox|nox",
        "SDKs read the base URL when a client is made, modules often when they are imported: set it before Python "
        "starts. A base_url= argument, and load_dotenv(override=True), win over it.",
        "httpx and the SDKs read HTTPS_PROXY and SSL_CERT_FILE; requests and boto3 REQUESTS_CA_BUNDLE and "
        "AWS_CA_BUNDLE. Past it go: aiohttp without trust_env=True, a urllib3 PoolManager, httpx with trust_env=False "
        "or a transport of its own.",
    ),
    LanguageRuntimeAdvice(
        "Node", r"node|nodejs|npm|npx|pnpm|yarn|tsx|ts-node|vitest|jest|next|vite",
        "openai, @anthropic-ai/sdk, @google/genai and the AI SDK read it when they are loaded. @ai-sdk/google and "
        "Ollama's client read none: pass baseURL (host) in code.",
        "Node 24 (and 22.21) goes through HTTPS_PROXY only with NODE_USE_ENV_PROXY=1, an older one by the file that "
        "NODE_OPTIONS requires; both trust NODE_EXTRA_CA_CERTS (llmproxy run --intercept sets all three). The AWS "
        "SDK's HTTP/2 handler ignores it.",
    ),
    LanguageRuntimeAdvice(
        "Java", r"java|javac|mvn|mvnw|gradle|gradlew|sbt|kotlin",
        "openai-java reads OPENAI_BASE_URL only through fromEnv(); else -Dopenai.baseUrl, or baseUrl() in code.",
        "The JVM reads no proxy variable: -Dhttps.proxyHost and -Dhttps.proxyPort in JAVA_TOOL_OPTIONS, with "
        "-Djavax.net.ssl.trustStore (llmproxy run --intercept sets them; a build tool that forks tests may drop them).",
    ),
    LanguageRuntimeAdvice(
        "Go", r"go|gopls",
        "openai-go and genai read their base-URL variables; others take option.WithBaseURL in code.",
        "HTTPS_PROXY is read, but never for 127.0.0.1. SSL_CERT_FILE works on Linux only: elsewhere put the "
        "certificate into the system's store. (documented)",
    ),
    LanguageRuntimeAdvice(
        "Ruby", r"ruby[0-9.]*|irb|rake|bundle|rspec|rails",
        "ruby-openai takes uri_base in code; the official gem reads OPENAI_BASE_URL.",
        "Net::HTTP reads https_proxy and SSL_CERT_FILE. (documented)",
    ),
    LanguageRuntimeAdvice(
        ".NET", r"dotnet|pwsh",
        "Pass the endpoint in code: OpenAIClientOptions.Endpoint.",
        "HTTPS_PROXY is read; SSL_CERT_FILE on Linux, elsewhere the system's store. (documented)",
    ),
    LanguageRuntimeAdvice(
        "curl", r"curl|wget",
        'Write the variable into the address: curl "$OPENAI_BASE_URL/chat/completions".',
        "HTTPS_PROXY and CURL_CA_BUNDLE are read, unless --noproxy or --cacert says otherwise.",
    ),
    LanguageRuntimeAdvice(
        "Deno or Bun", r"deno|bun|bunx",
        "npm packages read the same variables as under Node; Deno needs --allow-env for it.",
        "HTTPS_PROXY is read; Deno trusts DENO_CERT, Bun NODE_EXTRA_CA_CERTS. (documented)",
    ),
    LanguageRuntimeAdvice(
        "a coding agent", r"claude|codex|copilot|gemini|qwen",
        "Claude Code reads ANTHROPIC_BASE_URL, the Gemini CLI GOOGLE_GEMINI_BASE_URL with an API key, Copilot CLI "
        "COPILOT_PROVIDER_BASE_URL, Qwen Code OPENAI_BASE_URL. Codex has openai_base_url in ~/.codex/config.toml.",
        "All read HTTPS_PROXY; Claude Code trusts NODE_EXTRA_CA_CERTS, Codex CODEX_CA_CERTIFICATE. Signed in with an "
        "account, they can only be intercepted. (documented)",
    ),
    LanguageRuntimeAdvice(
        "a container or another machine", r"docker|docker-compose|podman|kubectl|ssh|sudo|su|vagrant|systemd-run",
        "It does not inherit variables, and its 127.0.0.1 is its own: start the proxy with --host 0.0.0.0 and a "
        "token, and pass `llmproxy env --url http://host.docker.internal:8080 --format dotenv` with --env-file.",
        "The same, and the certificate must be mounted.",
    ),
)  # fmt: skip

OTHER = LanguageRuntimeAdvice(
    "this program", r".*",
    "If it reads no base-URL variable, look for a setting or an argument of that name.",
    "If it reads no proxy variable (Rust programs with built-in certificates cannot be told either), only its base URL "
    "is left.",
)  # fmt: skip


def find_runtime_advice(program: str) -> LanguageRuntimeAdvice:
    name = program.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")
    return next((runtime for runtime in RUNTIMES if re.fullmatch(runtime.programs, name)), OTHER)


PAUSE = 0.02
"""Sampling interval in seconds."""
WEB = frozenset({80, 443})
_OPEN = frozenset({"01", "02"})
"""TCP states of /proc/net/tcp: established, and SYN sent."""
Address = tuple[str, int]


@dataclass(slots=True)
class BypassMonitoredProcess:
    pid: int
    program: str
    env: dict[str, str] | None = None
    """Its environment when first seen; None if not readable."""
    connected: set[Address] = field(default_factory=set)
    looks: int = 0
    """Samples that include it: after only one, the process may still have been starting."""


class ProxyBypassMonitor:
    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.seen: dict[int, BypassMonitoredProcess] = {}
        self._proc = proc
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_supported(self) -> bool:
        return (self._proc / "self" / "net" / "tcp").exists()

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._watch, args=(pid,), name="process monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def find_bypasses(self, proxy: Address, upstreams: frozenset[Address] = frozenset()) -> dict[int, list[Address]]:
        def is_past(at: Address) -> bool:
            return at != proxy and (at in upstreams or (at[1] in WEB and not _is_local(at[0])))

        found = {pid: sorted(filter(is_past, seen.connected)) for pid, seen in self.seen.items()}
        return {pid: past for pid, past in found.items() if past}

    def _watch(self, pid: int) -> None:
        while not self._stop.is_set():
            self.poll(pid)
            self._stop.wait(PAUSE)

    def poll(self, pid: int) -> None:
        for each in [pid, *self._list_descendants(pid)]:
            with contextlib.suppress(OSError, ValueError):  # it ended while we looked, or is another user's
                self._record_process(each)

    def _record_process(self, pid: int) -> None:
        folder = self._proc / str(pid)
        program = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        if not program:  # it has ended, and nobody waited for it yet
            return
        seen = self.seen.get(pid)
        if seen is None or seen.program != program:  # a shell became what it executes
            seen = self.seen[pid] = BypassMonitoredProcess(pid, program, None, seen.connected if seen else set())
        seen.looks += 1
        seen.env = seen.env or _read_environ(folder)
        seen.connected |= set(self._list_connections(folder))

    def _list_connections(self, folder: Path) -> Iterator[Address]:
        inodes = set()
        for link in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = link.readlink().name
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        if not inodes:
            return
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / "net" / name).read_text("ascii").splitlines()[1:]:
                    words = line.split()
                    if words[9] in inodes and words[3] in _OPEN:
                        yield _parse_address(words[2])

    def _list_descendants(self, pid: int) -> list[int]:
        children: dict[int, list[int]] = {}
        for folder in self._proc.iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    parent = int((folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(folder.name))
        found: list[int] = []
        todo = [pid]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found


def _read_environ(folder: Path) -> dict[str, str] | None:
    with contextlib.suppress(OSError):
        text = (folder / "environ").read_bytes().decode(errors="replace")
        return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
    return None


def _parse_address(text: str) -> Address:
    """Parse ``0100007F:1F90``: words of four bytes in the machine's order, little-endian on all our platforms."""
    number, _, port = text.partition(":")
    raw = bytes.fromhex(number)
    address = ipaddress.ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)


def _is_local(host: str) -> bool:
    if (address := _parse_ip_address(host)) is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _parse_ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


# --- what Python and Node say ----------------------------------------------------------------------------------------


class ObservedHostLookup(NamedTuple):
    pid: int
    program: str
    host: str
    port: int
    """0 if unknown."""


def build_dns_watch_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    path = folder / "python"
    path.mkdir(exist_ok=True)
    shutil.copy(DATA / "watch_host_lookups.py", path / "sitecustomize.py")
    required = f"--require {json.dumps(str(DATA / 'watch_host_lookups.cjs'))}"  # Node unquotes as JSON does
    return {
        "LLMPROXY_DOCTOR": str(folder / "lookups"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH", "")])),
        "NODE_OPTIONS": " ".join(filter(None, [env.get("NODE_OPTIONS", ""), required])),
    }


def read_observed_host_lookup_log(folder: Path) -> Iterator[ObservedHostLookup]:
    log = folder / "lookups"
    for line in log.read_text("utf-8", "replace").splitlines() if log.is_file() else ():
        pid, host, port, program, *_ = [*line.split("\t"), "", "", ""]
        if pid.isdecimal() and host:
            yield ObservedHostLookup(int(pid), program, host, int(port) if port.isdecimal() else 0)


def find_bypasses_by_dns_lookup(
    lookups: Iterable[ObservedHostLookup], machine: str = ""
) -> dict[int, tuple[str, list[Address]]]:
    """Return program and looked-up hosts by process; port 0: only resolved. `machine` is our host name."""
    found: dict[int, tuple[str, dict[str, int]]] = {}
    for each in lookups:
        _, ports = found.setdefault(each.pid, (each.program, {}))
        if not _is_local(each.host) and each.host.partition(".")[0] != machine:
            ports[each.host] = ports.get(each.host) or each.port
    return {pid: (program, past) for pid, (program, ports) in found.items() if (past := _list_bypassed_hosts(ports))}


def _list_bypassed_hosts(ports: Mapping[str, int]) -> list[Address]:
    past = []
    for host, port in ports.items():
        if port in WEB or provider_of_host(host, None) is not None:
            past.append((host, port or 443))
        elif not port and _parse_ip_address(host) is None:
            past.append((host, 0))
    return past
