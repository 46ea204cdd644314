"""Agents over HTTP: one request for a message. Nothing is retried: an agent acts, and acting twice is another test.

An agent never reached (unknown host, no listener) is AgentUnreachable, the environment's fault. Every error after the
connection is the agent's; one that answered before in this conversation and does not listen any more has crashed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote, urlsplit

from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.core.dialects.messages import Draft, as_dict
from llmproxy.core.dialects.openai import decode_chat_completion
from llmproxy.core.dialects.stream_events import list_stream_events
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import AgentError, AgentUnreachable, SuiteError, printable
from llmproxy.protocol import DEFAULT_SESSION, Mode
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.run_session import RunSession, redirect_session_to_other_session
from llmproxy.scenario.types import AgentInput, AgentReturnTypes
from llmproxy.scenario.values.messages import (
    convert_json_value_to_text,
    extract_html_title,
    format_value_as_short_json,
    join_user_texts,
    keep_text_end,
    parse_value_path,
    require_value_at_path,
    validate_agent_answer,
)

if TYPE_CHECKING:
    import httpx

NAMES = {
    "message": "what the user newly said, as text; null if nobody said anything",
    "thread_id": "id of the conversation, made by us",
    "messages": "the whole conversation, as messages in OpenAI's form",
    "history": "the same without what is new",
    "userId": "the user that a suite's run works as; null elsewhere",
    "conversation": "id of the conversation that the agent gave in its last answer; null before",
    "session": "name of the run's session at the proxy; null without one",
    "proxy": "address of the proxy; null without one",
    "llm": "object with base_urls, headers and env for the run's session; null without one",
}
HANDOVER = ("session", "llm")
"""Names that hand over the session: an agent that gets one of them needs no turn."""
_NAME = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<braced>[A-Za-z_][\w.]*)\}|env\.(?P<env>[A-Za-z_]\w*)|(?P<bare>[A-Za-z_]\w*))"
)


@dataclass(frozen=True, slots=True)
class AgentRequestTemplate:
    """A request to an agent: JSON (or a header) in which ``$name`` stands for a value.

    A text that is only a name becomes the value itself, also a list or an object; inside a longer text the value is
    inserted as text. ``${name}`` if letters follow, ``$$`` for a dollar sign, ``$env.NAME`` for a variable.
    """

    tree: Any
    names: frozenset[str]

    @classmethod
    def from_tree(cls, tree: Any, what: str) -> AgentRequestTemplate:
        """Parse a template; `what` names its key for errors. Raises SuiteError for an unknown name."""
        found = frozenset(_iter_names(tree))
        for name in sorted(found):
            if name not in NAMES and not name.startswith("env."):
                known = ", ".join(f"${each}" for each in NAMES)
                raise SuiteError(
                    f"{what}: there is no ${name}{did_you_mean(name, NAMES)}",
                    hint=f"There are {known} and $env.NAME; $$ is a dollar sign.",
                )
        return cls(tree, found)

    @property
    def sends_session(self) -> bool:
        return bool(self.names & set(HANDOVER))

    def fill(self, values: Mapping[str, Any], env: Mapping[str, str]) -> Any:
        """Return the template with values. Raises AgentUnreachable: an environment variable is not set."""

        def find_value(match: re.Match[str]) -> Any:
            if match["dollar"]:
                return "$"
            name = _get_matched_name(match)
            if (variable := name.removeprefix("env.")) == name:
                return values[name]
            if variable not in env:
                what = f"the variable {variable} is not set"
                raise AgentUnreachable(f"{what}, which the agent's configuration takes by ${name}.")
            return env[variable]

        def fill_in(tree: Any) -> Any:
            if isinstance(tree, str):
                if whole := _NAME.fullmatch(tree):
                    return find_value(whole)
                return _NAME.sub(lambda match: convert_json_value_to_text(find_value(match)), tree)
            if isinstance(tree, Mapping):
                return {convert_json_value_to_text(fill_in(key)): fill_in(value) for key, value in tree.items()}
            return [fill_in(value) for value in tree] if isinstance(tree, list) else tree

        return fill_in(self.tree)


def build_agent_template_values(given: AgentInput, conversation: str | None = None) -> dict[str, Any]:
    llm = given.llm
    new = len(given.new_messages)
    return {
        "message": join_user_texts(given.new_messages),
        "thread_id": given.thread_id,
        "messages": given.messages,
        "history": given.messages[: len(given.messages) - new] if new else given.messages,
        "userId": getattr(given.scenario_state, "user_id", None),
        "conversation": conversation,
        "session": llm.session if llm else None,
        "proxy": llm.proxy if llm else None,
        "llm": llm.to_dict() if llm else None,
    }


def _iter_names(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield from (_get_matched_name(match) for match in _NAME.finditer(tree) if not match["dollar"])
    members = (*tree, *tree.values()) if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    for each in members:
        yield from _iter_names(each)


def _get_matched_name(match: re.Match[str]) -> str:
    return match["braced"] or match["bare"] or f"env.{match['env']}"


_ENV_IN_FILE = re.compile(r"\$\{env:(\w+)\}")


def fill_env_variables(tree: Any, where: str, env: Mapping[str, str]) -> Any:
    """Put variables of the environment where ``${env:NAME}`` stands in a text. Raises SuiteError: one is not set."""
    if isinstance(tree, Mapping):
        return {key: fill_env_variables(value, f"{where}.{key}", env) for key, value in tree.items()}
    if isinstance(tree, list):
        return [fill_env_variables(each, where, env) for each in tree]
    if not isinstance(tree, str):
        return tree
    for name in _ENV_IN_FILE.findall(tree):
        if name not in env:
            raise SuiteError(f"{where}: the environment has no variable {name}", hint=f"Set it: export {name}=...")
    return _ENV_IN_FILE.sub(lambda found: env[found[1]], tree)


CONNECT = 10.0  # seconds
LARGEST = 32 << 20  # bytes of an answer
_LOCAL = ("127.0.0.1", "localhost", "::1")
_GOOD = range(200, 300)
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class AgentHttpReply:
    kind: str  # content type, without parameters
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self, who: str) -> Any:
        """Return the parsed body. Raises AgentError for a web page, an empty body, and invalid JSON."""
        if not self.body.strip():
            raise AgentError(f"{who} gave an empty answer.")
        if (title := extract_html_title(self.text)) is not None or self.kind == "text/html":
            named = f" ({title!r})" if title else ""
            raise AgentError(f"{who} answered with a web page{named}, not with JSON.", hint="Is it the right URL?")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise AgentError(
                f"{who} answered with what is no JSON ({error}):\n{keep_text_end(self.text, 500)}"
            ) from error


def validate_agent_url_syntax(url: str) -> str:
    """Return an agent's address. Raises SuiteError: it is none."""
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        hint = "It is like http://127.0.0.1:8000/chat"
        if "$" in url:
            hint += "; a variable of the environment is written ${env:NAME}"
        raise SuiteError(f"url: {url!r} is no address of an agent.", hint=hint)
    return url.strip()


