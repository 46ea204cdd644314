"""The memory digest -> key."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from llmproxy.core.keys.memory import REMEMBERED_KEYS, WORTH_A_SWITCH, KnownRequest, Memory
from llmproxy.core.secrets.find import CredentialEpoch, tails
from llmproxy.core.traffic.interaction import Headers, Key

NONE = CredentialEpoch()
KNOWN = KnownRequest(Key("v1:1"), "gpt-4o", stream=False)
PLAIN = ("openai", "POST", "/v1/chat/completions", (("content-type", "application/json"),), b"{}")


def test_everything_that_the_key_depends_on_is_in_the_digest() -> None:
    """Another provider, method, target, counted header or body is another digest; any other header is not."""
    memory = Memory()
    provider, method, target, headers, body = PLAIN

    def digest(provider: str, method: str, target: str, headers: Headers, body: bytes) -> bytes:
        return memory.digest(memory.read_head(provider, method, target, headers, known=True), body)

    plain = digest(*PLAIN)
    changed = [
        ("groq", method, target, headers, body),
        (provider, "GET", target, headers, body),
        (provider, method, "/v1/other", headers, body),
        (provider, method, target, (("content-type", "text/plain"),), body),
        (provider, method, target, (*headers, ("content-encoding", "gzip")), body),
        (provider, method, target, (*headers, ("OpenAI-Beta", "x")), body),
        (provider, method, target, headers, b"{ }"),
    ]
    digests = {digest(*each) for each in changed}
    assert len(digests) == len(changed)
    assert plain not in digests
    assert digest(provider, method, target, (*headers, ("user-agent", "x")), body) == plain


@pytest.mark.parametrize("size", [0, 1, 5_000, WORTH_A_SWITCH - 1, WORTH_A_SWITCH, WORTH_A_SWITCH + 1])
def test_a_body_counts_to_its_last_byte(size: int) -> None:
    """However it is fed to the hash, the digest is that of the whole."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert Memory.digest(b"head", body) == hashlib.sha256(b"head" + body).digest()


def test_a_new_credential_forgets_what_it_may_change() -> None:
    """What was derived before did not know that this is a secret; where it is known to stand nowhere in it nothing changed."""
    memory, learned = Memory(), CredentialEpoch()
    learned.search("a text with token0123456789abcdef in it")
    noted = replace(KNOWN, noted=True)
    memory.put(b"1", KNOWN, learned)
    memory.put(b"2", noted, learned)
    assert memory.get(b"1", learned) is KNOWN
    learned.add(tails("another0123456789fedcba"))
    assert memory.get(b"1", learned) is None
    assert memory.get(b"2", learned) is noted
    learned.add(tails("token0123456789abcdef"))
    assert memory.get(b"2", learned) is None
    assert len(memory) == 0


def test_requests_that_name_server_state_are_not_remembered() -> None:
    """What they mean depends on what the store holds by then."""
    memory = Memory()
    memory.put(b"1", KnownRequest(Key("v1:1"), None, stream=False, refs=("resp_1",)), NONE)
    assert memory.get(b"1", NONE) is None


def test_the_memory_is_bounded_and_keeps_what_is_used() -> None:
    """A long run does not grow for ever; what was asked for lately stays."""
    memory = Memory()
    for n in range(REMEMBERED_KEYS):
        memory.put(n.to_bytes(4), KNOWN, NONE)
    assert memory.get((0).to_bytes(4), NONE) is KNOWN
    memory.put(b"one more", KNOWN, NONE)
    assert len(memory) == REMEMBERED_KEYS
    assert memory.get((0).to_bytes(4), NONE) is KNOWN
    assert memory.get((1).to_bytes(4), NONE) is None
