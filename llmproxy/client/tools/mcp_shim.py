"""`llmproxy mcp -- server args...`: the shim in place of an MCP stdio server, before a running proxy, or an engine in
this process on the store; `core.control.mcp_shim_endpoint` defines the calls of both.

A client waits for every MCP server that it starts. So the arguments are parsed here, without typer and the settings,
whose import takes longer than all the shim's work.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from llmproxy.client.control import is_socket_idle
from llmproxy.client.tools.stdio_proxy import RecordReplayShimBackend, StdioProxy, make_client_line_writer
from llmproxy.core.secrets.entropy import (
    is_path,
    is_random_value,
    list_secret_env_values,
    may_be_value_of_secret_variable,
)
from llmproxy.errors import MachineError, SettingsError, redact_url_passwords
from llmproxy.protocol import CONTROL_PREFIX, DEFAULT_SESSION, RUN_VARIABLE, URL_VARIABLE, Decision, McpStdioLineOutcome

if TYPE_CHECKING:
    from llmproxy.core.engine.engine import Engine
    from llmproxy.core.sessions.exchange import Exchange
    from llmproxy.settings import Settings

_SECRET_ARGUMENT = re.compile(
    r"(token|secret|passw(or)?d|passphrase|credentials?|(api|access|auth|private)_?key|_pat|authorization"
    r"|(?<![a-z])(pass|pwd?))$",
    re.IGNORECASE,
)
"""Narrower than for variables: ``--max-tokens`` and ``--sort-key`` name no secrets."""
_POSSIBLE_SECRET_ARGUMENT = re.compile(r"--?(?:key|auth|p)")
_LOGIN_ARGUMENT = re.compile(r"--?(?:user|auth|u)")
_NAMED_VALUE = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w-]*)(?:=|:\s*)(?P<value>.+)", re.DOTALL)
_SCHEMES = ("Basic", "Bearer", "Token")
_NO_PROGRAM = re.compile(r"-|[A-Za-z_]\w*=|[A-Z0-9]+_[A-Z0-9_]+$|$")
"""Options, and the variables of ``env`` and ``docker run -e``."""
_PROXY_URL = re.compile(r"http://([^/@]*@)?(\[[^/@]+\]|[^\s/:@\[]+)(:[1-9]\d{0,4})?([/?#].*)?", re.IGNORECASE)
"""One that names its host: the secrets of the environment must go to no other."""
SHORTEST_SECRET = 8


class McpShimOptions(NamedTuple):
    command: tuple[str, ...]
    name: str = ""
    proxy: str = ""
    session: str = ""
    mode: str | None = None
    cassette: str | None = None
    store: str | None = None
    faults: str | None = None


_OPTIONS = {f"--{name}": name for name in McpShimOptions._fields[1:]}


def parse_mcp_shim_arguments(words: Sequence[str]) -> McpShimOptions | None:
    """Parse the words after ``llmproxy mcp``; None unless they are just our options, ``--`` and a command."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at] != "--":
        flag, has_value, value = words[at].partition("=")
        if not has_value:
            at += 1
            value = words[at] if at < len(words) else "--"
        if flag not in _OPTIONS or (value.startswith("-") and not has_value):
            return None
        found[_OPTIONS[flag]] = value
        at += 1
    command = tuple(words[at + 1 :])
    return McpShimOptions(command, **found) if command else None


def run_mcp_shim(asked: McpShimOptions, env: Mapping[str, str]) -> int:
    """Serve the client on stdin and stdout until it leaves; return the exit code. Raises LLMProxyError."""
    command, secrets = split_secrets_from_command(asked.command)
    tmp = env.get("TMPDIR", "/tmp").rstrip("/")  # noqa: S108 - compared with
    places = {"cwd": str(Path.cwd()), "home": str(Path.home()), "tmp": tmp}
    host = _make_backend(asked, asked.name or choose_mcp_server_name(command, places), env, secrets)
    gc.enable()  # `__main__` put it off
    own = {name: value for name, value in env.items() if name not in (URL_VARIABLE, RUN_VARIABLE)}
    shim = StdioProxy(asked.command, own, host, make_client_line_writer())
    signal.signal(signal.SIGTERM, shim.on_sigterm)
    with suppress(KeyboardInterrupt):
        return shim.serve(lambda size: os.read(0, size))
    return 0


