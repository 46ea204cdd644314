"""Model calls of a party (``user``, ``judge``, ``judge.2``): through the proxy, from cache.db, or to the provider.

Requests contain nothing that a re-run changes. A call is retried a limited number of times and in the same way each
time, so that a replay takes the same steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from llmproxy.errors import LLMProxyError, SettingsError
from llmproxy.protocol import PLACEHOLDER_KEY
from llmproxy.scenario.cache_store import CacheSlot, CacheStore, get_cached_or_compute
from llmproxy.scenario.config import UNSET_ZERO, ModelConfig, OmittedArgumentSentinel, ScenarioConfig
from llmproxy.scenario.models.errors import (
    ModelError,
    ModelNotSet,
    RefusableParameter,
    build_model_call_error,
    find_refused_parameter,
    is_transient,
)
from llmproxy.scenario.models.route_via_proxy import build_litellm_proxy_kwargs, redirect_client_to_proxy
from llmproxy.scenario.models.transport import ModelAnswer, call_model
from llmproxy.scenario.run_session import RunSession, copy_env_without_proxy_changes
from llmproxy.scenario.types import Message
from llmproxy.scenario.values.run_ids_and_options import context_scenario

_ASIDE = ("shared_session", "fallbacks", "context_window_fallback_dict", "model_list", "mock_response")
"""Keywords of litellm by which a call would bypass the proxy, or never be made."""
PAUSES = (0.5, 2.0)
"""Seconds before retries after temporary failures of the provider."""


class ToolChoiceRefused(ModelError):
    """The model refuses tools, a tool choice, or a response format."""

    code = "llmproxy_model_refused"


def choose_model(
    who: str, model: str | ModelConfig | None, api_key: str | None, temperature: float | OmittedArgumentSentinel,
    max_tokens: int | None, more: Mapping[str, Any] | None = None,
) -> ModelConfig | None:  # fmt: skip
    """Return a simulator's or judge's model, else the default's, or None; its key goes to its provider only."""
    default = (ScenarioConfig.default_config or ScenarioConfig()).default_model
    default = ModelConfig(model=default) if isinstance(default, str) and default else default or None
    own = ModelConfig(model=model) if isinstance(model, str) else model
    if not isinstance(own, ModelConfig | None):
        raise TypeError(f"{who}(model=...) takes a name such as 'openai/gpt-4.1-mini' or a ModelConfig, not {own!r}")
    if (base := own or default) is None:
        return None
    chosen: Any = base.temperature if base.temperature_given else UNSET_ZERO
    key, tokens = base.api_key, base.max_tokens
    if isinstance(model, str) and isinstance(default, ModelConfig):
        chosen = default.temperature if default.temperature_given else UNSET_ZERO
        tokens = default.max_tokens
        if model == default.model:
            base, key = default, default.api_key
        elif model.partition("/")[0] == default.model.partition("/")[0]:
            key = default.api_key
    given = {name: value for name, value in (more or {}).items() if value is not None}
    found = {**dict(base), **given, "api_key": api_key or key}
    found["temperature"] = chosen if isinstance(temperature, OmittedArgumentSentinel) else temperature
    found["max_tokens"] = tokens if max_tokens is None else max_tokens
    return ModelConfig(**found)


def require_model(who: str, found: ModelConfig | None, written: str = "") -> ModelConfig:
    """Return what `choose_model` did; `written` is the syntax for errors. Raises ModelNotSet if there is none."""
    if found is None:
        raise ModelNotSet(
            f"Model was not configured for TestingAgent ({who}): it has none, and there is no default.\n"
            f"Write scenario.{written or f'{who}(model="openai/gpt-4.1-mini")'}, or once for all of them\n"
            'scenario.configure(default_model="openai/gpt-4.1-mini")'
        )
    return found


