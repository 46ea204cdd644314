"""Values that tools made, found where nothing else can be meant."""

from __future__ import annotations

import pytest

from llmproxy.core.bindings import Identities, Identity
from llmproxy.core.bindings.identities import IdentitySearch


def exchanged(text: str, *identities: Identity) -> str:
    """Return a text with this run's values."""
    parts, last = [], 0
    for token in IdentitySearch(Identities(identities)).find_matches(text):
        parts += [text[last : token.start], token.present]
        last = token.end
    return "".join([*parts, text[last:]])


@pytest.mark.parametrize(("text", "now"), [
    ("curl http://localhost:40121/x", "curl http://localhost:39999/x"),
    ("127.0.0.1:40121", "127.0.0.1:39999"),
    ("GET [::1]:40121.", "GET [::1]:39999."),
    ("http://example.com:40121/", "http://example.com:40121/"),
    ("order 40121 of localhost:401215", "order 40121 of localhost:401215"),
])  # fmt: skip
def test_a_port_is_one_behind_the_name_of_this_machine(text: str, now: str) -> None:
    """A bare number may be anything, and another machine's port is another machine's."""
    assert exchanged(text, Identity("port", "port", "40121", "39999")) == now


def test_a_commit_is_found_by_its_first_digits() -> None:
    """As many as somebody names, from seven on."""
    made = Identity("commit", "hex", "0a1b2c3d4e" * 4, "ffeeddccbb" * 4)
    assert exchanged("see 0a1b2c3 and 0a1b2c3d4e, not 0a1b2c", made) == "see ffeeddc and ffeeddccbb, not 0a1b2c"