class HttpAdapter(AgentAdapter):
    in_process: ClassVar[bool] = False

    def __init__(self, url: str, headers: Mapping[str, str] | None, timeout: float) -> None:
        """Check the arguments; `timeout` in seconds, for a whole answer."""
        self.url = validate_agent_url_syntax(url)
        self.timeout = timeout
        self.headers = AgentRequestTemplate.from_tree(dict(headers or {}), "headers")
        self.more_headers: dict[str, str] = {}
        self._client: httpx.AsyncClient | None = None
        self._reached: set[str] = set()
        self._ids: dict[str, str] = {}  # ours -> the agent's

    @property
    def who(self) -> str:
        parts = urlsplit(self.url)  # without user, password and query, where keys may stand
        return f"the agent at {parts.scheme}://{printable(parts.netloc.rpartition('@')[2] + parts.path)}"

    @property
    def sends_session(self) -> bool:
        return self.headers.sends_session

    async def open(self, session: RunSession | None) -> None:  # noqa: ARG002 - it comes with each input
        self._reached, self._ids = set(), {}

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def clone(self) -> Self:
        made = super().clone()
        made._client, made._reached, made._ids = None, set(), {}  # noqa: SLF001 (its own kind)
        made.more_headers = dict(self.more_headers)
        return made

    async def send_request(self, method: str, body: object, values: Mapping[str, Any]) -> AgentHttpReply:
        """Send one request, once. Raises AgentUnreachable: no connection; AgentError: no valid answer."""
        import httpx

        thread = str(values.get("thread_id"))
        headers = {str(name): str(value) for name, value in self.headers.fill(values, os.environ).items()}
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._request_reply(method, body, headers | self.more_headers)
        except TimeoutError as error:
            raise AgentError(f"{self.who} did not answer within {self.timeout:g} s.") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            what = str(error) or type(error).__name__
            if thread in self._reached:
                gone = f"{self.who} answered before, and now nobody listens there any more: {what}"
                raise AgentError(gone) from error
            raise AgentUnreachable(f"{self.who} cannot be reached: {what}", hint="Is it running?") from error
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

    async def _request_reply(self, method: str, body: object, headers: Mapping[str, str]) -> AgentHttpReply:
        import httpx

        if self._client is None:
            # Variables of this process may name our own proxy; what is on this machine is asked directly.
            trust_env = urlsplit(self.url).hostname not in _LOCAL
            # A connection kept open may be closed by the agent at the moment of the next message; nothing is asked
            # twice, so that would look like a crash.
            limits = httpx.Limits(max_keepalive_connections=0)
            timeout = httpx.Timeout(None, connect=CONNECT)
            self._client = httpx.AsyncClient(timeout=timeout, trust_env=trust_env, limits=limits)
        content = bytearray()
        async with self._client.stream(method, self.url, headers=headers, json=body) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > LARGEST:
                    raise AgentError(f"{self.who} answered with more than {LARGEST >> 20} MB.")
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            found = AgentHttpReply(kind, bytes(content))
            if response.status_code not in _GOOD:
                raise self._build_refusal(response.status_code, response.headers.get("location", ""), found)
        return found

    def _build_refusal(self, status: int, location: str, answer: AgentHttpReply) -> AgentError:
        if status in _REDIRECTS:
            where = format_value_as_short_json(location)
            what = f"{self.who} answered HTTP {status}, a redirection to {where}, which is not followed."
            return AgentError(what, hint="Give the address that answers.")
        title = extract_html_title(answer.text)
        said = f"a web page ({title!r})" if title is not None else keep_text_end(answer.text) or "(nothing)"
        return AgentError(f"{self.who} answered HTTP {status}:\n{said}")


