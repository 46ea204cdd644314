"""Evalcraft's import path of the values."""

from __future__ import annotations

from llmproxy import trace
from llmproxy.trace.core import models


def test_each_value_is_the_one_of_the_face() -> None:
    """Not a copy: `isinstance` says the same whichever path was imported."""
    assert all(getattr(models, name) is getattr(trace, name) for name in models.__all__)
