"""A key is a function of the canonical request alone; twenty golden ones keep watch over it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmproxy.core.keys.key import key_of
from llmproxy.core.keys.normalize import Canonical, Rules, canonicalize
from llmproxy.core.providers.routing import route
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request

GOLDEN = json.loads((Path(__file__).parent / "golden_keys.json").read_text(encoding="utf-8"))
BASE = Canonical("openai", "POST", "chat.completions", None, False, (), (), "json", b"{}", {}, ())


def golden_key(case: dict[str, object]) -> str:
    """Derive the key of one golden request."""
    method, target, body = (str(case[name]) for name in ("method", "target", "body"))
    headers = tuple((name, value) for name, value in case["headers"])  # type: ignore[attr-defined]
    where = route(method, target, headers)
    request = Redactor().request(Request(method, where.target, headers, body.encode("latin-1")))
    return key_of(canonicalize(request, where, Rules(), lambda _: None))


def test_there_are_twenty_golden_keys() -> None:
    """All different: they were chosen to be."""
    assert len({case["key"] for case in GOLDEN}) == 20


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_keys_do_not_move(case: dict[str, object]) -> None:
    """A change here makes every recording of every user miss: it needs the tag v2:, and its own line in the changelog."""
    assert golden_key(case) == case["key"]


@pytest.mark.parametrize(
    "changed",
    [
        {"provider": "groq"},
        {"method": "GET"},
        {"operation": "responses"},
        {"model": ""},
        {"model": "m"},
        {"stream": True},
        {"headers": (("openai-beta", "a"),)},
        {"query": (("openai-beta", "a"),)},
        {"kind": "raw"},
        {"body": b"{ }"},
    ],
)
def test_every_part_counts(changed: dict[str, object]) -> None:
    """Whatever is in the canonical request tells two requests apart."""
    assert key_of(replace(BASE, **changed)) != key_of(BASE)  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    """Lengths keep ("ab", "c") from being ("a", "bc")."""
    one = replace(BASE, query=(("ab", "c"),))
    assert key_of(one) != key_of(replace(BASE, query=(("a", "bc"),)))
    assert key_of(one) != key_of(replace(BASE, headers=(("ab", "c"),)))


def test_tree_and_refs_do_not_count() -> None:
    """They are there for people, and for the caller's memory."""
    assert key_of(replace(BASE, tree=None, refs=("file-1",))) == key_of(BASE)
    assert key_of(BASE).startswith("v1:")
    assert len(key_of(BASE)) == 67
