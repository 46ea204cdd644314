"""One request to an agent over HTTP, and everything that can go wrong with it, told apart.

Never reached (no such host, nobody listens) is AgentUnreachable, the environment's fault; so nothing was tested. Whatever comes after the
connection is the agent's: it breaks off, hangs, answers 500, a web page or nothing. An agent that answered before in this conversation and
does not listen any more has crashed. Nothing is asked twice: an agent acts, and what it did twice is another test.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from llmproxy.core.traffic.differences import printable
from llmproxy.errors import AgentError, AgentUnreachable, SuiteError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.agents.templates import Template
from llmproxy.scenario.values.replies import format_value, html_title, tail

if TYPE_CHECKING:
    import httpx

    from llmproxy.scenario.proxy.session import RunSession

CONNECT = 10.0
"""Seconds until a connection must be there."""
LARGEST = 32 << 20
"""Bytes of an answer that are read."""
_LOCAL = ("127.0.0.1", "localhost", "::1")
_GOOD = range(200, 300)
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back, with a status that is good."""

    kind: str
    """Its content type, without parameters."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self, who: str) -> Any:  # noqa: ANN401 - JSON
        """Return the parsed body. Raises AgentError for a web page, for nothing, and for what is no JSON."""
        if not self.body.strip():
            raise AgentError(f"{who} gave an empty answer.")
        title = html_title(self.text)
        if title is not None or self.kind == "text/html":
            named = f" ({title!r})" if title else ""
            raise AgentError(f"{who} answered with a web page{named}, not with JSON.", hint="Is it the right URL?")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise AgentError(f"{who} answered with what is no JSON ({error}):\n{tail(self.text, 500)}") from error


def read_url(url: str, what: str = "url") -> str:
    """Check an agent's address. Raises SuiteError, saying what it should look like."""
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        hint = "It is like http://127.0.0.1:8000/chat"
        if "$" in url:
            hint += "; a variable of the environment is written ${env:NAME}"
        raise SuiteError(f"{what}: {url!r} is no address of an agent.", hint=hint)
    return url.strip()


class HttpAdapter(AgentAdapter):
    """The base of agents behind HTTP: one connection pool for a run, one request for a message."""

    in_process: ClassVar[bool] = False

    def __init__(self, url: str, headers: Mapping[str, str] | None, timeout: float) -> None:
        """Check what was given; `timeout` in seconds, for a whole answer."""
        self.url = read_url(url)
        self.timeout = timeout
        self.headers = Template.read(dict(headers or {}), "headers")
        self.more_headers: dict[str, str] = {}
        """Sent along, for whoever hands over the session."""
        self._client: httpx.AsyncClient | None = None
        self._reached: set[str] = set()

    @property
    def who(self) -> str:
        """How errors name it."""
        parts = urlsplit(self.url)  # without user, password and query, where keys may stand
        place = parts.netloc.rpartition("@")[2]
        return f"the agent at {parts.scheme}://{printable(place + parts.path)}"

    @property
    def hands_over(self) -> bool:
        """Whether the agent is told its session in each request."""
        return self.headers.hands_over

    async def open(self, session: RunSession | None) -> None:  # noqa: ARG002 - it comes with each input
        """Forget the last run."""
        self._reached = set()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def clone(self) -> Self:
        """Return one with connections of its own."""
        made = super().clone()
        made.forget()
        return made

    def forget(self) -> None:
        """Know of no connection and no conversation; those that are open are somebody else's."""
        self._client, self._reached, self.more_headers = None, set(), dict(self.more_headers)

    async def send(self, method: str, body: object, values: Mapping[str, Any]) -> Answered:
        """Make one request, once.

        Raises:
            AgentUnreachable: nobody was there.
            AgentError: somebody was, and did not answer as an agent should.

        """
        import httpx

        thread = str(values.get("thread_id"))
        headers = {str(name): str(value) for name, value in self.headers.fill(values, os.environ).items()}
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._ask(method, body, headers | self.more_headers)
        except TimeoutError as error:
            raise AgentError(f"{self.who} did not answer within {self.timeout:g} s.") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise self._unreachable(error, crashed=thread in self._reached) from error
        except AgentError:
            self._reached.add(thread)
            raise
        except (httpx.InvalidURL, UnicodeError) as error:
            raise SuiteError(f"the request to {self.who} cannot be written: {error}") from error
        except httpx.HTTPError as error:
            self._reached.add(thread)
            raise AgentError(f"{self.who} broke off: {str(error) or type(error).__name__}") from error
        self._reached.add(thread)
        return answer

    async def _ask(self, method: str, body: object, headers: Mapping[str, str]) -> Answered:
        if self._client is None:
            self._client = self._new_client()
        content = bytearray()
        async with self._client.stream(method, self.url, headers=headers, json=body) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > LARGEST:
                    raise AgentError(f"{self.who} answered with more than {LARGEST >> 20} MB.")
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            found = Answered(kind, bytes(content))
            if response.status_code not in _GOOD:
                raise self._build_refusal(response.status_code, response.headers.get("location", ""), found)
        return found

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # Variables of this process may name our own proxy; what is on this machine is asked directly.
        local = urlsplit(self.url).hostname in _LOCAL
        timeout = httpx.Timeout(None, connect=CONNECT)
        # A connection kept open may be closed by the agent at the moment of the next message; nothing is asked twice,
        # so that would look like a crash.
        return httpx.AsyncClient(timeout=timeout, trust_env=not local, limits=httpx.Limits(max_keepalive_connections=0))

    def _build_refusal(self, status: int, location: str, answer: Answered) -> AgentError:
        if status in _REDIRECTS:
            return AgentError(
                f"{self.who} answered HTTP {status}, a redirection to {format_value(location)}, which is not followed.",
                hint="Give the address that answers.",
            )
        title = html_title(answer.text)
        said = f"a web page ({title!r})" if title is not None else tail(answer.text) or "(nothing)"
        return AgentError(f"{self.who} answered HTTP {status}:\n{said}")

    def _unreachable(self, error: Exception, *, crashed: bool) -> AgentError | AgentUnreachable:
        what = str(error) or type(error).__name__
        if crashed:
            return AgentError(f"{self.who} answered before, and now nobody listens there any more: {what}")
        return AgentUnreachable(f"{self.who} cannot be reached: {what}", hint="Is it running?")