def split_secrets_from_command(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without the secrets among them (``KEY=v``, ``--token v``, ``Authorization: v``), and those."""
    words, secrets, before = list[str](), list[str](), ""
    for word in command:
        found = _NAMED_VALUE.fullmatch(word)
        name, value = (found["name"], found["value"]) if found else (before, word)
        secret = _find_argument_secret(name, value) or _find_argument_secret(before, word)
        secrets += [secret] if secret else []
        words.append(word.replace(secret, "") if secret else word)
        before = word if word.startswith("-") else ""
    return words, secrets


def _find_argument_secret(name: str, value: str) -> str:
    """Return the secret in an argument's value, or an empty text."""
    if value.startswith("-") or is_path(value):
        return ""
    if _SECRET_ARGUMENT.search(name.replace("-", "_")):
        parts = value.split()
        return parts[-1 if parts[0] in _SCHEMES else 0] if parts else ""  # a shell's command goes on after it
    if _LOGIN_ARGUMENT.fullmatch(name) and may_be_value_of_secret_variable(value):
        password = value.partition(":")[2]
        if len(password) >= SHORTEST_SECRET and may_be_value_of_secret_variable(password):
            return password
    return value if _POSSIBLE_SECRET_ARGUMENT.fullmatch(name) and is_random_value(value, SHORTEST_SECRET) else ""


def _make_backend(
    asked: McpShimOptions, server: str, env: Mapping[str, str], secrets: Sequence[str]
) -> RecordReplayShimBackend:
    secrets = [value for value in (*list_secret_env_values(env), *secrets) if len(value) >= SHORTEST_SECRET]
    given = {name: getattr(asked, name) for name in ("mode", "cassette", "store", "faults")}
    flags = {name: value for name, value in given.items() if value is not None}
    if url := asked.proxy or env.get(URL_VARIABLE, ""):
        whole = redact_url_passwords(url if "//" in url else f"http://{url}")
        if flags:
            raise SettingsError(f"--{', --'.join(flags)}: a proxy runs at {whole}, and it has options of its own.")
        if not _PROXY_URL.fullmatch(url):
            shown, meant = (whole, "http://HOST:PORT") if "//" in url else (whole.removeprefix("http://"), whole)
            raise SettingsError(f"{'--proxy' if asked.proxy else URL_VARIABLE} {shown}: write {meant}")
        named = asked.session or env.get(RUN_VARIABLE, "") or DEFAULT_SESSION
        return ProxyClientShimBackend(url, named, server, f"{os.getpid()}-{os.urandom(4).hex()}", secrets)
    from llmproxy.core.providers.upstreams_and_rate_limits import add_env_upstreams
    from llmproxy.settings import load

    return EngineShimBackend(add_env_upstreams(load(flags, env, Path.cwd()), env).settings, server, env, secrets)


_RUNNERS = frozenset({
    "npx", "uvx", "bunx", "pnpx", "npm", "pnpm", "yarn", "bun", "deno", "node", "python", "python3", "uv", "pipx",
    "docker", "podman",
    "run", "exec", "dlx", "tool", "env", "sh", "bash", "cmd",
})  # fmt: skip
"""Programs, and their subcommands, that only run another program."""
_VERSION = re.compile(r"@[\w.^~-]+$")


def choose_mcp_server_name(command: Sequence[str], places: Mapping[str, str]) -> str:
    """Return a name for the server of `command`, independent of `places` (cwd, home, tmp)."""
    words = [word for word in command if not _NO_PROGRAM.match(word)]
    first = words[0] if words else "server"
    meant = next((word for word in words if _strip_path_and_version(word) not in _RUNNERS), first)
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", _strip_path_and_version(meant)).strip("-.") or "server"
    return f"{shown[:60]}-{_digest_command(command, places)}"


def _strip_path_and_version(word: str) -> str:
    """Return the base name of a path or package: ``@scope/server-files@1.2`` gives server-files."""
    bare = word.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return re.sub(r"\.exe$", "", _VERSION.sub("", bare), flags=re.IGNORECASE) or bare


def _digest_command(command: Sequence[str], places: Mapping[str, str]) -> str:
    paths = ((path, name) for name, path in places.items() if len(path) > 1)
    longest_first = sorted(paths, key=lambda pair: -len(pair[0]))
    told = [_strip_path_and_version(command[0]) if command else ""]
    for word in command[1:]:
        for path, name in longest_first:
            word = re.sub(re.escape(path) + r"(?![\w.-])", f"<{name}>", word)  # noqa: PLW2901 - one after the other
        told.append(word)
    return hashlib.sha256("\0".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:8]


TIMEOUT = 60.0
"""Seconds."""


class ProxyClientShimBackend:
    """A running proxy. One call at a time, on one open connection, whose end ends the session."""

    def __init__(self, url: str, session: str, server: str, connection: str, secrets: Sequence[str] = ()) -> None:
        """Serve one client of `server`; `secrets` are values that must not be stored."""
        from http.client import HTTPConnection

        parts = urlsplit(url)
        self._url = redact_url_passwords(url)
        self._http = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT)
        self._path = f"{CONTROL_PREFIX}sessions/{quote(session, safe='')}/tools"
        self._about: dict[str, Any] = {"connection": connection, "server": server}
        self._first: dict[str, Any] = {"secrets": list(secrets)} if secrets else {}

    def on_line(self, line: bytes) -> McpStdioLineOutcome:
        told = self._post_event({"line": line.decode("utf-8", "surrogatepass"), "held": True} | self._first)
        # Another proxy that was started in its place must not take us for a new client.
        self._first = {"known": True}
        out = str(told["out"]).encode("utf-8", "surrogatepass")
        return McpStdioLineOutcome(
            out, told["forward"], told.get("late", 0), told.get("gone") is True, told.get("again", 0)
        )

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        self._post_event({"number": number, "lines": _lines_to_json(lines)} | ({"left": True} if left else {}))

    def on_server_loss(self, number: int, why: str) -> None:
        self._post_event({"number": number, "lost": why})

    def end(self, unasked: Sequence[tuple[int, bytes]], *, in_order: bool) -> None:  # noqa: ARG002 (as above)
        self._post_event({"end": True, "lines": _lines_to_json(unasked)})
        self._http.close()

    def _post_event(self, what: Mapping[str, object]) -> dict[str, Any]:
        """Send one call, without retry: half an answer is an error. Raises MachineError."""
        from http.client import HTTPException

        connection = self._http
        if not is_socket_idle(connection.sock):  # the proxy closed it after hours without a call
            connection.close()
        try:
            body = json.dumps({**self._about, **what})
            connection.request("POST", self._path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            why = str(error) or type(error).__name__
            raise MachineError(f"the proxy at {self._url} does not answer: {why}") from error
        if answer.status != 200:
            said = value.get("error", {}) if isinstance(value, dict) else {}
            raise MachineError(str(said.get("message", f"the proxy at {self._url} says {answer.status}")))
        return dict(value)


def _lines_to_json(lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, str]]:
    return [(number, line.decode("utf-8", "surrogatepass")) for number, line in lines]


