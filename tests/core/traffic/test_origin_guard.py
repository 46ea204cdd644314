"""Who may ask, without a socket: names, origins, and whatever bytes somebody puts there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.origin_guard import HeadForOriginCheck, OriginGuard, split_host
from llmproxy.core.traffic.response_plan import (
    find_client_path_prefix,
    find_redirect_host_past_proxy,
    rewrite_location_for_storage,
    rewrite_location_to_proxy,
)
from llmproxy.errors import RefusedError

OURS = OriginGuard(answer_to=("proxy.lan",), allow_origin=("http://localhost:5173",))
HERE = (("host", "127.0.0.1:8080"),)


@pytest.mark.parametrize(("host", "split"), [
    ("", ("", None)),
    ("localhost", ("localhost", None)),
    ("LocalHost:80", ("localhost", 80)),
    ("[::1]:8080", ("::1", 8080)),
    ("[::1]", ("::1", None)),
    ("::1", (None, None)),
    ("a b", (None, None)),
    ("user@localhost", (None, None)),
    ("localhost/x", (None, None)),
    ("localhost:80:80", (None, None)),
    ("localhost\x00.evil", ("localhost\x00.evil", None)),
])  # fmt: skip
def test_a_host_is_split_or_is_none(host: str, split: tuple[str | None, int | None]) -> None:
    """What could be read in two ways is no host."""
    assert split_host(host) == split


@pytest.mark.parametrize(
    "name",
    ["localhost.evil.com", "127.0.0.1.evil.com", "localhost\x00", "0x7f.1", "2130706433", "evil", "docker.internal"],
)
def test_names_that_only_look_like_ours_are_foreign(name: str) -> None:
    """Whoever owns such a name in the DNS can let it point here."""
    assert not OURS.is_admitted(HeadForOriginCheck((("host", name),)))
    assert OriginGuard(any_host=True).is_admitted(HeadForOriginCheck((("host", name),)))


def test_a_second_origin_hides_nothing() -> None:
    """Each Origin must be allowed: which of two the next reader believes is not ours to guess."""
    good, bad = ("Origin", "http://localhost:5173"), ("origin", "https://evil.example")
    assert OURS.is_admitted(HeadForOriginCheck((*HERE, good)))
    assert not OURS.is_admitted(HeadForOriginCheck((*HERE, good, bad)))
    assert not OURS.is_admitted(HeadForOriginCheck((*HERE, bad, good)))
    assert OURS.build_cors_fields((good, good)) == ()


def test_the_own_origin_is_scheme_name_and_port() -> None:
    """A page on another port of this machine is another page; a proxied site may ask itself."""
    https = HeadForOriginCheck((("host", "localhost:8443"), ("origin", "https://localhost:8443")), "https")
    assert OURS.is_admitted(https)
    assert not OURS.is_admitted(HeadForOriginCheck(https.headers))
    target = ("https", "api.openai.com", 443)
    assert OURS.is_admitted(HeadForOriginCheck((("origin", "https://api.openai.com"),), "https", target))
    assert not OURS.is_admitted(HeadForOriginCheck((("origin", "https://api.openai.com:8443"),), "https", target))
    assert not OURS.is_admitted(HeadForOriginCheck((("origin", "http://api.openai.com"),), "https", target))


def test_any_page_is_allowed_only_by_a_lone_star() -> None:
    """`*` takes links and pictures as well; a pattern needs an Origin to be held against."""
    link = HeadForOriginCheck((*HERE, ("sec-fetch-site", "cross-site")))
    assert OriginGuard(allow_origin=("*",)).is_admitted(link)
    assert not OriginGuard(allow_origin=("http://*",)).is_admitted(link)


FIELDS = st.tuples(
    st.sampled_from(["host", "origin", "sec-fetch-site"]), st.text(st.characters(max_codepoint=255), max_size=30)
)


@given(st.lists(FIELDS, max_size=4))
def test_whatever_stands_there_is_decided(headers: list[tuple[str, str]]) -> None:
    """Odd bytes are refused or served, never an exception of another kind; what is refused quotes nothing that a terminal or shell obeys."""
    seen = HeadForOriginCheck(tuple(headers))
    if not OURS.is_admitted(seen):
        with pytest.raises(RefusedError) as refused:
            OURS.require_admitted(seen)
        assert re.fullmatch(r"[A-Za-z0-9 .,:;'()_/\[\]\n-]*", str(refused.value))


def kept(location: str, target: str = "/base/v1/files/f", at_provider: str = "/v1/files/f") -> str:
    """Return what is stored of a location that a gateway says."""
    return rewrite_location_for_storage(
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
        not expected.startswith("/") and not found.startswith("/") and rewrite_location_to_proxy(found, "") is None
    )


@given(st.text(max_size=60), st.sampled_from(["", "/openai", "/s/n/openai"]))
def test_whatever_it_says_it_never_leads_to_another_host(location: str, prefix: str) -> None:
    """What is said to the client begins with our own prefix and one slash, or is left out."""
    found = kept(location)
    led = rewrite_location_to_proxy(found, prefix)
    if led is None:
        assert find_redirect_host_past_proxy((("location", found),))
    else:
        assert led.startswith(f"{prefix}/")
        assert led.removeprefix(prefix)[1:2] not in ("/", "\\")


def test_the_prefix_is_what_stands_before_the_providers_path() -> None:
    """Where that cannot be told it is empty."""
    assert find_client_path_prefix("/s/a%20b/openai/v1/x?q", "/v1/x") == "/s/a%20b/openai"
    assert find_client_path_prefix("/v1/x", "/v1/x?q") == ""
    assert find_client_path_prefix("/other", "/v1/x") == ""