BODY: Mapping[str, Any] = {"message": "$message", "thread_id": "$thread_id"}
METHODS = ("POST", "PUT", "PATCH", "GET")
_TEXT = "text/plain"


class HttpAgent(HttpAdapter):
    def __init__(
        self, url: str, method: str = "POST", body: Any = None, reply: str | None = None,
        conversation: str | None = None, headers: Mapping[str, str] | None = None, timeout: float = 120.0,
        processing: str | None = None,
    ) -> None:  # fmt: skip
        """Use the endpoint at `url`; `url`, `body`, `headers` are `AgentRequestTemplate`s, without `body` `BODY`.

        Paths (see `parse_value_path`): `reply` of the answer, None takes an object with `text`, `message`, `messages`;
        `conversation` of the id that the agent assigns; `processing` of its statements about its history (condenser,
        pruner, token limiter). `timeout`: seconds for a whole answer.

        Raises SuiteError: one of them is invalid.
        """
        super().__init__(url, headers, timeout)
        self.method = method.upper()
        if self.method not in METHODS:
            near = did_you_mean(self.method, METHODS)
            raise SuiteError(f"method: {method!r} is not one of {', '.join(METHODS)}{near}")
        if self.method == "GET" and body is not None:
            raise SuiteError("method: a GET sends no body; put ${message} into the url, or use POST.")
        self._address = AgentRequestTemplate.from_tree(self.url, "url")
        self.body = AgentRequestTemplate.from_tree(dict(BODY) if body is None else body, "body")
        self.reply = None if reply is None else parse_value_path(reply, "reply")
        self.conversation = None if conversation is None else parse_value_path(conversation, "conversation")
        self.processing = None if processing is None else parse_value_path(processing, "processing")
        self.declared_processing: Any = None
        sends_id = any("conversation" in each.names for each in (self.body, self.headers, self._address))
        if sends_id and self.conversation is None:
            raise SuiteError(
                "body: $conversation is the id that the agent gave, and nothing says where it stands.",
                hint="Give its path as `conversation`, or use $thread_id, which is ours.",
            )

    @property
    def sends_session(self) -> bool:
        return any(each.sends_session for each in (self.body, self.headers, self._address))

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        values = build_agent_template_values(input, self._ids.get(input.thread_id))
        body = None if self.method == "GET" else self.body.fill(values, os.environ)
        if self._address.names:  # every value is percent-encoded
            plain = {name: quote("" if value is None else str(value), safe="") for name, value in values.items()}
            self.url = str(self._address.fill(plain, os.environ))
        found = await self.send_request(self.method, body, values)
        is_text = found.kind == _TEXT and found.body.strip() and (self.reply is None or not self.reply.steps)
        whole = found.text if is_text else found.json(self.who)
        self.declared_processing = None
        if self.processing is not None:
            with suppress(LookupError):  # an answer that says nothing of it
                self.declared_processing = require_value_at_path(self.processing, whole)
        if self.conversation is not None:
            self._ids[input.thread_id] = str(self._pick_value(self.conversation, whole))
        if self.reply is None:
            return validate_agent_answer(whole, self.who)
        said = self._pick_value(self.reply, whole)
        if isinstance(said, list) and said and all(isinstance(part, str) for part in said):
            said = "".join(said)
        if said is None or isinstance(said, (int, float)):
            raise AgentError(
                f"{self.who} has {format_value_as_short_json(said)} at {self.reply.text}, which is no text. It sent "
                f"{format_value_as_short_json(whole)}"
            )
        return validate_agent_answer(said, self.who)

    def _pick_value(self, path: Any, whole: object) -> Any:
        try:
            return require_value_at_path(path, whole)
        except LookupError as error:
            raise AgentError(
                f"{self.who} answered without {path.text}: {error}\nIt sent {format_value_as_short_json(whole)}"
            ) from error


