"""An agent behind any HTTP endpoint that speaks JSON: a template of what is sent, a path to what is read.

    HttpAgent("http://127.0.0.1:8000/ask", body={"question": "$message", "user": "$thread_id"}, reply="$.data.answer")

An agent that names its conversations itself gives the path of that id (`conversation`) and gets it back as ``$conversation``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import AgentError, SuiteError
from llmproxy.scenario.agents.http import Answered, HttpAdapter
from llmproxy.scenario.agents.templates import Template, values_of
from llmproxy.scenario.values.replies import answer, format_value, pick, read_path

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.scenario.types import AgentInput, AgentReturnTypes

BODY: Mapping[str, Any] = {"message": "$message", "thread_id": "$thread_id"}
"""What is sent unless a template says otherwise."""
METHODS = ("POST", "PUT", "PATCH", "GET")
_TEXT = "text/plain"


class HttpAgent(HttpAdapter):
    """Sends a template filled in, reads the answer at a path."""

    def __init__(
        self,
        url: str,
        method: str = "POST",
        body: Any = None,  # noqa: ANN401 - JSON
        reply: str | None = None,
        conversation: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        processing: str | None = None,
    ) -> None:
        """Speak to the endpoint at `url`.

        Args:
            url: Where requests go; may hold ``$thread_id`` and the other names.
            method: POST, PUT, PATCH, or GET, which sends no body.
            body: Template of what is sent, see `templates`; None is ``{"message": "$message", "thread_id": "$thread_id"}``.
            reply: Path of the answer, see `replies`; None takes ``{"text": ...}``, ``{"message": ...}`` or ``{"messages": [...]}``.
            conversation: Path of the id that the agent gives its conversation.
            headers: Templates, too.
            timeout: Seconds for a whole answer.
            processing: Path of what the agent says about its history (condenser, pruner, token limiter); see `declared`.

        Raises:
            SuiteError: one of them cannot be meant.

        """
        super().__init__(url, headers, timeout)
        self.method = method.upper()
        if self.method not in METHODS:
            raise SuiteError(
                f"method: {method!r} is not one of {', '.join(METHODS)}{did_you_mean(self.method, METHODS)}"
            )
        if self.method == "GET" and body is not None:
            raise SuiteError("method: a GET sends no body; put ${message} into the url, or use POST.")
        self._address = Template.read(self.url, "url")
        self.body = Template.read(dict(BODY) if body is None else body, "body")
        self.reply = None if reply is None else read_path(reply, "reply")
        self.conversation = None if conversation is None else read_path(conversation, "conversation")
        self.processing = None if processing is None else read_path(processing, "processing")
        self.declared: Any = None
        """What stood there in the last answer; None for nothing."""
        if self.conversation is None and "conversation" in self._names:
            raise SuiteError(
                "body: $conversation is the id that the agent gave, and nothing says where it stands.",
                hint="Give its path as `conversation`, or use $thread_id, which is ours.",
            )
        self._ids: dict[str, str] = {}

    @property
    def _names(self) -> frozenset[str]:
        return self.body.names | self.headers.names | self._address.names

    @property
    def hands_over(self) -> bool:
        """Whether the agent is told its session in each request."""
        return any(each.hands_over for each in (self.body, self.headers, self._address))

    async def open(self, session: RunSession | None) -> None:
        """Forget the last run's conversations."""
        await super().open(session)
        self._ids = {}

    def forget(self) -> None:
        super().forget()
        self._ids = {}

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Send one message and return the agent's answer."""
        values = values_of(input, self._ids.get(input.thread_id))
        body = None if self.method == "GET" else self.body.fill(values, os.environ)
        self.url = self._fill_url(values)
        found = await self.send(self.method, body, values)
        whole = found.text if self._is_text(found) else found.json(self.who)
        self.declared = None
        if self.processing is not None:
            with suppress(LookupError):  # an answer that says nothing of it
                self.declared = pick(self.processing, whole)
        if self.conversation is not None:
            self._ids[input.thread_id] = str(self._at(self.conversation, whole))
        if self.reply is None:
            return answer(whole, self.who)
        said = self._at(self.reply, whole)
        if isinstance(said, list) and said and all(isinstance(part, str) for part in said):
            said = "".join(said)
        if said is None or isinstance(said, (int, float)):
            raise AgentError(
                f"{self.who} has {format_value(said)} at {self.reply.text}, which is no text. It sent {format_value(whole)}"
            )
        return answer(said, self.who)

    def _fill_url(self, values: Mapping[str, Any]) -> str:
        """Return the address, every value in it percent-encoded."""
        from urllib.parse import quote

        if not self._address.names:
            return self.url
        plain = {name: quote("" if value is None else str(value), safe="") for name, value in values.items()}
        return str(self._address.fill(plain, os.environ))

    def _is_text(self, found: Answered) -> bool:
        """Tell whether a plain text is the whole answer."""
        return found.kind == _TEXT and bool(found.body.strip()) and (self.reply is None or not self.reply.steps)

    def _at(self, path: Any, whole: object) -> Any:  # noqa: ANN401 - a Path; JSON
        try:
            return pick(path, whole)
        except LookupError as error:
            raise AgentError(
                f"{self.who} answered without {path.text}: {error}\nIt sent {format_value(whole)}"
            ) from error
