"""Fingerprints: they tell values apart, are the same everywhere, and thousands of them cost no more than a few."""

from __future__ import annotations

import hashlib

from llmproxy.core.secrets import fingerprint
from llmproxy.core.secrets.fingerprint import Fingerprints
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request


def target(number: int, last: str = "end") -> str:
    """Return a URL with so many members that look like credentials, all different."""
    values = [hashlib.sha256(str(each).encode()).hexdigest() for each in range(number)]
    return "/v1/x?" + "&".join(f"token={each}" for each in [*values, last])


def kept(text: str) -> str:
    """Return what is kept of a URL."""
    return Redactor().request(Request("GET", text, (), b"")).target


def test_a_single_one_is_what_it_was() -> None:
    """It is part of keys: another one would be another key."""
    assert Fingerprints().of("invoice-1") == "02307ad9b0f2"


def test_each_value_of_many_has_its_own() -> None:
    """However many there are, in order, and whether or not some come twice."""
    many = kept(target(500)).partition("?")[2].split("&")
    assert len(set(many)) == 501
    assert kept(target(500)) == kept(target(500))
    assert kept(target(500)) != kept(target(500, "End"))
    assert kept(target(3)).split("&")[:3] == kept(target(9)).split("&")[:3], "few do not depend on each other"
    assert Redactor().request(Request("GET", kept(target(40)), (), b"")).target == kept(target(40)), (
        "twice changes nothing"
    )


def test_the_number_that_is_stretched_is_bounded() -> None:
    """Counted by what it costs: beyond the first ones there is one derivation more, however many follow."""
    fingerprint._stretch_secret.cache_clear()
    kept(target(2000))
    assert fingerprint._stretch_secret.cache_info().misses == fingerprint._EACH + 1
