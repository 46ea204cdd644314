"""Classification of failed model calls: a miss, a refused parameter, a temporary failure, or another error.

A call fails with our own `HttpModelCallFailed`, or with an exception of litellm, which includes an answer's body in its
text, differently for each provider, and the answer's headers. The proxy's errors have a code in a header.
"""

from __future__ import annotations

import json
import re
from enum import Enum

from llmproxy.core.dialects.dialect_table import ERROR_HEADER
from llmproxy.errors import OURS, Exit, LLMProxyError, MissError, SettingsError, UpstreamError, remove_program_prefix

_CLIENT_ERRORS = frozenset({400, 404, 405, 415, 422, 501})
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_NO_KEY = 401
_SHOWN = 600  # characters of a provider's error that ours quotes


class ModelError(UpstreamError):
    """A model of the simulator or a judge gave no usable answer. It says nothing about the agent."""

    code = "llmproxy_model"
    exit_code = Exit.ENVIRONMENT


class ModelNotSet(SettingsError):
    """A simulated user or a judge has no model, and there is no default."""

    code = "llmproxy_model_unset"


class HttpModelCallFailed(Exception):
    def __init__(self, message: str, status: int | None = None, code: str = "") -> None:
        """`status` is the answer's, or an equivalent one, `code` the proxy's own."""
        super().__init__(message)
        self.status_code = status
        self.headers = {ERROR_HEADER: code} if code else {}


class RefusableParameter(Enum):
    """Parameters that a model may refuse although litellm has a keyword for them, with the words of a refusal."""

    TEMPERATURE = re.compile("temperature", re.IGNORECASE)
    TOOL_CHOICE = re.compile(r"tool|function.?call", re.IGNORECASE)
    FORMAT = re.compile(r"response.?format|json.?schema|structured.?output|output_config", re.IGNORECASE)


def is_vertex_model(model: str) -> bool:
    return model.startswith(("vertex_ai", "gemini-"))


def suggest_api_key_instead_of_vertex(model: str) -> str:
    return (
        f'With a key (GEMINI_API_KEY) instead of Google credentials, write "gemini/{model.rsplit("/", 1)[-1]}"; '
        "in replay no key is needed."
    )


def find_refused_parameter(error: BaseException) -> RefusableParameter | None:
    if find_proxy_error_code(error) or _read_status(error) not in _CLIENT_ERRORS:
        return None
    text = str(error)
    return next((each for each in RefusableParameter if each.value.search(text)), None)


def is_transient(error: BaseException) -> bool:
    return _read_status(error) in _TRANSIENT and find_proxy_error_code(error) != MissError.code


def build_model_call_error(error: BaseException, model: str, party: str, *, temperature: float | None) -> LLMProxyError:
    if (code := find_proxy_error_code(error)) == MissError.code:
        return MissError(extract_proxy_error_text(error))
    if code:
        return ModelError(
            f"the call of {model} for {party!r} did not get through: "
            + remove_program_prefix(extract_proxy_error_text(error))
        )
    text = str(error).strip()
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."
    if find_refused_parameter(error) is RefusableParameter.TEMPERATURE and temperature is not None:
        return SettingsError(
            f"{model} refuses temperature={temperature:g}: {text}",
            hint="Leave temperature out, and the model's own is used.",
        )
    said = text if isinstance(error, HttpModelCallFailed) else f"{type(error).__name__}: {text}"
    if is_vertex_model(model):
        return ModelError(
            f"the call of {model} ({party}) at Vertex AI failed: {said}", hint=suggest_api_key_instead_of_vertex(model)
        )
    if _read_status(error) == _NO_KEY or "api_key" in text.lower():
        return ModelError(
            f"{model} ({party}) cannot be called without a valid key: {text}",
            hint="Set the provider's key variable (in Python also api_key=... of the agent).",
        )
    return ModelError(f"the call of {model} ({party}) failed: {said}")


def find_proxy_error_code(error: BaseException) -> str:
    """Return the code of the proxy's error; empty for another origin."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        # The attribute with the headers differs by provider.
        places = (at, getattr(at, "response", None))
        carried = [getattr(each, "headers", None) for each in places] + [getattr(at, "litellm_response_headers", None)]
        for headers in carried:
            read = getattr(headers, "get", None)
            if callable(read) and isinstance(code := read(ERROR_HEADER), str):
                return code
        at = at.__cause__ or at.__context__
    return ""


def extract_proxy_error_text(error: BaseException) -> str:
    """Return the proxy's text, without the envelope and litellm's additions."""
    text = str(error)
    start = text.find(OURS)
    for brace in (match.start() for match in re.finditer(r"\{", text[: max(start, 0)])):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[brace:])
        except ValueError:
            continue
        except RecursionError:
            break  # no envelope of ours
        if found := _find_proxy_text_in_json(value):
            return found
    return text[max(start, 0) :]


def _read_status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, str) and status.isdigit():
        return int(status)
    return status if isinstance(status, int) else None


def _find_proxy_text_in_json(value: object) -> str | None:
    if isinstance(value, str):
        return value if value.startswith(OURS) else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _find_proxy_text_in_json(each))), None)
