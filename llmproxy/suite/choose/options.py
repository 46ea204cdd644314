"""What a test run goes by, as it was asked for; scenarios and suites add what they say themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    mode: str | None = None
    """Of every session at the proxy; None: the proxy's."""
    runs: int | None = None
    """Executions of each scenario; None: as the scenario says."""
    parallel: int = 1
    """Runs at the same time, as far as they do not disturb each other."""
    keep_going: bool = False
    """Whether a run goes on after a step that failed."""
    label: str = ""
    """The step to which scenarios are run."""
    fast_waits: bool = False
    """Whether `wait` looks as often as it can."""
    update: bool = False
    """Whether expectations that are snapshots are written anew."""
    live: bool = False
    """Whether models are asked although the mode is replay."""
    max_cost: Decimal | None = None
    """US dollars that may be spent."""
    command: str = "llmproxy test"
    """The command that was typed, without what selects scenarios: for messages that say how to run one again."""
    only: str = "--id"
    """The option that selects one scenario; empty where the command names it already."""
    mode_flag: str = "--mode"
    """The option of the command that names the mode."""
    partly: bool = False
    """Whether only some scenarios of the suites were asked for."""
    title: str = ""
    """Of the test; empty: the names of its suites."""
    shard: Mapping[str, Any] | None = None
    """Which part of a test this is (`report.sharding`); None for a whole one."""
