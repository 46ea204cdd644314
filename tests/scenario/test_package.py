"""The package: what it names, and nothing else."""

from __future__ import annotations

from llmproxy import scenario


def test_what_is_listed_is_what_is_documented() -> None:
    """`dir()` gives the public names; each of them is there."""
    assert dir(scenario) == sorted(scenario.__all__)
    for name in scenario.__all__:
        assert hasattr(scenario, name)
