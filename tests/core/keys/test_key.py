"""A key is a function of the canonical request alone; twenty golden ones keep watch over it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.keys.normalize import Canonical, build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Request

GOLDEN: list[dict[str, str]] = json.loads((Path(__file__).parent / "golden_keys.json").read_text("utf-8"))
"""The golden requests and their keys."""
BASE = Canonical("openai", "POST", "chat.completions", None, False, (), (), "json", b"{}", {}, ())


def derived(case: dict[str, Any]) -> str:
    headers = tuple((name, value) for name, value in case["headers"])
    where = route(case["target"], headers)
    sent = Request(case["method"], where.target, headers, case["body"].encode("latin-1"))
    return build_key(
        canonicalize_request(Redactor().request(sent, where.provider.credentials), where, Rules(), lambda _: None)
    )


def test_golden_keys_are_all_different() -> None:
    assert len({case["key"] for case in GOLDEN}) == len(GOLDEN)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in GOLDEN])
def test_golden_keys_do_not_move(case: dict[str, str]) -> None:
    """A change here needs a new `rules.VERSION`, by which stores are keyed anew, and its own line in the changelog."""
    assert derived(case) == case["key"]


@pytest.mark.parametrize("changed", [
    {"provider": "groq"}, {"method": "GET"}, {"operation": "responses"}, {"variant": "/v1"}, {"model": ""},
    {"model": "m"}, {"stream": True}, {"headers": (("openai-beta", "a"),)}, {"query": (("openai-beta", "a"),)},
    {"kind": "raw"}, {"body": b"{ }"},
])  # fmt: skip
def test_every_part_counts(changed: dict[str, object]) -> None:
    """Whatever is in the canonical request tells two requests apart."""
    assert build_key(replace(BASE, **changed)) != build_key(BASE)  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    """Lengths keep ("ab", "c") from being ("a", "bc")."""
    one = replace(BASE, query=(("ab", "c"),))
    assert build_key(one) != build_key(replace(BASE, query=(("a", "bc"),)))
    assert build_key(one) != build_key(replace(BASE, headers=(("ab", "c"),)))


def test_tree_and_refs_do_not_count() -> None:
    """They are there for people, and for the caller's memory."""
    assert build_key(replace(BASE, tree=None, refs=("file-1",))) == build_key(BASE)
    assert build_key(BASE).startswith("v2:")
    assert len(build_key(BASE)) == 67
