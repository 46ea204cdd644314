"""Transport of one model call: OpenAI's chat completions by httpx, everything else by litellm unchanged.

litellm's import takes seconds and each of its calls ten times the processor time of the request itself. A request is
sent directly only if litellm would send the same body, so that a recording made by one is found by the other.

Scenarios run in many threads, each with an event loop, and a client belongs to its loop: so all calls run in one loop,
in a thread of its own. Nothing is retried here, and no redirect is followed: it would bypass the proxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from llmproxy.advice import build_install_command
from llmproxy.core.dialects.dialect_table import ERROR_HEADER
from llmproxy.core.dialects.messages import as_dict, as_list
from llmproxy.core.providers.provider_table import LITELLM_OFFLINE
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.errors import MachineError
from llmproxy.scenario.models.errors import HttpModelCallFailed, ModelError
from llmproxy.scenario.types import Message
from llmproxy.scenario.values.messages import extract_html_title

if TYPE_CHECKING:
    import httpx

_THOUGHT = re.compile(r"<(think|thinking|reasoning|thought)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"^.*</(?:think|thinking|reasoning|thought)>", re.DOTALL | re.IGNORECASE)
_GOOD = range(200, 300)
_REDIRECTS = range(300, 400)
_UNUSABLE = 500
"""Status of an invalid answer: like a failure of the server, so that it is retried."""
_UNPROCESSABLE = 422
_STATUS_DIGITS = 3
_QUOTED = 300  # characters of a body quoted in an error


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    text: str
    """Without reasoning, and without surrounding white space."""
    tool_calls: tuple[ModelToolCall, ...] = ()

    @classmethod
    def from_json_text(cls, kept: str) -> ModelAnswer:
        value = json.loads(kept)  # earlier versions kept more members
        return cls(value["text"], tuple(ModelToolCall(**call) for call in value["tool_calls"]))

    def to_text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def strip_reasoning(content: object) -> str:
    if isinstance(content, list):
        content = "".join(
            str(part.get("text") or "") for part in content if isinstance(part, dict) and part.get("type") == "text"
        )
    return _THOUGHT_END.sub("", _THOUGHT.sub("", content if isinstance(content, str) else "")).strip()


def parse_litellm_response(found: Any) -> ModelAnswer:
    """Return the answer in a litellm response. Raises ModelError if it has no choice."""
    if not (choices := getattr(found, "choices", None) or []):
        raise ModelError(f"No response from LLM: {found!r}")
    message = choices[0].message
    calls = tuple(
        ModelToolCall(str(call.function.name or ""), str(call.function.arguments or ""))
        for call in message.tool_calls or ()
        if call.function is not None
    )
    return ModelAnswer(strip_reasoning(message.content), calls)


def parse_openai_chat_response(status: int, headers: Mapping[str, str], body: bytes) -> ModelAnswer:
    """Parse an answer in OpenAI's chat completions. Raises HttpModelCallFailed; ModelError: there is no choice."""
    value = parse_json_or_none(body)
    found = value.get("error") if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    error = found.get("error", found) if isinstance(found, dict) else found
    said = _format_error(error)
    code = error.get("code") if isinstance(error, dict) else None

    if status in _REDIRECTS:
        place = str(headers.get("location", ""))[:_QUOTED]
        what = f"HTTP {status}, a redirection to {place!r}, which is not followed: give the address that answers"
        raise HttpModelCallFailed(what, status)
    if status not in _GOOD:
        ours = headers.get(ERROR_HEADER, "")
        raise HttpModelCallFailed(said if ours else f"HTTP {status}: {said or _format_body(body)}", status, ours)
    if said:
        raise HttpModelCallFailed(f"HTTP {status}: {said}", _derive_status_from_code(code))
    choices = value.get("choices") if isinstance(value, dict) else None
    if choices == []:
        raise ModelError(f"No response from LLM: {_format_body(body)}")
    first = choices[0] if isinstance(choices, list) else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict):
        said = f"the answer is no chat completion, there is no message in it: {_format_body(body)}"
        raise HttpModelCallFailed(said, _UNUSABLE)
    functions = (as_dict(each).get("function") for each in as_list(message.get("tool_calls")))
    called = tuple(_read_call(function) for function in functions if isinstance(function, dict))
    return ModelAnswer(strip_reasoning(message.get("content")), called)


def _read_call(function: Mapping[str, Any]) -> ModelToolCall:
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
    return ModelToolCall(str(function.get("name") or ""), written)


def _format_error(error: object) -> str:
    if isinstance(error, dict):
        said = error.get("message")
        if isinstance(said, (dict, list)):
            said = json.dumps(said)
        return str(said or "") or ("" if error.get("code") is None else json.dumps(error))
    return error if isinstance(error, str) else ""


