"""Where a redirect leads, for every kind of address that an upstream may say."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.response_bytes import leads_to, prefix_of, to_served, to_stored


def kept(location: str, target: str = "/base/v1/files/f", at_provider: str = "/v1/files/f") -> str:
    """Return what is stored of a location that a gateway says."""
    return to_stored(
        location,
        sent_to="https://gw.corp:8443",
        target=target,
        at_provider=at_provider,
        is_public=lambda host: host == "api.openai.com",
    )


@pytest.mark.parametrize(("location", "expected"), [
    ("/base/v1/x?q=1", "/v1/x?q=1"),
    ("x", "/v1/files/x"),
    ("../y#z", "/v1/y#z"),
    ("https://gw.corp:8443/base/v1/x", "/v1/x"),
    ("https://gw.corp:8443/elsewhere", "/elsewhere"),
    ("https://gw.corp/base/v1/x", "https://gw.corp/base/v1/x"),
    ("http://gw.corp:8443/base/v1/x", "http://gw.corp:8443/base/v1/x"),
    ("https://api.openai.com/v1/x", "/v1/x"),
    ("https://user:pass@s3.example/k?X-Amz-Signature=abc", "https://s3.example/k"),
    ("https://gw.corp:8443//evil.example/x", "/evil.example/x"),
    ("https://gw.corp:8443/\\evil.example/x", "/evil.example/x"),
    ("javascript:alert(1)", "javascript:///alert(1)"),
    ("http://[broken", "about:blank"),
    ("", "/v1/files/f"),
])  # fmt: skip
def test_where_it_leads(location: str, expected: str) -> None:
    """The provider's own place, without the gateway's base; somebody else's without user and query."""
    found = kept(location)
    assert found == expected or (
        not expected.startswith("/") and not found.startswith("/") and to_served(found, "") is None
    )


@given(st.text(max_size=60), st.sampled_from(["", "/openai", "/s/n/openai"]))
def test_whatever_it_says_it_never_leads_to_another_host(location: str, prefix: str) -> None:
    """What is said to the client begins with our own prefix and one slash, or is left out."""
    found = kept(location)
    led = to_served(found, prefix)
    if led is None:
        assert leads_to((("location", found),))
    else:
        assert led.startswith(f"{prefix}/")
        assert led.removeprefix(prefix)[1:2] not in ("/", "\\")


def test_the_prefix_is_what_stands_before_the_providers_path() -> None:
    """Where that cannot be told it is empty."""
    assert prefix_of("/s/a%20b/openai/v1/x?q", "/v1/x") == "/s/a%20b/openai"
    assert prefix_of("/v1/x", "/v1/x?q") == ""
    assert prefix_of("/other", "/v1/x") == ""
