"""Ask a server that speaks OpenAI's chat completions, without litellm.

    Request -> one POST -> Answer, or CallFailed

Through the proxy, connections are the run's (`connections`), in its own loop: a call costs a fifth. Elsewhere they are httpx's, which knows
TLS and proxies, in the loop of model calls. Nothing is asked twice and no redirect is followed: it would lead past the proxy, and nothing would be recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.models.answer import Answer, Called, spoken_text
from llmproxy.scenario.models.direct import DirectRequest
from llmproxy.scenario.models.errors import CallFailed, ModelError
from llmproxy.scenario.values.replies import html_title

if TYPE_CHECKING:
    import httpx

    from llmproxy.scenario.proxy.connections import Connections

CONNECT = 10.0
"""Seconds until a connection must be there."""
_GOOD = range(200, 300)
_REDIRECTS = range(300, 400)
_UNUSABLE = 500
"""Status of an answer that is none: as if the server had failed, so that it is asked again."""
_UNPROCESSABLE = 422
_DIGITS = 9
"""Of a code that may be a status."""
_NO_KEY = 401
_TIMEOUT = 408
_QUOTED = 300
"""Characters of a body that an error quotes."""
_MANY = 1000
"""Connections to a provider."""
_HEADERS = {"accept": "application/json", "accept-encoding": "gzip, deflate"}


class _Clients:
    """The client of the loop of model calls."""

    def __init__(self) -> None:
        self._made: httpx.AsyncClient | None = None
        self._of: tuple[int, asyncio.AbstractEventLoop] | None = None

    def get(self) -> httpx.AsyncClient:
        """Return it, made when it is first needed in this loop, and again in a forked child."""
        here = os.getpid(), asyncio.get_running_loop()
        if self._made is None or self._of != here:
            self._made, self._of = _client(), here
        return self._made


_CLIENTS = _Clients()


async def ask(request: DirectRequest, connections: Connections | None = None) -> Answer:
    """Make one call: by connections to the proxy, or, in the loop of model calls, by a client of its own.

    Raises:
        CallFailed: no key, no answer in time, or not one that can be used.
        ModelError: there is no choice in the answer.

    """
    import httpx

    if not request.key:
        said = "The api_key must be passed as api_key, or set as the environment variable OPENAI_API_KEY"
        raise CallFailed(said, status=_NO_KEY)
    if not (request.key.isascii() and request.key.isprintable()) or request.key.endswith(" "):
        said = "the api_key has characters that no key has: a line break, a blank at its end, or a letter that is not ASCII"
        raise CallFailed(said, status=_NO_KEY)
    headers = {"authorization": f"Bearer {request.key}", "content-type": "application/json", **request.headers}
    try:
        async with asyncio.timeout(request.timeout):
            found = await _post(_url(request.base), headers, _json(request.body), connections)
    except TimeoutError as error:
        raise CallFailed(f"Request timed out: no answer within {request.timeout:g} s", status=_TIMEOUT) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError) as error:
        raise CallFailed(f"the request cannot be written: {error}", kind="BadRequestError") from error
    except httpx.HTTPError as error:
        place = _url(request.base).netloc.decode()  # without a user and a password
        what = f"Connection error: {place}: {str(error) or type(error).__name__}"
        raise CallFailed(what, status=_UNUSABLE, kind="APIConnectionError") from error
    return read(found.status_code, found.headers, found.content)


async def _post(
    url: httpx.URL, headers: Mapping[str, str], content: bytes, connections: Connections | None
) -> httpx.Response:
    import httpx

    if connections is None:
        return await _CLIENTS.get().post(url, content=content, headers=headers)
    # Without a client, which looks for redirects, cookies and hooks that are not there.
    request = httpx.Request("POST", url, headers={**_HEADERS, **headers}, content=content)
    request.extensions["timeout"] = {"connect": CONNECT}
    found = await connections.handle_async_request(request)
    try:
        await found.aread()
    finally:
        await found.aclose()
    return found


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Return what an answer says. Raises as `ask`."""
    value = _load_json(body)

    def build_failure(said: str, status: int = _UNUSABLE) -> CallFailed:
        return CallFailed(said, status=status, code=_code(value), headers=headers, body=body)

    if status in _REDIRECTS:
        place = str(headers.get("location", ""))[:_QUOTED]
        said = f"HTTP {status}, a redirection to {place!r}, which is not followed: give the address that answers"
        raise build_failure(said, status)
    if status not in _GOOD:
        raise build_failure(_message(value) or f"HTTP {status}: {_format_body(body)}", status)
    if not isinstance(value, dict):
        raise build_failure(f"Empty or invalid response from LLM endpoint. Received: {_format_body(body)}")
    if said := _message(value):
        raise build_failure(said, _status_of(_code(value)))
    choices = value.get("choices")
    if choices == []:
        raise ModelError(f"No response from LLM: {_format_body(body)}")
    first = choices[0] if isinstance(choices, list) else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise build_failure(f"Invalid response from LLM endpoint, there is no message in it: {_format_body(body)}")
    calls = message.get("tool_calls")
    called = tuple(_read_call(each) for each in calls if _is_call(each)) if isinstance(calls, list) else ()
    reason = "tool_calls" if called and first.get("finish_reason") == "stop" else first.get("finish_reason")
    return Answer(spoken_text(message.get("content")), called, str(reason or "stop"), _usage(value.get("usage")))


def _status_of(code: object) -> int:
    """Return the status that an error means which came with a good one."""
    if code is None:
        return _UNPROCESSABLE
    said = str(code) if isinstance(code, (int, str)) else ""
    return int(said) if said.isdecimal() and len(said) <= _DIGITS else _UNUSABLE


@lru_cache(maxsize=64)
def _url(base: str) -> httpx.URL:
    import httpx

    return httpx.URL(f"{base.rstrip('/')}/chat/completions")


def _client() -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT),
        limits=httpx.Limits(max_connections=_MANY, max_keepalive_connections=_MANY),
    )


def _json(body: Mapping[str, Any]) -> bytes:
    """Return a body as bytes; half a character, which UTF-8 has no bytes for, is written as JSON's escape."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _load_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_call(call: object) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict)


def _read_call(call: Mapping[str, Any]) -> Called:
    function = call["function"]
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
    return Called(str(function.get("name") or ""), written)


def _usage(told: object) -> dict[str, int] | None:
    numbers = (
        {name: told.get(f"{name}_tokens") for name in ("prompt", "completion", "total")}
        if isinstance(told, dict)
        else {}
    )
    return {name: value for name, value in numbers.items() if type(value) is int} or None


def _error(value: object) -> object:
    """Return what the member `error` of an answer says."""
    found = value.get("error") if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    return found.get("error", found) if isinstance(found, dict) else found


def _message(value: object) -> str:
    """Return the words of an error in an answer; empty if there are none."""
    error = _error(value)
    if isinstance(error, dict):
        said = error.get("message")
        if isinstance(said, (dict, list)):
            said = json.dumps(said)
        return str(said or "") or ("" if error.get("code") is None else json.dumps(error))
    return error if isinstance(error, str) else ""


def _code(value: object) -> object:
    error = _error(value)
    return error.get("code") if isinstance(error, dict) else None


def _format_body(body: bytes) -> str:
    """Return the beginning of a body, or what web page it is."""
    text = body.decode("utf-8", "replace").strip()
    title = html_title(text)
    if title is not None:
        return f"a web page ({title!r})" if title else "a web page"
    return repr(text[:_QUOTED]) if text else "nothing"
