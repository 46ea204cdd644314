"""The state of a run, as steps of a script, callbacks and adapters see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmproxy.errors import MachineError
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.types import Message
from llmproxy.scenario.values.plain import Plain

if TYPE_CHECKING:
    from llmproxy.scenario.scenario_executor import ScenarioExecutor

__all__ = ["ScenarioState"]


@dataclass(kw_only=True)
class ScenarioState(Plain):
    """What is known about a run: the conversation so far and where it stands."""

    description: str
    messages: list[Message]
    """The conversation itself, not a copy."""
    thread_id: str
    current_turn: int
    """Turns count from 0."""
    config: ScenarioConfig
    _executor: ScenarioExecutor | None = field(default=None, repr=False, compare=False)

    @property
    def executor(self) -> ScenarioExecutor:
        """The executor that plays this scenario. Raises ValueError for a state that belongs to none."""
        if self._executor is None:
            raise ValueError("this ScenarioState belongs to no running scenario.")
        return self._executor

    def add_message(self, message: Message) -> None:
        """Append a message to the conversation; every agent hears it."""
        self.executor.add_message(message)

    def last_message(self) -> Message:
        """Return the newest message. Raises ValueError if there is none."""
        if not self.messages:
            raise ValueError("No messages found")
        return self.messages[-1]

    def last_user_message(self) -> Message:
        """Return the newest message of the user. Raises ValueError if there is none."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return message
        raise ValueError("No user messages found")

    def last_tool_call(self, tool_name: str) -> dict[str, Any] | None:
        """Return the newest call of a tool, in OpenAI's form; of one message the first.

        Looks at the messages, then at what the agent called on the wire, which it need not report (with a proxy only). Raises
        MachineError where it sees none and calls arrived that belong to nobody.
        """
        for message in reversed(self.messages):
            if message.get("role") == "assistant":
                for call in message.get("tool_calls") or ():
                    if (call.get("function") or {}).get("name") == tool_name:
                        return dict(call)
        return None if self._executor is None else self._on_the_wire(self._executor, tool_name)

    def _on_the_wire(self, executor: ScenarioExecutor, tool_name: str) -> dict[str, Any] | None:
        for seen in reversed(executor.wire_calls or ()):
            if seen.name == tool_name:
                return seen.to_message()
        if unread := executor.wire_unread:
            raise MachineError(f"nobody can tell whether {tool_name!r} was called: the answer of {unread}.")
        if executor.unattributed:
            raise MachineError(
                f"nobody can tell whether {tool_name!r} was called: {executor.unattributed} calls arrived at the proxy while no agent "
                "had the turn, so whose they are is not known.",
                hint="An agent that calls models after it has answered should send them by input.llm and set uses_session = True.",
            )
        return None

    def has_tool_call(self, tool_name: str) -> bool:
        """Return whether the agent called a tool, as far as messages and wire show."""
        return self.last_tool_call(tool_name) is not None
