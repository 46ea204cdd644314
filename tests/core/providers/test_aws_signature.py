"""Requests that are signed for the proxy's own address."""

from __future__ import annotations

import pytest

from llmproxy.core.providers.hosts import SignedForUs, check_signature

AWS = "https://bedrock-runtime.eu-central-1.amazonaws.com"
SIGNED = (
    "Authorization",
    "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-central-1/bedrock/aws4_request, SignedHeaders=host",
)


def test_a_signature_for_our_address_is_refused_with_what_to_do() -> None:
    """The message names both hosts, and the ways that work."""
    with pytest.raises(SignedForUs) as raised:
        check_signature((("host", "127.0.0.1:8080"), SIGNED), AWS)
    text = str(raised.value)
    assert "127.0.0.1:8080" in text
    assert "bedrock-runtime.eu-central-1.amazonaws.com" in text
    assert "--intercept" in text
    assert "AWS_BEARER_TOKEN_BEDROCK" in text
    assert raised.value.status == 400


@pytest.mark.parametrize(("host", "authorization", "upstream"), [
    ("bedrock-runtime.eu-central-1.amazonaws.com", SIGNED[1], AWS),
    ("Bedrock-Runtime.eu-central-1.amazonaws.com:443", SIGNED[1], AWS),
    ("127.0.0.1:8080", "Bearer key", AWS),
    ("127.0.0.1:8080", "", AWS),
    ("127.0.0.1:8080", SIGNED[1], "http://127.0.0.1:4566"),
    ("127.0.0.1:8080", SIGNED[1], "https://gateway.example/bedrock"),
])  # fmt: skip
def test_what_may_be_accepted_is_sent(host: str, authorization: str, upstream: str) -> None:
    """Signed for the host that is asked, not signed at all, or sent to whoever is not AWS."""
    check_signature((("host", host), ("authorization", authorization)), upstream)
