"""What a run can be told beyond the documented parameters, in one value that travels whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.types import Message

if TYPE_CHECKING:
    from llmproxy.report.functions import HandlerLike

CALL_TIMEOUT = 120.0
"""Seconds for one call of an adapter: a slow agent with several tools ends in it, a hanging one does not stop a suite for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The keyword-only additions of `run`."""

    proxy: str | bool | None = None
    """URL of a running llmproxy, True to start one, False for none; None: as configured, else LLMPROXY_URL."""
    timeout: float | None = None
    """Seconds for the whole run."""
    call_timeout: float | None = CALL_TIMEOUT
    fresh_ids: bool = False
    """Whether thread ids are random even with a recording, for agents with a store that outlives runs."""
    cassette: str | None = None
    mode: str | None = None
    """Of the session, such as ``replay``; None: the proxy's."""
    handlers: Sequence[HandlerLike] = ()
    """Hear the events; functions become handlers."""
    history: Sequence[Message] | str | None = None
    """What was said before: messages, or a recorded session ``store.db::cassette``."""
    metadata: Mapping[str, Any] | None = None
    """Told with the start of the run, in events and reports."""
    parameters: Mapping[str, Any] | None = None
    """For connected agents."""
    fields: Mapping[str, Any] | None = None
    """Values that `state.field(name)` gives: a row of data."""
    mock: Mapping[str, Any] | None = None
    """Tool -> what the agent's model reads instead of its result."""
    sample: int = 1
    runs: int = 1
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Take functions as handlers; refuse numbers that cannot be meant."""
        if self.handlers != ():
            from llmproxy.report.functions import handlers_from

            object.__setattr__(self, "handlers", handlers_from(self.handlers))
        if self.mock is not None:
            from llmproxy.core.forks.mocks import read_mocks

            read_mocks(self.mock)
        for name in ("timeout", "call_timeout", "max_concurrency", "sample", "runs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} takes a number above 0, not {value!r}")
