"""Rules that are proved before they are suggested."""

from __future__ import annotations

import json
import tomllib

import pytest

from llmproxy.core.keys.normalize import Canonical, canonicalize, key_of
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.misses.nearest import suggest
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Request

HEADERS = (("content-type", "application/json"),)


def canonical(tree: object, rules: Rules | None = None) -> Canonical:
    target = "/v1/chat/completions"
    request = Request("POST", target, HEADERS, json.dumps(tree).encode())
    return canonicalize(request, route("POST", target, HEADERS), rules or Rules(), lambda _: None)


def chat(system: str, user: str = "hi", **more: object) -> dict[str, object]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more}


PAIRS = [
    (chat("It is 2026-11-19."), chat("It is 2026-11-20."), "packs"),
    (chat("a", "It is 2026-11-19."), chat("a", "It is 2026-11-20."), "scrub"),
    (chat("It is 2026-11-19T10:00:00Z."), chat("It is 2026-11-20T11:30:00Z."), "packs"),
    (chat("run 123e4567-e89b-12d3-a456-426614174000"), chat("run 9b2e4567-e89b-12d3-a456-426614174111"), "packs"),
    (chat("a", "from /tmp/x1/y"), chat("a", "from /tmp/x22/y"), "scrub"),
    (chat("port http://localhost:41231/"), chat("port http://localhost:50112/"), "scrub"),
    (chat("2026-11-19 in /tmp/a1 at 10:15"), chat("2026-11-20 in /tmp/b2 at 11:20"), "scrub packs"),
    (chat("a", trace="9f8e7d6c5b4a"), chat("a", trace="1a2b3c4d5e6f"), "ignore"),
    (chat("a", at=1763550000), chat("a", at=1763550042), "ignore"),
]


@pytest.mark.parametrize(("old", "new", "member"), PAIRS)
def test_pasted_rule_makes_the_keys_equal(old: object, new: object, member: str) -> None:
    """What is suggested, pasted into pyproject.toml, makes one key of the two requests."""
    found = suggest(canonical(old), canonical(new))
    assert found is not None
    assert found.left == 0
    table = tomllib.loads(found.toml)
    assert list(table) == member.split()
    rules = Rules.from_config(table)
    assert key_of(canonical(old)) != key_of(canonical(new))
    assert key_of(canonical(old, rules)) == key_of(canonical(new, rules))


def test_real_changes_bring_no_rule() -> None:
    """Nothing is suggested for a change that the caller made."""
    assert suggest(canonical(chat("be kind")), canonical(chat("be rude"))) is None


def test_half_volatile_text_brings_no_rule() -> None:
    """A text that differs in more than volatile values is a real change: a rule would not help."""
    assert suggest(canonical(chat("2026-11-19 be kind")), canonical(chat("2026-11-20 be rude"))) is None


def test_bodies_without_a_tree_bring_no_rule() -> None:
    """Rules work on JSON; for other bodies none is made up."""
    request = Request("POST", "/v1/chat/completions", HEADERS, b"\xff2026-11-19")
    raw = canonicalize(request, route("POST", request.target, HEADERS), Rules(), lambda _: None)
    assert suggest(raw, canonical({})) is None
