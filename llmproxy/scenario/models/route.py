"""Where a model's calls go, so that they pass the proxy: litellm keywords for a model's name.

    openai/gpt-4.1-mini -> {"api_base": "http://127.0.0.1:8080/v1", "extra_headers": {session, party}}

Each provider's client makes its URL in its own way (OpenAI's appends to a base that ends in /v1, Anthropic's adds /v1 itself, Cohere's
posts to what it is given), so the paths stand in the providers' rows; providers that it lacks follow the path of their default base URL. Measured with
litellm 1.102 to 1.106. Models for which no base URL leads anywhere are refused with what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmproxy.core.providers.table import PROVIDERS
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.clients import address_model
from llmproxy.scenario.models.direct import is_openai
from llmproxy.scenario.models.late_litellm import import_litellm

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession

PATHS = {name: path for provider in PROVIDERS.values() for name, path in provider.litellm.items()}
"""What follows the proxy's address in the base URL that litellm is given, by litellm's name of the provider."""
NAMES = {name: provider.name for provider in PROVIDERS.values() for name in provider.litellm if name != provider.name}
"""The proxy's name of a provider, where litellm's is another."""
OPENAI_LIKE = frozenset(
    {"hosted_vllm", "lm_studio", "openai_like", "litellm_proxy", "llamafile", "xinference", "docker_model_runner"}
)
"""Servers of one's own that speak OpenAI's dialect: they are where `api_base` says, and nowhere else."""
_OWN_DIALECT = frozenset(
    name
    for provider in PROVIDERS.values()
    for name in provider.litellm
    if provider.family != "openai" or not provider.upstream
)
"""Their upstream keeps the provider's name, because the proxy has to know the dialect."""
AZURE_VERSION = "2024-10-21"
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


def route(
    model: str | ModelConfig, proxy: str, session: RunSession | None = None, *, party: str = "user"
) -> dict[str, Any]:
    """Return the keywords with which litellm sends a model's calls through the proxy, in a session and for a party.

    Raises:
        SettingsError: calls of this model cannot be led anywhere; the text says what to write.

    """
    config = address_model(model if isinstance(model, ModelConfig) else ModelConfig(model=model), proxy)
    provider = provider_of(config.model)
    base = proxy.rstrip("/")
    if config.api_base and provider not in _OWN_DIALECT:
        found: dict[str, Any] = {
            "api_base": f"{base}/{_upstream_name(config)}{urlsplit(config.api_base).path.rstrip('/')}"
        }
    else:
        found = {"api_base": base + _path(config.model, provider)}
    if provider == "azure":
        found["api_version"] = config.api_version or AZURE_VERSION
    elif config.api_version:
        found["api_version"] = config.api_version
    if session is not None:
        found["extra_headers"] = session.party_headers(party)
    return found


def provider_of(model: str) -> str:
    """Return litellm's name of a model's provider. Raises SettingsError for a model whose provider nobody knows."""
    prefix, slash, _ = model.partition("/")
    if slash and (prefix in PATHS or prefix in OPENAI_LIKE):
        return prefix
    if is_openai(model):
        return "openai"
    bare = model.rsplit("/", 1)[-1]
    if prefix.startswith("vertex_ai") or (not slash and model.startswith("gemini-")):
        raise SettingsError(
            f"the model {model!r} is asked at Vertex AI, which wants Google credentials before any request is sent: it cannot be recorded.",
            hint=f'Write "gemini/{bare}", with GEMINI_API_KEY (in replay no key is needed).',
        )
    return str(_ask_litellm(model)[1])


def upstreams_of_models(models: Iterable[ModelConfig], proxy: str = "") -> dict[str, str]:
    """Return where the session of a run must forward the calls of models with an address of their own, by the name of the upstream.

    Raises:
        SettingsError: two of them would need different places under one name.

    """
    found: dict[str, str] = {}
    for config in (address_model(model, proxy) for model in models):
        if not config.api_base:
            continue
        provider = provider_of(config.model)
        own = provider in _OWN_DIALECT
        parts = urlsplit(config.api_base)
        name = NAMES.get(provider, provider) if own else _upstream_name(config)
        url = config.api_base.rstrip("/") if own else f"{parts.scheme}://{parts.netloc}"
        if found.setdefault(name, url) != url:
            raise SettingsError(
                f"the models of one run are served at {found[name]} and at {url}, and both are {name!r} to the proxy.",
                hint="Give them the same api_base, or different model names.",
            )
    return found


def _upstream_name(config: ModelConfig) -> str:
    """Return the name of a model's own upstream: from the model, so that it is the same wherever the model is served tomorrow."""
    return "model-" + _UNSAFE.sub("-", config.model.lower()).strip("-._")


def _path(model: str, provider: str) -> str:
    if provider in PATHS:
        return PATHS[provider]
    base = _ask_litellm(model)[3]
    if provider in OPENAI_LIKE or not base:
        name = provider.removesuffix("_chat")
        raise SettingsError(
            f"nobody knows where {model!r} is served, so its calls cannot be led through the proxy.",
            hint=f"Choose a model of {', '.join(sorted(PATHS))} instead of {name}; or say where it is: in Python "
            f'ModelConfig(model="{model}", api_base="http://HOST:PORT/v1"), in a suite `model: openai/NAME` with '
            "`llmproxy test --upstream openai=http://HOST:PORT`.",
        )
    return f"/{NAMES.get(provider, provider)}{urlsplit(str(base)).path.rstrip('/')}"


def _ask_litellm(model: str) -> tuple[Any, ...]:
    """Ask litellm for the name, provider and base URL of a model."""
    litellm = import_litellm()
    try:
        return tuple(litellm.get_llm_provider(model, api_key="none"))
    except litellm.exceptions.BadRequestError as error:
        raise SettingsError(
            f"the model {model!r} belongs to no provider that litellm knows.",
            hint="Write provider/model, as in openai/gpt-4.1-mini, anthropic/claude-sonnet-4-5 or gemini/gemini-2.5-flash.",
        ) from error
