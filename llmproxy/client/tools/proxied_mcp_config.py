"""Rewriting of an agent's MCP configuration for a run: stdio servers go through the shim, HTTP servers through the
proxy.

    {"mcpServers": {NAME: {"command", "args", "env"} | {"type": "http", "url", "headers"}}}

VS Code's "servers" likewise.

Pure: the input is never changed; the caller writes the copy. A server that cannot be proxied is kept, with a message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from llmproxy.client.child_env import is_proxy_url
from llmproxy.errors import SettingsError

_TABLES = ("mcpServers", "servers")
UPSTREAM = "mcp."
"""Prefix of upstream names for a configuration's servers."""
_REMOTE = frozenset({"http", "streamable-http", "streamableHttp"})


@dataclass(frozen=True, slots=True)
class ParsedMcpConfig:
    values: Mapping[str, Any]
    table: str
    names: Mapping[str, str]
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Upstreams for the proxy: name -> origin."""

    @property
    def servers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.values[self.table]
        return found

    def list_upstreams(self, url: str) -> dict[str, str]:
        """Return the upstreams for the proxy at `url`, without that proxy itself, which would call itself."""
        return {name: origin for name, origin in self.upstreams.items() if not is_proxy_url(origin, url)}


def parse_tools_config(text: str, name: str) -> ParsedMcpConfig:
    """Parse a configuration; `name` is its file's. Raises SettingsError."""
    hint = 'It looks like {"mcpServers": {"files": {"command": "npx", "args": ["-y", "some-server"]}}}.'
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--mcp-config {name} is no JSON: {error}", hint=hint) from error
    tables = [each for each in _TABLES if isinstance(values, dict) and isinstance(values.get(each), dict)]
    if not tables:
        raise SettingsError(f"--mcp-config {name} names no servers.", hint=hint)
    full = [each for each in tables if values[each]]
    if len(full) > 1:  # nobody knows which of them the agent reads
        raise SettingsError(
            f"--mcp-config {name} names servers twice, in {' and in '.join(full)}.", hint="Leave one of them out."
        )
    return _build_tools_config(values, [*full, *tables][0])


def build_config_from_servers(servers: Mapping[str, Any]) -> ParsedMcpConfig:
    return _build_tools_config({_TABLES[0]: dict(servers)}, _TABLES[0])


def _build_tools_config(values: Mapping[str, Any], table: str) -> ParsedMcpConfig:
    names = assign_recorded_server_names(values[table])
    found = {names[server]: origin for server, each in values[table].items() if (origin := _server_origin(each))}
    return ParsedMcpConfig(values, table, names, found)


def assign_recorded_server_names(servers: Iterable[str]) -> dict[str, str]:
    """Return the recorded name by server. Names are unique, so that no server gets another's answers."""
    plain = {each: UPSTREAM + re.sub(r"[^a-z0-9._-]+", "-", each.lower()) for each in servers}
    often = Counter(plain.values())
    return {
        each: name
        if name == UPSTREAM + each or (often[name] == 1 and each.isascii())
        else f"{name}-{hashlib.sha256(each.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        for each, name in plain.items()
    }


def _server_origin(server: object) -> str:
    """Return the origin of a server over HTTP; empty for others, and for a URL with a variable or a password."""
    url = server.get("url") if isinstance(server, dict) else None
    if not isinstance(server, dict) or not isinstance(url, str) or server.get("type", "http") not in _REMOTE:
        return ""
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and not parts.username and "$" not in url
        _ = parts.port
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}" if plain else ""


def rewrite(config: ParsedMcpConfig, url: str, session: str, shim: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a run's configuration, and a description of each server's change; `shim` are the words that start one."""
    made: dict[str, Any] = {}
    told = []
    for name, server in config.servers.items():
        made[name], how = _rewrite_server(name, server, config, (url.rstrip("/"), session), shim)
        told.append(f"{name}: {how}")
    return {**config.values, config.table: made}, told


def _rewrite_server(
    name: str, server: Any, config: ParsedMcpConfig, run: tuple[str, str], shim: Sequence[str]
) -> tuple[Any, str]:
    url, session = run
    command, args = (server.get("command"), server.get("args", [])) if isinstance(server, dict) else (None, None)
    if isinstance(command, str) and isinstance(args, list) and all(isinstance(each, str) for each in args):
        if "mcp" in args and "--" in args and command.rpartition("/")[2].startswith("llmproxy"):
            return server, "has the shim already"
        words = [*shim, "mcp", "--proxy", url, "--session", session, "--name", config.names[name], "--", command, *args]
        return {**server, "command": words[0], "args": words[1:]}, "over stdio, behind `llmproxy mcp`"
    if _server_origin(server):
        if is_proxy_url(server["url"], url):
            return (
                server,
                "LEFT AS IT IS: its address is the proxy's own, and what it asks is in the session that this names",
            )
        parts = urlsplit(server["url"])
        place = f"{url}/s/{quote(session, safe='')}/{config.names[name]}{parts.path or '/'}"
        return {**server, "url": place + (f"?{parts.query}" if parts.query else "")}, "over HTTP, behind the proxy"
    return server, f"LEFT AS IT IS, and asked for real: {_explain_unproxied(server)}"


def _explain_unproxied(server: object) -> str:
    if not isinstance(server, dict) or not ("command" in server or "url" in server):
        return "it has neither `command` nor `url`"
    if "command" in server:
        return "its `command` is no text, or its `args` are no list of texts"
    kind = server.get("type", "http")
    if kind not in _REMOTE:
        return f"its type is {str(kind)[:40]!r}, and only Streamable HTTP can be recorded"
    return "its `url` is no plain address: http or https, a host, no user and no variable"


def insert_config(command: Sequence[str], file: str, copy: str) -> tuple[str, ...]:
    """Return the command with the copy in place of the file, added for Claude Code. Raises SettingsError."""
    made = tuple(
        copy if word == file else f"{word[: -len(file)]}{copy}" if word.endswith(f"={file}") else word
        for word in command
    )
    if made != tuple(command):
        return made
    if command[0].replace("\\", "/").rpartition("/")[2] in ("claude", "claude.exe", "claude.cmd"):
        return (*command, "--mcp-config", copy, "--strict-mcp-config")
    hint = (
        f"Write it where the agent takes its configuration, as in: llmproxy run --mcp-config {file} -- ./agent --mcp "
        f"{file}"
    )
    raise SettingsError(f"--mcp-config {file}: the command does not name this file.", hint=hint)
