"""Refusals in the words of each provider."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from llmproxy.core.faults import KINDS
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.interaction import header
from tests.core.faults.cases import call
from tests.support.narrowing import known

EXPECTED = {
    "openai": ("error", "code", "rate_limit_exceeded"),
    "anthropic": ("error", "type", "rate_limit_error"),
    "gemini": ("error", "status", "RESOURCE_EXHAUSTED"),
}


@pytest.mark.parametrize("family", get_args(Family))
def test_a_429_says_when_to_come_back(family: Family) -> None:
    """In the provider's own body, with retry-after in whole seconds."""
    broken = known(KINDS["http-429"].do(call(family=family), {"retry_after": 1.5}))
    assert broken.response is not None
    assert broken.response.status == 429
    assert header(broken.response.headers, "retry-after") == "2"
    body = json.loads(broken.response.body)
    if family in EXPECTED:
        outer, inner, value = EXPECTED[family]
        assert body[outer][inner] == value
    assert "llmproxy" not in broken.response.body.decode()
    assert header(broken.response.headers, "x-should-retry") is None


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("status", [500, 502, 503, 529])
def test_the_other_refusals(family: Family, status: int) -> None:
    """JSON of the provider's, but for a gateway's 502, which is a page."""
    broken = known(KINDS[f"http-{status}"].do(call(family=family), {}))
    assert broken.response is not None
    assert broken.response.status == status
    assert broken.response.body.startswith(b"<html>" if status == 502 else b"{")


def test_bedrock_names_the_exception() -> None:
    """AWS's SDKs choose it by this header."""
    broken = known(KINDS["http-429"].do(call(family="bedrock"), {"retry_after": 1}))
    assert broken.response is not None
    assert (header(broken.response.headers, "x-amzn-errortype") or "").startswith("ThrottlingException")
