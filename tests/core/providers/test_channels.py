"""Channels by name, and hosts in paths."""

from __future__ import annotations

import pytest

from llmproxy.core.providers.routing import family_of
from llmproxy.core.providers.table import NamedHost, channel_of, host_in_path, service
from llmproxy.protocol import Channel


@pytest.mark.parametrize(("provider", "operation", "channel"), [
    ("openai", "chat.completions", Channel.LLM),
    ("local", "/anything", Channel.LLM),
    ("http:api.github.com", "/repos", Channel.HTTP),
    ("http:mcp.example.com", "mcp:tools/call", Channel.MCP),
    ("tools", "mcp:initialize", Channel.MCP),
])  # fmt: skip
def test_the_channel_is_read_off_the_names(provider: str, operation: str, channel: Channel) -> None:
    """Whatever is stored says what it is about."""
    assert channel_of(provider, operation) is channel


@pytest.mark.parametrize(("target", "patterns", "found"), [
    ("/api.x.com/a/b?q=1", ("api.x.com",), NamedHost("http:api.x.com", "https://api.x.com", "/a/b?q=1")),
    ("/api.x.com", ("*.x.com",), NamedHost("http:api.x.com", "https://api.x.com", "/")),
    ("/API.x.com/A", ("api.x.com",), NamedHost("http:api.x.com", "https://api.x.com", "/A")),
    ("/127.0.0.1:9/a", ("127.0.0.1",), NamedHost("http:127.0.0.1:9", "http://127.0.0.1:9", "/a")),
    ("/api.x.com:443/a", ("*",), NamedHost("http:api.x.com", "https://api.x.com", "/a")),
    ("/db/a", ("db",), NamedHost("http:db", "https://db", "/a")),
    ("/v1/models", ("*",), None),
    ("/openai/v1/models", ("*",), None),
    ("/other.com/a", ("api.x.com",), None),
    ("/http:api.x.com/a", ("*",), None),
    ("/", ("*",), None),
    ("/127.0.0.1:0443/a", ("*",), NamedHost("http:127.0.0.1", "https://127.0.0.1", "/a")),
    *(
        (f"/127.0.0.1:{port}/a", ("*",), None)
        for port in ("", "0", "65536", "99999", "9" * 5_000, "-1", "+80", "\u0661", "8_0")
    ),
])  # fmt: skip
def test_a_path_may_name_a_host_to_be_recorded(target: str, patterns: tuple[str, ...], found: NamedHost | None) -> None:
    """Only a host that was named to be recorded is taken for one; providers' prefixes are none."""
    assert host_in_path(target, patterns) == found


@pytest.mark.parametrize(("where", "named"), [
    (("https", "a.b", 443), ("http:a.b", "https://a.b")),
    (("http", "a.b", 80), ("http:a.b", "http://a.b")),
    (("http", "a.b", 8080), ("http:a.b:8080", "http://a.b:8080")),
    (("https", "::1", 9), ("http:[::1]:9", "https://[::1]:9")),
])  # fmt: skip
def test_a_host_becomes_a_provider_of_its_own(where: tuple[str, str, int], named: tuple[str, str]) -> None:
    """Two services never share a name; a port that goes without saying is left out."""
    assert service(*where) == named
    assert family_of(named[0], "/x") == "http"
