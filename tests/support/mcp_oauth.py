"""A server of tools behind OAuth, and the server that gives tokens for it: what both answer, without a socket."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

SAID = "Hello"
"""What its tool returns."""


def answer(
    at: str, issuer: str, target: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, dict[str, str], object]:
    """Return status, header fields and JSON of what is asked at the origin `at`, whose tokens come from `issuer`."""
    path, _, query = target.partition("?")
    if path == "/.well-known/oauth-protected-resource/mcp":
        return 200, {}, {"resource": f"{at}/mcp", "authorization_servers": [issuer]}
    if path == "/.well-known/oauth-authorization-server":
        ends = {f"{name}_endpoint": f"{issuer}/{name}" for name in ("authorization", "token", "registration")}
        return 200, {}, {"issuer": issuer, **ends, "response_types_supported": ["code"]}
    if path == "/registration":
        return 201, {}, {**json.loads(body), "client_id": secrets.token_hex(8), "client_secret": "real"}
    if path == "/authorization":
        asked = dict(parse_qsl(query))
        code = urlencode({"code": secrets.token_hex(8), "state": asked["state"]})
        return 302, {"location": f"{asked['redirect_uri']}?{code}"}, {}
    if path == "/token":
        return 200, {}, {"access_token": "real", "token_type": "Bearer", "expires_in": 3600}
    if headers.get("authorization") != "Bearer real":
        there = f'Bearer resource_metadata="{at}/.well-known/oauth-protected-resource/mcp"'
        return 401, {"www-authenticate": there}, {"error": "invalid_token"}
    call = json.loads(body or "{}")
    if "id" not in call:
        return 202 if call else 405, {}, {}
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": SAID}]},
    }
    return 200, {}, {"jsonrpc": "2.0", "id": call["id"], "result": results[call["method"]]}
