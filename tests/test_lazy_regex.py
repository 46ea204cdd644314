"""Expressions that are compiled late are the same expressions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import llmproxy
from llmproxy.lazy_regex import late

PACKAGE = Path(llmproxy.__file__).parent
USERS = [path for path in sorted(PACKAGE.rglob("*.py")) if "from llmproxy.lazy_regex import" in path.read_text("utf-8")]


def test_it_answers_as_a_compiled_one_does() -> None:
    """By each method and attribute, flags included; in text and in bytes."""
    made, real = late(r"(a)b?", re.IGNORECASE), re.compile(r"(a)b?", re.IGNORECASE)
    assert (made.pattern, made.flags, made.groups) == (real.pattern, real.flags, real.groups)
    assert made.sub("-", "AB ab a") == real.sub("-", "AB ab a") == "- - -"
    assert [each.span() for each in made.finditer("ab A")] == [each.span() for each in real.finditer("ab A")]
    assert (found := made.fullmatch("Ab", 0, 2)) is not None
    assert found[1] == "A"
    assert late(rb"\d+").findall(b"1 22") == [b"1", b"22"]


def test_its_text_may_be_made_late_too() -> None:
    calls: list[int] = []

    def text() -> str:
        calls.append(1)
        return "x+"

    made = late(text)
    assert calls == []
    assert (found := made.search("axx")) is not None
    assert found[0] == "xx"
    assert made.pattern == "x+"
    assert calls == [1]


def test_it_has_no_methods_of_its_own() -> None:
    """What a compiled expression has not, it has not either."""
    with pytest.raises(AttributeError, match="replace"):
        _ = late("x").replace  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", USERS, ids=[str(path.relative_to(PACKAGE)) for path in USERS])
def test_those_of_ours_compile(path: Path) -> None:
    """A mistake in one would come to light at its first use only."""
    name = ".".join(("llmproxy", *path.relative_to(PACKAGE).with_suffix("").parts))
    found = [each for each in vars(importlib.import_module(name)).values() if type(each) is type(late("x"))]
    assert all(isinstance(each.groups, int) for each in found)
