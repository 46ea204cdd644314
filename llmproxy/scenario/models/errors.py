"""What a failed call of a model means: a miss, a refused parameter, a provider that has a bad moment, or just an error.

A call fails with our own `CallFailed`, or with an exception of litellm, which wraps an answer's body into its own text, each provider in
another way. A text of the proxy is found again by its first word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum

from llmproxy.errors import OURS, Exit, LLMProxyError, MissError, SettingsError, UpstreamError, unsign_text

MISS = "no recorded response"
"""How every miss begins, whatever its status."""
_CLIENT_ERRORS = frozenset({400, 404, 405, 415, 422, 501})
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_SHOWN = 600
"""Characters of a provider's error that ours quotes."""


class ModelError(UpstreamError):
    """A model of ours (the simulator's, a judge's) gave no answer that can be used. It says nothing about the agent."""

    code = "llmproxy_model"
    exit_code = Exit.ENVIRONMENT


class ModelUnset(SettingsError):
    """A simulated user or a judge has no model, and there is no default."""

    code = "llmproxy_model_unset"


class CallFailed(Exception):
    """A call that litellm did not make came to nothing; kinds and statuses are those that litellm has for the same."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str = "",
        code: object = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Say what happened; `status` is that of the answer, or of what it amounts to."""
        super().__init__(message)
        self.status_code = status
        self.kind = kind or _kind(status)
        self.code = code
        """The provider's word for it."""
        self.headers: Mapping[str, str] = headers or {}
        self.body = body


_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    408: "Timeout",
    422: "BadRequestError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "Timeout",
}
_SERVER_ERROR = 500


def _kind(status: int | None) -> str:
    if status is None:
        return "APIError"
    return _KINDS.get(status, "InternalServerError" if status >= _SERVER_ERROR else "APIError")


class RefusedParameter(Enum):
    """What a model may refuse, although litellm has a keyword for it."""

    TEMPERATURE = "temperature"
    TOOL_CHOICE = "tool_choice"
    FORMAT = "response_format"


_WORDS: dict[RefusedParameter, Callable[[str], object]] = {
    RefusedParameter.TEMPERATURE: re.compile("temperature", re.IGNORECASE).search,
    RefusedParameter.TOOL_CHOICE: re.compile(r"tool|function.?call", re.IGNORECASE).search,
    RefusedParameter.FORMAT: re.compile(
        r"response.?format|json.?schema|structured.?output|output_config", re.IGNORECASE
    ).search,
}


def our_text(error: BaseException) -> str | None:
    """Return what the proxy itself said, without its envelope; None if the error is somebody else's."""
    text = str(error)
    start = text.find(OURS)
    if start < 0:
        return None
    for brace in (match.start() for match in re.finditer(r"\{", text[:start])):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[brace:])
        except ValueError:
            continue
        except RecursionError:
            break  # no envelope of ours
        found = _find(value)
        if found:
            return found
    return text[start:]


def find_refused_parameter(error: BaseException) -> RefusedParameter | None:
    """Return what of the request the model refuses to take; None where the error says something else."""
    if our_text(error) is not None or _status(error) not in _CLIENT_ERRORS:
        return None
    text = str(error)
    return next((each for each, says in _WORDS.items() if says(text)), None)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may well succeed a moment later."""
    ours = our_text(error)
    return _status(error) in _TRANSIENT and (ours is None or MISS not in ours)


def failure(error: BaseException, model: str, party: str, *, temperature: float | None) -> LLMProxyError:
    """Return what a call failed with as an error for the user. `temperature` is the one that the user chose."""
    ours = our_text(error)
    if ours is not None:
        told = unsign_text(ours)
        if told.startswith(MISS):  # its status is the dialect's, or the user's
            return MissError(ours)
        return ModelError(f"the call of {model} for {party!r} did not get through: {told}")
    text = _short(str(error))
    if find_refused_parameter(error) is RefusedParameter.TEMPERATURE and temperature is not None:
        return SettingsError(
            f"{model} refuses temperature={temperature:g}: {text}",
            hint="Leave temperature out, and the model's own is used.",
        )
    kind = error.kind if isinstance(error, CallFailed) else type(error).__name__
    if model.startswith(("vertex_ai", "gemini-")):
        return ModelError(
            f"{model} ({party}) could not be called at Vertex AI: {kind}: {text}",
            hint=f'With a key instead of Google credentials, write "gemini/{model.rsplit("/", 1)[-1]}".',
        )
    if kind == "AuthenticationError" or "api_key" in text.lower():
        return ModelError(
            f"{model} ({party}) cannot be called without a valid key: {text}",
            hint="Set the provider's key variable (in Python also api_key=... of the agent).",
        )
    return ModelError(f"{model} ({party}) could not be called: {kind}: {text}")


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, str) and status.isdigit():
        return int(status)
    return status if isinstance(status, int) else None


def _find(value: object) -> str | None:
    """Return the first string in a JSON value that the proxy wrote."""
    if isinstance(value, str):
        return value if value.startswith(OURS) else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _find(each))), None)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."
