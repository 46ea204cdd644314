"""Who may ask, without a socket: names, origins, and whatever bytes somebody puts there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.origin_guard import Guard, SeenHead, split_host
from llmproxy.errors import RefusedError

OURS = Guard(answer_to=("proxy.lan",), allow_origin=("http://localhost:5173",))
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
    assert not OURS.admits(SeenHead((("host", name),)))
    assert Guard(any_host=True).admits(SeenHead((("host", name),)))


def test_a_second_origin_hides_nothing() -> None:
    """Each Origin must be allowed: which of two the next reader believes is not ours to guess."""
    good, bad = ("Origin", "http://localhost:5173"), ("origin", "https://evil.example")
    assert OURS.admits(SeenHead((*HERE, good)))
    assert not OURS.admits(SeenHead((*HERE, good, bad)))
    assert not OURS.admits(SeenHead((*HERE, bad, good)))
    assert OURS.grants((good, good)) == ()


def test_the_own_origin_is_scheme_name_and_port() -> None:
    """A page on another port of this machine is another page; a proxied site may ask itself."""
    https = SeenHead((("host", "localhost:8443"), ("origin", "https://localhost:8443")), "https")
    assert OURS.admits(https)
    assert not OURS.admits(SeenHead(https.headers))
    target = ("https", "api.openai.com", 443)
    assert OURS.admits(SeenHead((("origin", "https://api.openai.com"),), "https", target))
    assert not OURS.admits(SeenHead((("origin", "https://api.openai.com:8443"),), "https", target))
    assert not OURS.admits(SeenHead((("origin", "http://api.openai.com"),), "https", target))


def test_any_page_is_allowed_only_by_a_lone_star() -> None:
    """`*` takes links and pictures as well; a pattern needs an Origin to be held against."""
    link = SeenHead((*HERE, ("sec-fetch-site", "cross-site")))
    assert Guard(allow_origin=("*",)).admits(link)
    assert not Guard(allow_origin=("http://*",)).admits(link)


FIELDS = st.tuples(
    st.sampled_from(["host", "origin", "sec-fetch-site"]), st.text(st.characters(max_codepoint=255), max_size=30)
)


@given(st.lists(FIELDS, max_size=4))
def test_whatever_stands_there_is_decided(headers: list[tuple[str, str]]) -> None:
    """Odd bytes are refused or served, never an exception of another kind; what is refused quotes nothing that a terminal or shell obeys."""
    seen = SeenHead(tuple(headers))
    if not OURS.admits(seen):
        with pytest.raises(RefusedError) as refused:
            OURS.check(seen)
        assert re.fullmatch(r"[A-Za-z0-9 .,:;'()_/\[\]\n-]*", str(refused.value))