def _derive_status_from_code(code: object) -> int:
    """Return the status of an error inside a successful answer: OpenRouter writes it as the code."""
    if code is None:
        return _UNPROCESSABLE
    said = str(code) if isinstance(code, (int, str)) else ""
    return int(said) if said.isdecimal() and len(said) == _STATUS_DIGITS else _UNUSABLE


def _format_body(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    if (title := extract_html_title(text)) is not None:
        return f"a web page ({title!r})" if title else "a web page"
    return repr(text[:_QUOTED]) if text else "nothing"


BASE = "https://api.openai.com/v1"
TIMEOUT = 600.0  # seconds; litellm's default
CONNECT = 10.0  # seconds
_CONNECTIONS = 1000
_NO_KEY = 401
_TIMEOUT_STATUS = 408
_UNREACHABLE = 500
_OPENAI = re.compile(
    r"(ft:)?(gpt-4|gpt-4\.1|gpt-4\.1-mini|gpt-4\.1-nano|gpt-4o|gpt-4o-mini|gpt-4-turbo"
    r"|gpt-3\.5-turbo|gpt-3\.5-turbo-16k|chatgpt-4o)"
    r"(-\d{4}-\d\d-\d\d|-\d{4}|-\d{4}-preview|-preview|-latest)?(?(1)(:.*)?)"
)
"""Models of OpenAI's whose parameters litellm does not rewrite, unlike those of reasoning models."""
_REWRITTEN = re.compile(
    r"gpt-(?!oss)|(^|[/:_-])o\d|^responses/|codex|chat-latest|daybreak|computer-use|research|davinci|babbage|audio|"
    r"realtime|search|transcri|whisper|tts|image|dall-e|sora|video|embedding|moderation|container|claude|gemini",
    re.IGNORECASE,
)
"""Names that may mean a model whose parameters are rewritten, on any server."""
_BODY = frozenset(
    {"temperature", "max_tokens", "tools", "tool_choice", "response_format", "seed", "top_p", "n", "stop"}
    | {"presence_penalty", "frequency_penalty"}
)  # fmt: skip
"""Keywords that are members of the body, under the same name."""
_PLACES = frozenset({"model", "messages", "api_key", "api_base", "extra_headers", "timeout"})
_MESSAGE = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_ACCOUNT = {"OpenAI-Organization": ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID"), "OpenAI-Project": ("OPENAI_PROJECT_ID",)}
_LITELLM_VARIABLES = ("OPENAI_CUSTOM_HEADERS", "USE_LITELLM_PROXY", "SSL_VERIFY", "SSL_CERTIFICATE")
_LITELLM_ATTRIBUTES = (
    "callbacks", "input_callback", "success_callback", "failure_callback",
    "api_base", "api_key", "openai_key", "headers", "cache", "model_alias_map",
)  # fmt: skip
"""litellm settings that affect each call: if set, litellm makes the call."""
_UNSET: tuple[object, ...] = (None, False, "", [], {}, ["cache"])  # the last is litellm's own, without a cache


@dataclass(frozen=True, slots=True)
class ModelHttpRequest:
    url: str
    key: str | None
    headers: Mapping[str, str]
    content: bytes
    timeout: float  # seconds, for the whole answer
    proxied: bool = False


async def call_model(
    keywords: Mapping[str, Any], env: Mapping[str, str], *, served: bool, proxied: bool
) -> ModelAnswer:
    """Make one call; `served`: at a user's address. Raises HttpModelCallFailed, litellm's, ModelError (no choice)."""
    request = build_request_litellm_would_send(
        keywords, env, sys.modules.get("litellm"), served=served, proxied=proxied
    )
    return await run_in_model_loop(_get_litellm_answer(keywords) if request is None else request_chat_answer(request))


def is_known_openai_model_name(name: str) -> bool:
    """Return whether a name without a provider is certainly a model of OpenAI's."""
    return _OPENAI.fullmatch(name) is not None


def build_request_litellm_would_send(
    keywords: Mapping[str, Any], env: Mapping[str, str], litellm: object = None, *, served: bool, proxied: bool = False
) -> ModelHttpRequest | None:
    """Return the request that litellm would send, None if it would do more; `litellm` if imported."""
    told = {name: value for name, value in keywords.items() if value is not None}
    name = _get_direct_model_name(told.get("model"), served=served)
    messages = [_to_litellm_message_or_none(each) for each in told.get("messages", ())]
    headers, timeout = told.get("extra_headers", {}), told.get("timeout", TIMEOUT)
    if (
        name is None
        or not told.keys() <= _BODY | _PLACES
        or any(env.get(each) for each in _LITELLM_VARIABLES)
        or any(getattr(litellm, each, None) not in _UNSET for each in _LITELLM_ATTRIBUTES)
        or None in messages
        or not (isinstance(headers, dict) and all(isinstance(text, str) for text in (*headers, *headers.values())))
        or not isinstance(timeout, int | float)
    ):
        return None
    body = {"model": name, "messages": messages} | {key: value for key, value in told.items() if key in _BODY}
    try:
        content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError):  # a pydantic class as response format, say
        return None
    base = str(told.get("api_base") or env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE") or BASE)
    account = {header: next((env[each] for each in names if env.get(each)), "") for header, names in _ACCOUNT.items()}
    return ModelHttpRequest(
        url=f"{base.rstrip('/')}/chat/completions",
        key=told.get("api_key") or env.get("OPENAI_API_KEY"),
        headers={**{header: value for header, value in account.items() if value}, **headers},
        content=content,
        timeout=float(timeout),
        proxied=proxied,
    )


def _get_direct_model_name(model: object, *, served: bool) -> str | None:
    if not isinstance(model, str):
        return None
    name = model.removeprefix("openai/")
    if is_known_openai_model_name(name):
        return name
    return name if served and name != model and not _REWRITTEN.search(name) else None


def _to_litellm_message_or_none(message: Message) -> Message | None:
    """Return a message as litellm sends it, without members that are None; None if it would change more."""
    found = {name: value for name, value in message.items() if value is not None}
    plain = found.keys() <= _MESSAGE and found.get("role") in _ROLES and isinstance(found.get("content", ""), str)
    return found if plain else None


async def request_chat_answer(request: ModelHttpRequest) -> ModelAnswer:
    """Send a request, in the loop of model calls. Raises as `call_model`."""
    import httpx

    if not (key := request.key):
        said = "The api_key must be passed as api_key, or set as the environment variable OPENAI_API_KEY"
        raise HttpModelCallFailed(said, _NO_KEY)
    if not (key.isascii() and key.isprintable()) or key.endswith(" "):
        odd = "a line break, a blank at its end, or a letter that is not ASCII"
        raise HttpModelCallFailed(f"the api_key has characters that no key has: {odd}", _NO_KEY)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **request.headers}
    try:
        async with asyncio.timeout(request.timeout):
            client = _get_client(os.getpid(), proxied=request.proxied)
            found = await client.post(request.url, content=request.content, headers=headers)
    except TimeoutError as error:
        said = f"Request timed out: no answer within {request.timeout:g} s"
        raise HttpModelCallFailed(said, _TIMEOUT_STATUS) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError) as error:
        raise HttpModelCallFailed(f"the request cannot be written: {error}") from error
    except httpx.HTTPError as error:
        place = httpx.URL(request.url).netloc.decode()  # without a user and a password
        said = f"Connection error: {place}: {str(error) or type(error).__name__}"
        raise HttpModelCallFailed(said, _UNREACHABLE) from error
    return parse_openai_chat_response(found.status_code, found.headers, found.content)


