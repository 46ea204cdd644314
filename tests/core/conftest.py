"""Real requests for the tests of keys and redaction."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from llmproxy.core.providers.routing import RoutedRequest, route_by_host
from llmproxy.core.traffic.interaction import Request

VLLM = {"vllm": "http://localhost:8000/v1"}


@pytest.fixture(scope="session")
def real_requests(traffic: Path) -> list[tuple[Request, RoutedRequest]]:
    """Return every distinct recorded request to a host of the provider table."""
    yaml = pytest.importorskip("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[tuple[str, str, bytes], tuple[Request, RoutedRequest]] = {}
    for path in sorted(traffic.rglob("*.yaml")):
        for entry in yaml.load(path.read_text(encoding="utf-8"), loader).get("interactions") or []:
            sent = entry["request"]
            url = urlsplit(sent["uri"])
            target = url.path + ("?" + url.query if url.query else "")
            headers = tuple((name, str(value)) for name, values in sent["headers"].items() for value in values)
            method = sent["method"].upper()
            where = route_by_host(url.scheme, url.hostname or "", url.port, target, VLLM)
            if where is not None:
                body = sent.get("body")
                data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
                request = Request(method, where.target, headers, data)
                found.setdefault((method, sent["uri"], request.body), (request, where))
    assert found, "no request was read from the traffic"
    return list(found.values())
