"""Real recorded traffic, exchange by exchange, as the tests of the core want it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from llmproxy.core.providers.routing import RoutedRequest, route_by_host
from llmproxy.core.traffic.interaction import Headers


@dataclass(frozen=True)
class Exchange:
    name: str
    host: str
    route: RoutedRequest | None
    method: str
    asked: bytes
    status: int
    headers: Headers
    body: bytes

    @property
    def content_type(self) -> str:
        return next((value for name, value in self.headers if name.lower() == "content-type"), "")


def _bytes(value: object) -> bytes:
    if isinstance(value, dict):
        return json.dumps(value).encode()
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def exchanges(folder: Path) -> Iterator[Exchange]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.rglob("*.yaml")):
        for row in (yaml.load(path.read_bytes(), loader) or {}).get("interactions", []):
            url = urlsplit(row["request"]["uri"])
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            host = url.hostname or ""
            body = _bytes(row["response"]["body"].get("string"))
            yield Exchange(
                name=path.name,
                host=f"{host}:{url.port}" if url.port else host,
                route=route_by_host(url.scheme, host, url.port, target),
                method=row["request"]["method"].upper(),
                asked=_bytes(row["request"]["body"]),
                status=row["response"]["status"]["code"],
                headers=tuple((name, values[0]) for name, values in row["response"]["headers"].items()),
                body=gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body,
            )
