"""The conversation, and what of it each agent has not heard yet.

A message goes to everybody but its author. What a script wrote has no author and goes to all, also to whose role it plays.
"""

from __future__ import annotations

from llmproxy.scenario.types import Message
from llmproxy.scenario.values.messages import copies


class Dialogue:
    """Messages of one run."""

    def __init__(self, agents: int, messages: list[Message]) -> None:
        """Keep the conversation in `messages`, for so many agents."""
        self.messages = messages
        self._unheard: list[list[Message]] = [[] for _ in range(agents)]

    def add(self, message: Message, author: int | None = None) -> None:
        """Append a message and let everybody but its author hear it."""
        self.messages.append(message)
        for index, queue in enumerate(self._unheard):
            if index != author:
                queue.append(message)

    def join(self) -> None:
        """Let one more agent hear what is said from now on."""
        self._unheard.append([])

    def leave(self) -> None:
        """Let the agent that joined last hear nothing more."""
        self._unheard.pop()

    def rollback(self, index: int) -> list[Message]:
        """Take back all messages from a place on, and return them."""
        removed = self.messages[index:]
        del self.messages[index:]
        for queue in self._unheard:
            queue[:] = [each for each in queue if not any(each is gone for gone in removed)]
        return removed

    def list_unheard(self, index: int) -> list[Message]:
        """Return copies of what an agent has not heard."""
        return copies(self._unheard[index])

    def note_heard(self, index: int) -> None:
        """Note that an agent has heard everything so far."""
        self._unheard[index].clear()
