"""Which calls need no litellm: those whose keywords are OpenAI's chat completions already. A pure decision, and the request it leads to.

    litellm's keywords, the environment, how litellm is set up -> Request to send as it is, or None: let litellm do it

litellm's import takes seconds and each of its calls ten times the processor of the request itself; for a model of OpenAI, or of a server
that speaks its dialect, all it does is to hand the keywords over. A request is taken only if litellm would send the same: a recording made
by one is found by the other. Whatever would be translated, dropped or refused there, or is unknown here, is litellm's. Measured with
litellm 1.102.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmproxy.scenario.types import Message

BASE = "https://api.openai.com/v1"
TIMEOUT = 600.0
"""Seconds for an answer, unless the user says otherwise; litellm's."""
_OPENAI = re.compile(
    r"(ft:)?(gpt-4|gpt-4\.1|gpt-4\.1-mini|gpt-4\.1-nano|gpt-4o|gpt-4o-mini|gpt-4-turbo|gpt-3\.5-turbo|gpt-3\.5-turbo-16k|chatgpt-4o)"
    r"(-\d{4}-\d\d-\d\d|-\d{4}|-\d{4}-preview|-preview|-latest)?(?(1)(:.*)?)"
)
"""Models of OpenAI's whose parameters are not rewritten; reasoning models' are."""
_NO_FORMAT = frozenset({"gpt-4", "gpt-3.5-turbo-16k"})
"""litellm refuses a response format for these."""
_SPECIAL = re.compile(
    r"gpt-(?!oss)|(^|[/:_-])o\d|^responses/|codex|chat-latest|daybreak|computer-use|research|davinci|babbage|audio|realtime|search|"
    r"transcri|whisper|tts|image|dall-e|sora|video|embedding|moderation|container|claude|gemini",
    re.IGNORECASE,
)
"""Names that may mean a model whose parameters are rewritten, wherever it is served."""
_PASSED = frozenset(
    {"temperature", "max_tokens", "tools", "tool_choice", "response_format", "seed", "top_p", "n", "stop"}
    | {"presence_penalty", "frequency_penalty"}
)  # fmt: skip
"""Keywords that are members of the body, under the same name."""
_PLACES = frozenset({"model", "messages", "api_key", "api_base", "extra_headers", "timeout"})
_MOST_STOPS = 4
_MESSAGE = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_CALL = frozenset({"id", "type", "function"})
_REWRITTEN = re.compile(r'"(pattern|patternProperties|cache_control|input_examples|\$ref|format)":')
"""Members of a tool's schema that litellm may change or drop."""
_COMBINED = frozenset({"oneOf", "anyOf", "allOf", "enum", "const", "not"})
"""Those that it takes out of the top of a schema."""
_ELSEWHERE = (
    "OPENAI_CUSTOM_HEADERS", "OPENAI_IDENTITY_PROVIDER_ID", "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER",
    "USE_LITELLM_PROXY", "SSL_VERIFY", "SSL_CERTIFICATE", "SSL_SECURITY_LEVEL", "SSL_ECDH_CURVE", "REQUEST_TIMEOUT",
)  # fmt: skip
"""Variables that change what litellm does."""
_ACCOUNT = {"OpenAI-Organization": ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID"), "OpenAI-Project": ("OPENAI_PROJECT_ID",)}
_SET_UP = (
    "callbacks", "input_callback", "success_callback", "failure_callback", "_async_input_callback", "_async_success_callback",
    "_async_failure_callback", "pre_call_rules", "post_call_rules", "api_base", "headers", "organization", "proxy_auth", "cache",
    "model_alias_map", "model_fallbacks", "client_session", "aclient_session", "secret_manager_client", "drop_params", "modify_params",
    "use_litellm_proxy", "route_all_chat_openai_to_responses", "network_mock", "request_timeout_explicitly_set", "ssl_certificate",
    "enable_json_schema_validation", "enable_preview_features", "max_budget",
)  # fmt: skip
"""Attributes of litellm that a program sets because something is to happen at each call."""


@dataclass(frozen=True, slots=True)
class DirectRequest:
    """A request to a server that speaks OpenAI's chat completions."""

    base: str
    """Its URL, without ``/chat/completions``."""
    key: str | None
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    timeout: float
    """Seconds, for the whole answer."""


def is_openai(name: str) -> bool:
    """Return whether a name without a provider is surely that of a model of OpenAI's."""
    return _OPENAI.fullmatch(name) is not None


def request_of(
    keywords: Mapping[str, Any], env: Mapping[str, str], litellm: object = None, *, served: bool
) -> DirectRequest | None:
    """Return the request that litellm would send for these keywords; None where it has something to do.

    `litellm` is the module, if the program has imported it; `served` says whether the user told where the model is served.
    """
    told = {name: value for name, value in keywords.items() if value is not None}
    name = _name(told.get("model"), served=served)
    if name is None or not told.keys() <= _PASSED | _PLACES or any(env.get(each) for each in _ELSEWHERE):
        return None
    if litellm is not None and not _is_untouched(litellm):
        return None
    body = {key: value for key, value in told.items() if key in _PASSED}
    messages = [_message(each) for each in told["messages"]]
    headers = told.get("extra_headers", {})
    timeout = told.get("timeout", TIMEOUT)
    good = (
        None not in messages
        and messages
        and _parameters(body, name)
        and isinstance(headers, dict)
        and all(isinstance(text, str) for pair in headers.items() for text in pair)
        and type(timeout) in (int, float)
        and timeout > 0
    )
    if not good:
        return None
    account = {header: next((env[each] for each in names if env.get(each)), "") for header, names in _ACCOUNT.items()}
    return DirectRequest(
        base=str(told.get("api_base") or env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE") or BASE),
        key=_key(told, env, litellm),
        headers={**{header: value for header, value in account.items() if value}, **headers},
        body={"model": name, "messages": messages, **body},
        timeout=float(timeout),
    )


def _name(model: object, *, served: bool) -> str | None:
    """Return the name by which the server knows a model; None if it is not for us."""
    if not isinstance(model, str):
        return None
    name = model.removeprefix("openai/")
    if is_openai(name):
        return name
    return name if served and name != model and not _SPECIAL.search(name) else None


def _key(told: Mapping[str, Any], env: Mapping[str, str], litellm: object) -> str | None:
    own = (getattr(litellm, name, None) for name in ("api_key", "openai_key"))
    return next((str(key) for key in (told.get("api_key"), *own, env.get("OPENAI_API_KEY")) if key), None)


def _is_untouched(litellm: object) -> bool:
    """Return whether nothing that the program set up in litellm would be left out."""
    if (
        any(_asked_for(getattr(litellm, name, None)) for name in _SET_UP)
        or getattr(litellm, "ssl_verify", True) is not True
    ):
        return False
    config = getattr(litellm, "OpenAIConfig", None)  # litellm.OpenAIConfig(top_p=...) sets it for all calls
    return config is None or not config.get_config()


def _asked_for(value: object) -> bool:
    """Return whether the program set this; litellm itself puts the word ``cache`` among its callbacks when it asks a Gemini model."""
    return bool([each for each in value if each != "cache"] if isinstance(value, list) else value)


def _message(message: Message) -> Message | None:
    """Return a message as litellm sends it, without members that are None; None if there is more to it."""
    found = {name: value for name, value in message.items() if value is not None}
    plain = (
        found.keys() <= _MESSAGE
        and found.get("role") in _ROLES
        and isinstance(found.get("content", ""), str)
        and isinstance(found.get("name", ""), str)
        and all(map(_call, found.get("tool_calls", ())))
    )
    return found if plain else None


def _call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) and call.keys() == _CALL else None
    return isinstance(function, dict) and all(isinstance(value, str) for value in function.values())


def _parameters(body: Mapping[str, Any], name: str) -> bool:
    choice, form, stop = body.get("tool_choice"), body.get("response_format"), body.get("stop", "")
    return (
        _tools(body.get("tools", []))
        and (choice is None or isinstance(choice, str) or (isinstance(choice, dict) and bool(choice.get("function"))))
        and (choice is None or bool(body.get("tools")))
        and (form is None or (isinstance(form, dict) and name not in _NO_FORMAT))
        and (isinstance(stop, str) or (isinstance(stop, list) and len(stop) <= _MOST_STOPS))
    )


def _tools(tools: object) -> bool:
    """Return whether tools are sent as they are."""
    if not isinstance(tools, list) or not all(map(_tool, tools)):
        return False
    try:
        return not (tools and _REWRITTEN.search(json.dumps(tools)))
    except (TypeError, ValueError):
        return False


def _tool(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
        return False
    top = function.get("parameters", {})
    return isinstance(top, dict) and not top.keys() & _COMBINED
