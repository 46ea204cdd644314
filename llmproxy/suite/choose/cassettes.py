"""What cases are recorded as."""

from __future__ import annotations

from llmproxy.scenario.values.run import cassette_of


def cassette_name(suite: str, case: str) -> str:
    """Return what a case is recorded as: suite and id, each as a slug; what slugging lost is told apart by a digest."""
    return f"{cassette_of(suite)}/{cassette_of(case)}"
