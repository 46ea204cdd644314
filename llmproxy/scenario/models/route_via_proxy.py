"""Routing of litellm's calls through the proxy: keywords for a model's name. Measured with litellm 1.102 to 1.106.

Each provider's client builds its URL differently (one appends to a base that ends in /v1, one adds /v1 itself, one
posts to the base), so the paths are in the providers' rows; others use the path of their default base URL. A user's own
client of OpenAI's SDK is copied with another address; of any other object the address is unknown: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from llmproxy.client.child_env import is_proxy_url
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.errors import is_vertex_model, suggest_api_key_instead_of_vertex
from llmproxy.scenario.models.transport import BASE, import_litellm, is_known_openai_model_name
from llmproxy.scenario.run_session import RunSession

PATHS = {name: path for provider in PROVIDERS.values() for name, path in provider.litellm.items()}
"""Path after the proxy's address in litellm's base URL, by litellm's name of the provider."""
NAMES = {name: provider.name for provider in PROVIDERS.values() for name in provider.litellm if name != provider.name}
"""The proxy's name of a provider, if litellm's differs."""
OPENAI_LIKE = frozenset(
    {"hosted_vllm", "lm_studio", "openai_like", "litellm_proxy", "llamafile", "xinference", "docker_model_runner"}
)
"""Self-hosted servers with OpenAI's dialect, whose address is always `api_base`."""
_OWN_DIALECT = frozenset(
    name for each in PROVIDERS.values() for name in each.litellm if each.family != "openai" or not each.upstream
)
"""Providers whose upstream keeps their name, because the proxy needs to know the dialect."""
AZURE_VERSION = "2024-10-21"
_AZURE = "/openai"
"""Path that Azure's client adds to its endpoint; with a deployment of its own, more follows."""
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


def build_litellm_proxy_kwargs(
    model: str | ModelConfig, proxy: str, session: RunSession | None = None, *, party: str = "user"
) -> dict[str, Any]:
    """Return keywords by which litellm calls a model through the proxy. Raises SettingsError: not possible."""
    config = fill_api_base_from_client(model if isinstance(model, ModelConfig) else ModelConfig(model=model), proxy)
    provider = get_model_provider(config.model)
    if config.api_base and provider not in _OWN_DIALECT:
        path = f"/{_upstream_name(config)}{urlsplit(config.api_base).path.rstrip('/')}"
    else:
        path = _provider_base_path(config.model, provider)
    found: dict[str, Any] = {"api_base": proxy.rstrip("/") + path}
    if version := config.api_version or (AZURE_VERSION if provider == "azure" else None):
        found["api_version"] = version
    if session is not None:
        found["extra_headers"] = session.party_headers(party)
    return found


def get_model_provider(model: str) -> str:
    """Return litellm's name of a model's provider. Raises SettingsError for an unknown provider."""
    prefix, slash, _ = model.partition("/")
    if slash and (prefix in PATHS or prefix in OPENAI_LIKE):
        return prefix
    if is_known_openai_model_name(model):
        return "openai"
    if prefix.startswith("vertex_ai") or (not slash and is_vertex_model(model)):
        raise SettingsError(
            f"the model {model!r} is asked at Vertex AI, which wants Google credentials before any request is sent: "
            "it cannot be recorded.",
            hint=suggest_api_key_instead_of_vertex(model),
        )
    return str(_get_litellm_provider_tuple(model)[1])


def map_upstream_names_to_urls(models: Iterable[ModelConfig], proxy: str = "") -> dict[str, str]:
    """Return upstreams of models with addresses of their own. Raises SettingsError: two under one name."""
    found: dict[str, str] = {}
    for config in (fill_api_base_from_client(model, proxy) for model in models):
        if not config.api_base:
            continue
        provider = get_model_provider(config.model)
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
    """Return the name of a model's upstream: by the model, so that it is independent of the address."""
    return "model-" + _UNSAFE.sub("-", config.model.lower()).strip("-._")


def _provider_base_path(model: str, provider: str) -> str:
    if provider in PATHS:
        return PATHS[provider]
    base = _get_litellm_provider_tuple(model)[3]
    if provider in OPENAI_LIKE or not base:
        name = provider.removesuffix("_chat")
        raise SettingsError(
            f"nobody knows where {model!r} is served, so its calls cannot be led through the proxy.",
            hint=f"Choose a model of {', '.join(sorted(PATHS))} instead of {name}; or say where it is: in Python "
            f'ModelConfig(model="{model}", api_base="http://HOST:PORT/v1"), in a suite `model: openai/NAME` with '
            "`llmproxy test --upstream openai=http://HOST:PORT`.",
        )
    return f"/{NAMES.get(provider, provider)}{urlsplit(str(base)).path.rstrip('/')}"


def _get_litellm_provider_tuple(model: str) -> tuple[Any, ...]:
    litellm = import_litellm()
    try:
        return tuple(litellm.get_llm_provider(model, api_key="none"))
    except litellm.exceptions.BadRequestError as error:
        raise SettingsError(
            f"the model {model!r} belongs to no provider that litellm knows.",
            hint="Write provider/model, as in openai/gpt-4.1-mini or mistral/mistral-small-latest.",
        ) from error


def fill_api_base_from_client(model: ModelConfig, proxy: str = "") -> ModelConfig:
    """Return a model with its client's address as `api_base`, unless it has one, or OpenAI's client, or ours."""
    base = _read_client_base_url(model.extra_parameters.get("client"))
    if model.api_base or not base or base == BASE or (proxy and is_proxy_url(base, proxy)):
        return model
    return model.model_copy(update={"api_base": base.removesuffix(_azure_suffix(base, model.model))})


def redirect_client_to_proxy(client: Any, address: str, model: str) -> Any:
    """Return a client that sends to `address`, through the proxy. Raises SettingsError: an unknown kind of client."""
    if (base := _read_client_base_url(client)) and callable(getattr(client, "with_options", None)):
        return client.with_options(base_url=address.rstrip("/") + _azure_suffix(base, model))
    if any(kind.__module__.startswith("litellm.") for kind in type(client).__mro__):
        return client
    raise SettingsError(
        f"{model} is to be called with client={type(client).__name__}(...), and nobody knows how its calls could be "
        "led through the proxy.",
        hint="Clients of OpenAI's SDK can (OpenAI, AsyncOpenAI, AzureOpenAI); or say api_base= and extra_headers= "
        "instead of a client.",
    )


def _read_client_base_url(client: object) -> str:
    """Return the base URL of a client of OpenAI's SDK, without a slash at the end; empty for any other."""
    if not any(kind.__module__.startswith("openai.") or kind.__module__ == "openai" for kind in type(client).__mro__):
        return ""
    return str(getattr(client, "base_url", "")).rstrip("/")


def _azure_suffix(base: str, model: str) -> str:
    """Return the path added by Azure's client: litellm and the proxy use an endpoint without it."""
    if not model.startswith("azure/"):
        return ""
    parts = urlsplit(base)
    _, found, rest = parts.path.partition(_AZURE)
    return urlunsplit(("", "", found + rest, parts.query, "")) if found else ""
