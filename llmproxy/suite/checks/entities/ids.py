"""Ids, users and a clock that are the same in every run: whatever flows into a prompt must be what was recorded.

    key of a row that setup inserts     made of scenario, run and name (`ids: deterministic`), else the database's own
    user of a run                       test-user, test-user~2 ...: the second run's rows are not the first one's
    clock and seed of a spawned agent   LLMPROXY_NOW, LLMPROXY_SEED in its environment, for agents that care to look

The key is that of the scenario's nth run, so runs of one scenario may go on at the same time.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from llmproxy.suite.stores.protocol import Kind

NAMESPACE = UUID("6f1d2f1c-5a0b-5f57-8d0e-0d4b4d3f6a11")
"""Made once for this purpose; changing it changes every id, and with them the recordings of suites that use them."""
NOW = "2027-01-04T09:00:00Z"
"""What time it is where time stands still: a Monday morning."""
NOW_VARIABLE = "LLMPROXY_NOW"
SEED_VARIABLE = "LLMPROXY_SEED"
_LOWEST, _SPAN = 1_000_000_000, 1_000_000_000
"""Whole numbers that no counter has reached and that 32 bits hold."""


def row_id(scenario: str, sample: int, name: str, kind: Kind = Kind.UNKNOWN) -> str | int:
    """Return the key of the row that setup calls `name`: a UUID's text, a number where the column holds numbers."""
    made = uuid5(NAMESPACE, f"{_run(scenario, sample)}/{name}")
    return made.int % _SPAN + _LOWEST if kind in {Kind.INTEGER, Kind.NUMBER} else str(made)


def user_of(user: str, sample: int) -> str:
    """Return the user that a run acts as; the first is the user itself, so that one run needs no suffix."""
    return _run(user, sample)


def agent_environment(scenario: str, sample: int, now: str = NOW) -> dict[str, str]:
    """Return what a spawned agent is told about time and chance."""
    return {NOW_VARIABLE: now, SEED_VARIABLE: _run(scenario, sample)}


def _run(name: str, sample: int) -> str:
    return name if sample == 1 else f"{name}~{sample}"
