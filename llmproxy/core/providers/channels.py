"""Channels: what an interaction is about. A model (`llm`), a tool's server (`mcp`), any other service (`http`).

The channel is read off what every recording holds anyway, so it needs no column: services recorded by ``--record-host`` are providers
named ``http:HOST[:PORT]``, and what is said in MCP has an operation that begins with ``mcp:``.

    https://api.github.com/repos/x    intercepted           provider http:api.github.com
    /api.github.com/repos/x           by prefix             the same provider, so one replays the other
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llmproxy.core.providers.table import HTTP_PREFIX
from llmproxy.protocol import Channel
from llmproxy.values import host_matches

MCP_PREFIX = "mcp:"
"""How operations of MCP begin, ``mcp:tools/call``."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
_DEFAULT_PORTS = {"https": 443, "http": 80}


class NamedHost(NamedTuple):
    """A host that stands as the first segment of a path."""

    provider: str
    url: str
    rest: str
    """Path and query below it."""


def channel_of(provider: str, operation: str) -> Channel:
    """Return the channel of an interaction, by the names that are stored with it."""
    if operation.startswith(MCP_PREFIX):
        return Channel.MCP
    return Channel.HTTP if provider.startswith(HTTP_PREFIX) else Channel.LLM


def port_said(text: str) -> int | None:
    """Return the port that a text is; None for what is none."""
    plain = text.isascii() and text.isdecimal() and len(text) <= len("65535")
    return int(text) if plain and 0 < int(text) < 1 << 16 else None


def service(scheme: str, host: str, port: int | None) -> tuple[str, str]:
    """Return the name of the provider that a host becomes, and its URL; a port that goes without saying is left out."""
    bare = (f"[{host}]" if ":" in host and not host.startswith("[") else host).lower()
    said = "" if port in (None, _DEFAULT_PORTS.get(scheme)) else f":{port}"
    return f"{HTTP_PREFIX}{bare}{said}", f"{scheme}://{bare}{said}"


def host_in_path(target: str, patterns: Sequence[str]) -> NamedHost | None:
    """Return the host that a target names first, ``/api.github.com/repos``, if it is one to be recorded; None for any other path.

    It is asked by https, by http where another port than 443 is named.
    """
    path, mark, query = target.partition("?")
    first, slash, rest = path[1:].partition("/")
    host, colon, port = first.rpartition(":") if ":" in first else (first, "", "")
    if (colon and port_said(port) is None) or not ("." in host or colon or host in patterns):
        return None
    if not host_matches(patterns, host.lower()):
        return None
    number = port_said(port)
    scheme = "https" if number in (None, 443) else "http"
    name, url = service(scheme, host, number)
    return NamedHost(name, url, f"{slash + rest or '/'}{mark}{query}")