async def complete(
    *, model: ModelConfig, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None, response_format: Mapping[str, Any] | None = None, party: str,
    session: RunSession | None, attempt: int = 0,
) -> ModelAnswer:  # fmt: skip
    """Call a model; `attempt` separates otherwise equal requests of one party.

    Raises MissError: in replay, never recorded; ToolChoiceRefused: the model refuses tools, choice or format;
    SettingsError: an unusable model or temperature; ModelError: the provider fails, or its answer is unusable.
    """
    asked: dict[str, Any] = {"model": model.model, "messages": list(messages), "temperature": model.temperature}
    optional = {"max_tokens": model.max_tokens, "tools": list(tools or ()), "response_format": response_format}
    asked |= {name: value for name, value in optional.items() if value}
    if tools and tool_choice:
        asked["tool_choice"] = tool_choice
    sent = {**model.extra_parameters, **asked}
    if session is not None and (aside := next((name for name in _ASIDE if sent.get(name)), None)):
        raise SettingsError(
            f"{model.model} ({party}) is to be called with {aside}=..., by which its calls would not pass the proxy.",
            hint=f"Leave {aside} out, or run without a proxy; api_base says where a model is served.",
        )

    async def call() -> ModelAnswer:
        return await _call_model(sent, model, party, session)

    if session is not None:
        return await call()
    # What makes a difference to the answer: a client makes none, and has another address tomorrow.
    request = {name: value for name, value in sent.items() if name not in {"client", "shared_session", "timeout"}}
    return await _call_cached(call, request | {"api_base": model.api_base}, party, attempt)


async def _call_cached(
    call: Callable[[], Awaitable[ModelAnswer]], request: Mapping[str, Any], party: str, attempt: int
) -> ModelAnswer:
    running = context_scenario.get()
    cache_key = running.config.cache_key if running is not None else None
    store = CacheStore.from_environment() if cache_key else None
    if running is None or not cache_key or store is None:
        return await call()
    sample = running.options.sample
    identity = {"cache_key": cache_key, "sample": sample, "party": party, "attempt": attempt, "request": request}
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    key = "llm:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def make() -> str:
        return (await call()).to_text()

    kept = await get_cached_or_compute(CacheSlot(store, key, f"model call of {party}", cache_key, sample), make)
    return ModelAnswer.from_json_text(kept)


async def _call_model(asked: dict[str, Any], model: ModelConfig, party: str, session: RunSession | None) -> ModelAnswer:
    chosen = model.temperature if model.temperature_given else None
    sent = asked | _route_keywords(model, party, session)
    replays = session is not None and session.opened.needs_no_model_keys
    pauses = iter(PAUSES)
    while True:
        try:
            env = copy_env_without_proxy_changes() if session is None else os.environ
            return await call_model(sent, env, served=bool(model.api_base), proxied=session is not None)
        except LLMProxyError:
            raise
        except Exception as error:
            what = find_refused_parameter(error)
            if what is RefusableParameter.TEMPERATURE and chosen is None and "temperature" in sent:
                del sent["temperature"]
                continue
            if what in {RefusableParameter.TOOL_CHOICE, RefusableParameter.FORMAT}:
                raise ToolChoiceRefused(f"{model.model} refuses this request: {error}") from error
            pause = next(pauses, None) if is_transient(error) else None
            if pause is None:
                raise build_model_call_error(error, model.model, party, temperature=chosen) from error
            await asyncio.sleep(0 if replays else pause)


def _route_keywords(model: ModelConfig, party: str, session: RunSession | None) -> dict[str, Any]:
    said: dict[str, Any] = {"api_key": model.api_key} if model.api_key else {}
    if session is None:
        places = {"api_base": model.api_base, "api_version": model.api_version}
        return said | {name: value for name, value in places.items() if value}
    found = build_litellm_proxy_kwargs(model, session.proxy, session, party=party)
    found["extra_headers"] = {**(model.extra_parameters.get("extra_headers") or {}), **found["extra_headers"]}
    if client := model.extra_parameters.get("client"):
        found["client"] = redirect_client_to_proxy(client, found["api_base"], model.model)
    if session.opened.needs_no_model_keys:
        said.setdefault("api_key", PLACEHOLDER_KEY)
    return said | found
