"""Clients of the user's own, through the proxy: they send what they would send, to where they would send it, and are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.answer import Answer
from llmproxy.scenario.models.clients import address_model, lead_client
from llmproxy.scenario.models.late_litellm import import_litellm
from llmproxy.scenario.models.models import complete
from llmproxy.scenario.models.route import route, upstreams_of_models
from llmproxy.scenario.proxy.session import RunSession
from tests.provider import Provider, step
from tests.support import near

PROXY = "http://127.0.0.1:8080"
KEPT: dict[str, Any] = {
    "api_key": "sk-of-a-gateway-1234567890",
    "default_headers": {"api_key": "a-secret-of-ours", "connection": "close"},
}
MADE: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "blocking": ("gpt-4o-mini", "/gate/v1/chat/completions", lambda url: openai.OpenAI(base_url=f"{url}/gate/v1", **KEPT)),
    "asynchronous": (
        "gpt-4o-mini",
        "/gate/v1/chat/completions",
        lambda url: openai.AsyncOpenAI(base_url=f"{url}/gate/v1", **KEPT),
    ),
    "azure": (
        "azure/gpt-4o-mini",
        "/openai/deployments/gpt-4o-mini/chat/completions",
        lambda url: openai.AzureOpenAI(azure_endpoint=url, api_version="2024-10-21", **KEPT),
    ),
    "azure with a deployment": (
        "azure/gpt-4o-mini",
        "/openai/deployments/mine/chat/completions",
        lambda url: openai.AzureOpenAI(azure_endpoint=url, azure_deployment="mine", api_version="2024-10-21", **KEPT),
    ),
}  # fmt: skip


def asked(proxy: str, config: ModelConfig) -> Answer:
    """Ask a model in a session of its own."""

    async def go() -> Answer:
        session = await RunSession.open(proxy, cassette="a", upstreams=upstreams_of_models([config], proxy))
        try:
            said = [{"role": "user", "content": "hi"}]
            return await complete(model=config, messages=said, party="judge", session=session)
        finally:
            await session.close()

    return asyncio.run(go())


@pytest.mark.parametrize("kind", list(MADE))
def test_a_client_is_led_through_the_proxy(kind: str, tmp_path: Path) -> None:
    """Recorded where the client would have sent it, with its headers, of which the store knows none; replayed with a client of another address."""
    name, path, make = MADE[kind]
    with Provider([step(say="hello")]) as provider:
        client = make(provider.url)
        with near("record", tmp_path / "x.db") as px:
            config = ModelConfig(model=name, extra={"client": client})
            assert asked(px.url, config).text == "hello"
        sent = provider.requests[0]
        assert (sent.path.partition("?")[0], sent.header("api_key")) == (path, "a-secret-of-ours")
        assert str(client.base_url).startswith(provider.url)  # the user's own object is as it was
    kept = (tmp_path / "x.db").read_bytes()
    assert b"a-secret-of-ours" not in kept
    assert b"sk-of-a-gateway" not in kept
    with near("replay", tmp_path / "x.db") as px:
        again = ModelConfig(model=name, extra={"client": make("http://127.0.0.1:9")})
        assert asked(px.url, again).text == "hello"


def test_a_client_that_points_to_the_proxy_already_is_asked_as_any_model() -> None:
    """`OpenAI()` made under `llmproxy run` or pytest: the proxy is no upstream of itself."""
    for base in (f"{PROXY}/s/p-7/v1", "https://api.openai.com/v1"):
        config = ModelConfig(model="gpt-4o-mini", extra={"client": openai.OpenAI(base_url=base, api_key="k")})
        assert upstreams_of_models([config], PROXY) == {}
        assert route(config, PROXY)["api_base"] == f"{PROXY}/v1"
    own = ModelConfig(model="gpt-4o-mini", api_base="http://h/v1", extra={"client": openai.OpenAI(api_key="k")})
    assert address_model(own, PROXY) is own


def test_a_handler_of_litellms_is_right_as_it_is() -> None:
    """It is told the address with each call."""
    import_litellm()
    from litellm.llms.custom_httpx.http_handler import HTTPHandler

    handler = HTTPHandler()
    assert lead_client(handler, PROXY, "anthropic/claude-sonnet-4-5") is handler
    assert address_model(ModelConfig(model="anthropic/x", extra={"client": handler}), PROXY).api_base is None


def test_a_client_that_nobody_knows_is_refused() -> None:
    """Its calls might pass the proxy by; the text says what to write."""
    with pytest.raises(SettingsError, match=r"client=Mock\(\.\.\.\), and nobody knows how") as caught:
        lead_client(Mock(), PROXY, "gpt-4o-mini")
    assert "api_base=" in str(caught.value.hint)
