"""An agent behind an OpenAI-compatible endpoint: it keeps nothing, so the whole conversation goes with each message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmproxy.core.dialects.answers import SHAPES
from llmproxy.core.dialects.messages import Draft, as_dict
from llmproxy.core.dialects.streams import events_of
from llmproxy.errors import AgentError
from llmproxy.scenario.agents.http import Answered, HttpAdapter
from llmproxy.scenario.agents.templates import values_of
from llmproxy.scenario.values.replies import answer, format_value

if TYPE_CHECKING:
    from llmproxy.scenario.types import AgentInput, AgentReturnTypes

_PATH = "/chat/completions"
_STREAM = "text/event-stream"


class OpenAIAgent(HttpAdapter):
    """Speaks chat completions with an agent, whole or as a stream."""

    def __init__(
        self,
        url: str,
        model: str = "agent",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,  # noqa: FBT001, FBT002 - written as stream=True
        timeout: float = 120.0,
    ) -> None:
        """Speak to the endpoint below `url` (``http://127.0.0.1:8000/v1``); `timeout` in seconds, for a whole answer."""
        super().__init__(url, headers, timeout)
        if not self.url.rstrip("/").endswith(_PATH):
            self.url = self.url.rstrip("/") + _PATH
        self.model = model
        self.stream = stream

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Send the conversation and return the agent's answer."""
        body = {"model": self.model, "messages": input.messages, **({"stream": True} if self.stream else {})}
        return self._read(await self.send("POST", body, values_of(input)))

    def _read(self, found: Answered) -> Any:  # noqa: ANN401 - a text or a message
        if found.kind != _STREAM:
            value = as_dict(found.json(self.who))
            if value.get("error"):
                raise AgentError(f"{self.who} answered with an error: {format_value(value['error'])}")
            if not isinstance(value.get("choices"), list):
                raise AgentError(
                    f"{self.who} answered {format_value(value)}, which is no chat completion.",
                    hint="Of another form? An agent of type `http` with `body` and `reply` takes any JSON.",
                )
        return answer(_message(found, self.who), self.who)


def _message(found: Answered, who: str) -> object:
    """Put an answer together, from one piece or from many."""
    draft = Draft()
    for value in events_of(found.kind or "application/json", found.body):
        event = as_dict(value)
        if event.get("error"):
            raise AgentError(f"{who} broke off with an error: {format_value(event['error'])}")
        SHAPES["chat.completions"](draft, event)
    message = draft.message()
    if not message.tool_calls:
        return message.text
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.text or None, "tool_calls": calls}
