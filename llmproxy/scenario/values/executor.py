"""A run that is going on, as its state, the words of scripts and the models' calls know it; `ScenarioExecutor` is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.options import RunOptions

if TYPE_CHECKING:
    from llmproxy.trace.observing.servers import Served
    from llmproxy.trace.observing.tools import ToolUse


class Executor(Protocol):
    """What is used of a run from below it."""

    config: ScenarioConfig
    options: RunOptions

    @property
    def marks(self) -> list[str]:
        """Labels that steps put on the run."""

    @property
    def from_cache(self) -> list[str]:
        """Decorated functions that `cache` answered."""

    def tell_reports(self, kind: str, **about: Any) -> None:  # noqa: ANN401 - fields of the event
        """Tell the reports of a step that somebody took by himself: a turn of an attack."""

    def rollback_messages_to(self, index: int) -> list[Message]:
        """Take back messages from a place on."""

    def add_message(self, message: Message) -> None:
        """Append a message to the conversation."""

    async def message(self, message: Message) -> None:
        """Add a message; a user's or an assistant's takes the turn of that role."""

    async def user(self, content: str | Message | None = None) -> ScenarioResult | None:
        """Let the user speak."""

    async def agent(self, content: str | Message | None = None) -> ScenarioResult | None:
        """Let the agent under test speak."""

    async def judge(
        self, content: str | Message | None = None, *, criteria: Sequence[str] | None = None
    ) -> ScenarioResult | None:
        """Demand a verdict, by the judge's criteria or by these."""

    async def succeed(self, reasoning: str | None = None) -> ScenarioResult: ...

    async def fail(self, reasoning: str | None = None) -> ScenarioResult: ...

    async def proceed(
        self,
        turns: int | None = None,
        on_turn: Callable[..., Any] | None = None,
        on_step: Callable[..., Any] | None = None,
        *,
        on_turn_end: Callable[..., Any] | None = None,
    ) -> ScenarioResult | None:
        """Take steps for so many turns, or until somebody ends it."""

    @property
    def wire_calls(self) -> Sequence[ToolUse] | None:
        """The agent's tool calls as seen on the wire; None without a proxy."""

    @property
    def wire_served(self) -> Served | None:
        """What servers of tools (MCP) got from the agent; None without a proxy."""

    @property
    def wire_unread(self) -> str:
        """Answers that nobody can read."""

    @property
    def wire_before(self) -> Mapping[int, Sequence[ToolUse]]:
        """The agent's tool calls on the wire, by the place of the message that came after them."""

    @property
    def unattributed(self) -> int:
        """How many calls arrived while no agent had the turn."""