_PATH = "/chat/completions"
_STREAM = "text/event-stream"


class OpenAIAgent(HttpAdapter):
    def __init__(
        self,
        url: str,
        model: str = "agent",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,  # noqa: FBT001, FBT002 - written as stream=True
        timeout: float = 120.0,
    ) -> None:
        """Use the endpoint below `url` (``http://127.0.0.1:8000/v1``); `timeout`: seconds for a whole answer."""
        super().__init__(url, headers, timeout)
        if not self.url.rstrip("/").endswith(_PATH):
            self.url = self.url.rstrip("/") + _PATH
        self.model = model
        self.stream = stream

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        body = {"model": self.model, "messages": input.messages, **({"stream": True} if self.stream else {})}
        found = await self.send_request("POST", body, build_agent_template_values(input))
        if found.kind != _STREAM:
            value = as_dict(found.json(self.who))
            if value.get("error"):
                raise AgentError(f"{self.who} answered with an error: {format_value_as_short_json(value['error'])}")
            if not isinstance(value.get("choices"), list):
                raise AgentError(
                    f"{self.who} answered {format_value_as_short_json(value)}, which is no chat completion.",
                    hint="Of another form? An agent of type `http` with `body` and `reply` takes any JSON.",
                )
        return validate_agent_answer(_build_completion_reply(found, self.who), self.who)


def _build_completion_reply(found: AgentHttpReply, who: str) -> object:
    draft = Draft()
    for value in list_stream_events(found.kind or "application/json", found.body):
        event = as_dict(value)
        if event.get("error"):
            raise AgentError(f"{who} broke off with an error: {format_value_as_short_json(event['error'])}")
        decode_chat_completion(draft, event)
    message = draft.build_message()
    if not message.tool_calls:
        return message.text
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.text or None, "tool_calls": calls}