class _InProcessContext:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record_begin(self, exchange: Exchange) -> None:
        """Do nothing: no other client can wait for it."""

    def report_exchange_end(self, exchange: Exchange, status: int) -> None:
        self._engine.accounting.record_end(exchange, status)

    def store_later(self, exchange: Exchange, *, proper: bool = True) -> None:
        """Store an answer and report it. Raises LLMProxyError."""
        if exchange.decision is Decision.RECORD:
            self._engine.writer.store_answer(exchange, proper=proper)
        self._engine.accounting.record_end(exchange, exchange.recording.status)


class EngineShimBackend:
    """An engine in this process, for one client of one server, without a proxy."""

    def __init__(self, settings: Settings, server: str, env: Mapping[str, str], secrets: Sequence[str]) -> None:
        """Open store and session; `secrets` are values that must not be stored. Raises LLMProxyError."""
        from llmproxy.advice import SuggestedCommandTemplate
        from llmproxy.client.child_env import detect_cwd_home_date_variables
        from llmproxy.core.bindings import build_run_variable
        from llmproxy.core.control.mcp_shim_endpoint import ProxySideStdioSession
        from llmproxy.core.engine.engine import Engine
        from llmproxy.core.engine.fault_injection import FaultFeature
        from llmproxy.core.faults.parsing import load_faults
        from llmproxy.core.keys.user_rules import Rules
        from llmproxy.core.secrets.redact import Redactor
        from llmproxy.core.sessions.exchange import EngineConfig
        from llmproxy.core.sessions.journal import CallDecisionJournalWriter
        from llmproxy.settings import format_shown_path

        config = EngineConfig(
            mode=settings.mode, cassette=settings.cassette, exhausted=settings.exhausted, bind=settings.bind,
            store=settings.store, shown=format_shown_path(settings.store),
            again=SuggestedCommandTemplate("llmproxy mcp", " -- SERVER"),
            rules=Rules.from_settings(settings.normalize),
            faults=load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed) if settings.faults else None,
        )  # fmt: skip
        self._journal = CallDecisionJournalWriter.open(Path(f"{config.store}.state.db"), time.time)
        holder = f"llmproxy mcp {os.getpid()} on {platform.node()}"
        self._engine = Engine(
            config, redactor=Redactor(), journal=self._journal, now=time.time, clock=time.monotonic, holder=holder
        )
        self._faults = self._engine.get_feature(FaultFeature)
        found = [build_run_variable(**each) for each in detect_cwd_home_date_variables(env, Path.cwd(), git=False)]
        session = self._engine.sessions.open_session(settings.cassette, mode=settings.mode, run_variables=found)
        self._session = session.name
        line = ProxySideStdioSession(self._engine, _InProcessContext(self._engine), session.name, server)
        self.on_line, self.on_server_answer = line.on_line, line.on_server_answer
        self.on_server_loss, self._on_client_end = line.on_server_loss, line.on_client_end
        for value in secrets:
            self._engine.redactor.learn_declared_secret(value)

    def end(self, unasked: Sequence[tuple[int, bytes]], *, in_order: bool) -> None:
        try:
            self._on_client_end(unasked)
            idle = self._faults.explain_idle_rules()
            if in_order:
                self._engine.sessions.close_session(self._session)
        finally:
            self._engine.close()
            self._journal.close()
        sys.stderr.writelines(f"llmproxy: mcp: {reason}\n" for reason in idle.values())