@cache
def _get_client(process: int, *, proxied: bool) -> httpx.AsyncClient:  # noqa: ARG001 - a forked child has its own
    import httpx

    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT),
        limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
        trust_env=not proxied,
    )


def import_litellm() -> Any:
    """Return litellm; the first import takes seconds: not in an event loop. Raises MachineError: not installed."""
    # Otherwise its import loads a price list from the network.
    for name in LITELLM_OFFLINE:
        os.environ.setdefault(name, "True")
    try:
        import litellm
    except ImportError as error:
        raise MachineError(
            f"a model is to be called, and litellm cannot be imported ({error}).", hint=build_install_command("runner")
        ) from error
    litellm.suppress_debug_info = True
    return litellm


async def _get_litellm_answer(keywords: Mapping[str, Any]) -> ModelAnswer:
    # The first import takes seconds, in which this loop must not stand still for the others.
    known = hasattr(sys.modules.get("litellm"), "acompletion")
    litellm = import_litellm() if known else await asyncio.to_thread(import_litellm)
    asked = {**keywords, "num_retries": 0, "max_retries": 0}
    client = keywords.get("client")
    if client is not None and not type(client).__name__.startswith("Async"):  # `OpenAI(...)`, which cannot be awaited
        return parse_litellm_response(await asyncio.to_thread(litellm.completion, **asked))
    return parse_litellm_response(await litellm.acompletion(**asked))


_GUARD = threading.Lock()


@cache
def _start_loop(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - a forked child has no threads but its own
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="llmproxy-models", daemon=True).start()
    return loop


async def run_in_model_loop[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine there and return its result; cancelled with its waiter."""
    with _GUARD:
        loop = _start_loop(os.getpid())
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