PROBE = "llmproxy-probe"
PROBING = 20.0  # seconds; its answer does not matter


class ServiceAgent(AgentAdapter):
    """A running service without knowledge of runs: its base URLs name one session of the proxy for all its callers.

    It is tested one message at a time: while it answers, that session is bound to the run's. One that forwards a header
    of the request to its LLM calls can be tested in parallel (`propagates`), once a probe has proven it.
    """

    in_process: ClassVar[bool] = False

    def __init__(self, agent: HttpAdapter, session: str = DEFAULT_SESSION, propagates: str | None = None) -> None:
        """Call the service by `agent`; `session` is the one in its base URLs, ``default`` without one.

        `propagates`: name of a header that it forwards, as ``x-llmproxy-session``, with each of its LLM calls.
        """
        if propagates is not None and not (propagates.isascii() and propagates.replace("-", "").isalnum()):
            raise SuiteError(f"propagates: {propagates!r} cannot be the name of a header.")
        self.agent = agent
        self.session = session
        self.propagates = propagates
        self.notes: tuple[str, ...] = ()
        self._run: RunSession | None = None
        self._proven: dict[str, bool] = {}
        """Probe results by proxy; shared with clones."""

    @property
    def session_to_bind(self) -> str | None:
        if self._run is None or self.agent.sends_session or self._proven.get(self._run.proxy):
            return None
        return self.session

    @property
    def declared_processing(self) -> Any:
        return OptionalAdapterAttributes.of_adapter(self.agent).declared_processing

    async def open(self, session: RunSession | None) -> None:
        self.notes, self._run = (), session
        await self.agent.open(session)
        if session is None or self.agent.sends_session:
            return
        if self.propagates is not None and session.proxy not in self._proven:
            await self._probe_header_propagation(session.control)
        if self.session_to_bind is None:
            self.agent.more_headers = {str(self.propagates): session.name}
            return
        await session.watch_service_session(self.session)
        if self.propagates is not None:
            did_not = f"{self.agent.who} did not send {self.propagates!r} on with its LLM calls"
            self.notes = (f"{did_not}, so it was tested one message at a time.",)

    async def close(self) -> None:
        self._run = None
        await self.agent.close()

    def clone(self) -> Self:
        made = super().clone()
        made.agent = self.agent.clone()
        return made

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Send one message and return the service's answer; the caller has the turn (`RunSession.speaking_turn`)."""
        return await self.agent.call(input)

    async def _probe_header_propagation(self, control: ControlApiClient) -> None:
        """Send one message under a probe session, and check whether its LLM calls arrive there.

        Other destinations are bound to a second probe session meanwhile. Both replay an empty cassette: whatever the
        service does with the header, no call goes to a provider, and no model makes the agent act.
        """
        told, otherwise = (f"{PROBE}-{token_hex(8)}" for _ in range(2))
        for name in (told, otherwise):
            await asyncio.to_thread(control.open_session, name, mode=Mode.REPLAY.value)
        trial = self.agent.clone()
        trial.more_headers = {str(self.propagates): told}
        trial.timeout = min(trial.timeout, PROBING)
        try:
            async with redirect_session_to_other_session(control, self.session, otherwise):
                if control.url in self._proven:
                    return  # another run tried it while this one waited
                with suppress(AgentError):  # the model's answer is a miss, which the service may take as it likes
                    hello = [{"role": "user", "content": "Hello"}]
                    asked = AgentInput(thread_id=told, messages=hello, new_messages=hello, scenario_state=None)
                    await trial.call(asked)
                reports = [await asyncio.to_thread(control.report, name) for name in (told, otherwise)]
                self._proven[control.url] = bool(reports[0].calls) and not reports[1].calls
        finally:
            await trial.close()
            for name in (told, otherwise):
                with suppress(ControlError):
                    await asyncio.to_thread(control.close_session, name)
