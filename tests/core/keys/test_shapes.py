"""Shapes are data: they say what to do, `core.keys.walk` does it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from llmproxy.core.keys.rules import NOTHING, Do, Rule, Shape


def test_the_empty_shape_lets_everything_count() -> None:
    """An operation without rules loses nothing."""
    assert not NOTHING.members
    assert not NOTHING.nulls
    assert not NOTHING.kinds


def test_rules_cannot_be_changed() -> None:
    """Keys of one process and of the next must agree."""
    rule = Rule(Do.IGNORE, "why", Shape())
    with pytest.raises(FrozenInstanceError):
        rule.why = "else"  # type: ignore[misc]
