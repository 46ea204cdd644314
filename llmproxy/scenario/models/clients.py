"""A client of the user's own (litellm's keyword `client`): where it sends its calls, and the same one sending them through the proxy.

    OpenAI(base_url="https://gateway/v1", default_headers=...) -> its address, and a copy that differs in the address alone

Clients of OpenAI's SDK carry their address; a copy keeps headers, query, key and connections. litellm's own handlers are told an address with
each call, and are right as they are. Of any other object nobody knows where it would send: with a proxy it is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from llmproxy.client.environment.build import is_ours
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.direct import BASE

_AZURE = "/openai"
"""What Azure's client writes behind its endpoint; with a deployment of its own, more follows."""


def address_model(model: ModelConfig, proxy: str = "") -> ModelConfig:
    """Return a model with the address of its client as `api_base`; one that has its own, or a client of OpenAI or of this proxy, as it is."""
    base = _base_url(model.extra.get("client"))
    if model.api_base or not base or base == BASE or (proxy and is_ours(base, proxy)):
        return model
    return replace(model, api_base=base.removesuffix(_beyond(base, model.model)))


def lead_client(client: Any, address: str, model: str) -> Any:  # noqa: ANN401 (a client of any kind)
    """Return a client that sends to `address`, which leads through the proxy.

    Raises:
        SettingsError: of a client of this kind nobody knows how to change the address.

    """
    base = _base_url(client)
    if base and callable(getattr(client, "with_options", None)):
        return client.with_options(base_url=address.rstrip("/") + _beyond(base, model))
    if any(kind.__module__.startswith("litellm.") for kind in type(client).__mro__):
        return client
    raise SettingsError(
        f"{model} is to be called with client={type(client).__name__}(...), and nobody knows how its calls could be led through the proxy.",
        hint="Clients of OpenAI's SDK can (OpenAI, AsyncOpenAI, AzureOpenAI); or say api_base= and extra_headers= instead of a client.",
    )


def _base_url(client: object) -> str:
    """Return where a client of OpenAI's SDK sends, without a slash at the end; empty for any other."""
    if not any(kind.__module__.startswith("openai.") or kind.__module__ == "openai" for kind in type(client).__mro__):
        return ""
    return str(getattr(client, "base_url", "")).rstrip("/")


def _beyond(base: str, model: str) -> str:
    """Return what of an address Azure's client wrote itself, since litellm and the proxy name an endpoint without it."""
    if not model.startswith("azure/"):
        return ""
    parts = urlsplit(base)
    _, found, rest = parts.path.partition(_AZURE)
    return urlunsplit(("", "", found + rest, parts.query, "")) if found else ""
