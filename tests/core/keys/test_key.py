"""A key is a function of the canonical request alone; twenty golden ones keep watch over it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.keys import v1
from llmproxy.core.keys.key import key_of
from llmproxy.core.keys.normalize import Canonical, canonicalize
from llmproxy.core.keys.scrub import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request


def golden(version: int) -> list[dict[str, str]]:
    """Return the golden requests and the keys that a version gives them."""
    found: list[dict[str, str]] = json.loads(
        (Path(__file__).parent / f"golden_keys_v{version}.json").read_text("utf-8")
    )
    return found


BASE = Canonical("openai", "POST", "chat.completions", None, False, (), (), "json", b"{}", {}, ())


def derived(case: dict[str, Any], version: int) -> str:
    """Derive the key of one golden request."""
    headers = tuple((name, value) for name, value in case["headers"])
    where = route(case["method"], case["target"], headers)
    sent = Request(case["method"], where.target, headers, case["body"].encode("latin-1"))
    request = Redactor().request(sent, where.provider.credentials)
    if version == 1:
        return v1.key_of(request, where, Rules(), lambda _: None)
    return key_of(canonicalize(request, where, Rules(), lambda _: None))


def test_golden_keys_are_all_different() -> None:
    """They were chosen to be; each version of the key has those of the one before, and its own."""
    names = [{case["name"] for case in golden(version)} for version in (1, 2)]
    assert names[0] < names[1]
    assert [len({case["key"] for case in golden(version)}) for version in (1, 2)] == [20, len(golden(2))]


@pytest.mark.parametrize(
    ("version", "case"),
    [pytest.param(version, case, id=f"v{version}-{case['name']}") for version in (1, 2) for case in golden(version)],
)
def test_golden_keys_do_not_move(version: int, case: dict[str, str]) -> None:
    """A change here makes every recording of every user miss: it needs a new tag, and its own line in the changelog."""
    assert derived(case, version) == case["key"]


@pytest.mark.parametrize(
    "changed",
    [
        {"provider": "groq"},
        {"method": "GET"},
        {"operation": "responses"},
        {"variant": "/v1"},
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
    assert key_of(BASE).startswith("v2:")
    assert len(key_of(BASE)) == 67
