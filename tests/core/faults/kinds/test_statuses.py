"""Refusals in the words of each provider."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from llmproxy.core.faults import KINDS
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.interaction import Response, header
from tests.core.faults.cases import call
from tests.support.narrowing import known

EXPECTED = {
    "openai": ("error", "code", "rate_limit_exceeded"),
    "anthropic": ("error", "type", "rate_limit_error"),
    "gemini": ("error", "status", "RESOURCE_EXHAUSTED"),
}


def refuse(kind: str, family: Family, **values: float) -> Response:
    """Return the answer that a fault makes."""
    return known(known(KINDS[kind].do(call(family=family), values)).response)


@pytest.mark.parametrize("family", get_args(Family))
def test_a_429_says_when_to_come_back(family: Family) -> None:
    """In the provider's own body, with retry-after in whole seconds."""
    found = refuse("http-429", family, retry_after=1.5)
    assert (found.status, header(found.headers, "retry-after")) == (429, "2")
    if family in EXPECTED:
        outer, inner, value = EXPECTED[family]
        assert json.loads(found.body)[outer][inner] == value
    assert "llmproxy" not in found.body.decode()
    assert header(found.headers, "x-should-retry") is None


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("status", [500, 502, 503, 529])
def test_the_other_refusals(family: Family, status: int) -> None:
    """JSON of the provider's, but for a gateway's 502, which is a page."""
    found = refuse(f"http-{status}", family)
    assert found.status == status
    assert found.body.startswith(b"<html>" if status == 502 else b"{")


def test_bedrock_names_the_exception() -> None:
    """AWS's SDKs choose it by this header."""
    found = refuse("http-429", "bedrock", retry_after=1)
    assert (header(found.headers, "x-amzn-errortype") or "").startswith("ThrottlingException")
