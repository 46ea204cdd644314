"""Where calls of models go: the table of paths, and what cannot be led through a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from llmproxy.client.control import ControlApiClient
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.models.model_calls import complete
from llmproxy.scenario.models.route_via_proxy import (
    build_litellm_proxy_kwargs,
    fill_api_base_from_client,
    get_model_provider,
    map_upstream_names_to_urls,
    redirect_client_to_proxy,
)
from llmproxy.scenario.models.transport import ModelAnswer, import_litellm
from llmproxy.scenario.run_session import RunSession
from tests.provider import Provider, step
from tests.scenario.parties import run_session
from tests.support import near

P = "http://127.0.0.1:8080"


@pytest.mark.parametrize(("model", "base"), [
    ("openai/gpt-4.1-mini", f"{P}/v1"),
    ("gpt-4.1-mini", f"{P}/v1"),
    ("anthropic/claude-sonnet-4-5", P),
    ("claude-sonnet-4-5", P),
    ("gemini/gemini-2.5-flash", f"{P}/v1beta"),
    ("cohere/command-r", f"{P}/cohere/v2/chat"),
    ("cohere_chat/command-r", f"{P}/cohere/v2/chat"),
    ("ollama/llama3", f"{P}/ollama"),
    ("ollama_chat/llama3", f"{P}/ollama"),
    ("azure/my-deployment", f"{P}/azure"),
    ("openrouter/openai/gpt-4o", f"{P}/openrouter/api/v1"),
    ("mistral/mistral-large-latest", f"{P}/mistral/v1"),
    ("groq/llama-3.3-70b", f"{P}/groq/openai/v1"),
    ("deepseek/deepseek-chat", f"{P}/deepseek"),
    ("together_ai/meta/llama", f"{P}/together/v1"),
    ("xai/grok-4", f"{P}/xai/v1"),
    ("nebius/some-model", f"{P}/nebius/v1"),
])  # fmt: skip
def test_each_provider_has_its_base_url(model: str, base: str) -> None:
    """The table of SCENARIO.md 1.19; a provider that is not in it follows the path of its default base URL."""
    assert build_litellm_proxy_kwargs(model, P + "/")["api_base"] == base


def test_azure_gets_a_version() -> None:
    """Azure's client refuses to start without one; whose call it is stands in the headers."""
    assert build_litellm_proxy_kwargs("azure/x", P)["api_version"]
    assert (
        build_litellm_proxy_kwargs(ModelConfig(model="azure/x", api_version="2025-01-01"), P)["api_version"]
        == "2025-01-01"
    )
    assert "api_version" not in build_litellm_proxy_kwargs("openai/x", P)
    session = RunSession(ControlApiClient(P), SessionReport(name="a~2", cassette="a", sample=2, mode="replay"))
    headers = {"x-llmproxy-session": "a~2", "x-llmproxy-party": "judge.2"}
    assert build_litellm_proxy_kwargs("openai/x", P, session, party="judge.2")["extra_headers"] == headers
    assert "extra_headers" not in build_litellm_proxy_kwargs("openai/x", P)


@pytest.mark.parametrize("model", ["foo/bar", "qqq", "/"])
def test_a_model_of_nobody_is_refused(model: str) -> None:
    """The error says how a model is written."""
    with pytest.raises(SettingsError, match="Write provider/model"):
        get_model_provider(model)


VERTEX = ["vertex_ai/gemini-2.5-flash", "gemini-2.5-flash", "vertex_ai_beta/gemini-2.5-flash"]
OWN = ["hosted_vllm/x", "lm_studio/x", "huggingface/x"]


@pytest.mark.parametrize(("model", "words"), [
    *((name, r'write "gemini/gemini-2\.5-flash"') for name in VERTEX),
    *((name, r"ModelConfig\(model=.*api_base") for name in OWN),
])  # fmt: skip
def test_what_cannot_be_led_there_is_refused_with_what_to_write(model: str, words: str) -> None:
    """Vertex dies on Google credentials before any HTTP; where a server of one's own is nobody knows."""
    with pytest.raises(SettingsError, match=words):
        build_litellm_proxy_kwargs(model, P)


def test_api_base_becomes_an_upstream_of_the_session() -> None:
    """The proxy keeps the path; where it sends it is the upstream, named by the model; one name cannot be two places."""
    mine = ModelConfig(model="openai/My Llama:8b", api_base="http://gpu:8000/serving/v1/")
    assert build_litellm_proxy_kwargs(mine, P)["api_base"] == f"{P}/model-openai-my-llama-8b/serving/v1"
    assert map_upstream_names_to_urls([mine, mine]) == {"model-openai-my-llama-8b": "http://gpu:8000"}
    with pytest.raises(SettingsError, match="http://a:1 and at http://b:1"):
        map_upstream_names_to_urls([ModelConfig(model="openai/x", api_base=f"http://{host}:1/v1") for host in "ab"])


def test_a_dialect_of_its_own_keeps_its_name() -> None:
    """The proxy has to know that it is Anthropic's, so the upstream is the provider's."""
    mine = ModelConfig(model="anthropic/claude", api_base="https://gateway.test/anthropic")
    assert build_litellm_proxy_kwargs(mine, P)["api_base"] == P
    assert map_upstream_names_to_urls([mine]) == {"anthropic": "https://gateway.test/anthropic"}
    assert map_upstream_names_to_urls([ModelConfig(model="ollama_chat/x", api_base="http://h:1")]) == {
        "ollama": "http://h:1"
    }
    assert map_upstream_names_to_urls([ModelConfig(model="openai/x")]) == {}


KEPT: dict[str, Any] = {
    "api_key": "sk-of-a-gateway-1234567890",
    "default_headers": {"api_key": "a-secret-of-ours", "connection": "close"},
}


def sdk() -> Any:
    """Return OpenAI's, whose import takes longer than most tests."""
    import openai

    return openai


MADE: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "blocking": ("gpt-4o-mini", "/gate/v1", lambda url: sdk().OpenAI(base_url=f"{url}/gate/v1", **KEPT)),
    "asynchronous": ("gpt-4o-mini", "/gate/v1", lambda url: sdk().AsyncOpenAI(base_url=f"{url}/gate/v1", **KEPT)),
    "azure": (
        "azure/gpt-4o-mini", "/openai/deployments/gpt-4o-mini",
        lambda url: sdk().AzureOpenAI(azure_endpoint=url, api_version="2024-10-21", **KEPT),
    ),
    "azure with a deployment": (
        "azure/gpt-4o-mini", "/openai/deployments/mine",
        lambda url: sdk().AzureOpenAI(azure_endpoint=url, azure_deployment="mine", api_version="2024-10-21", **KEPT),
    ),
}  # fmt: skip


def asked(proxy: str, config: ModelConfig) -> ModelAnswer:
    async def go() -> ModelAnswer:
        async with run_session(proxy, cassette="a", upstreams=map_upstream_names_to_urls([config], proxy)) as session:
            said = [{"role": "user", "content": "hi"}]
            return await complete(model=config, messages=said, party="judge", session=session)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", list(MADE))
def test_a_client_is_led_through_the_proxy(kind: str, tmp_path: Path) -> None:
    """Recorded at the client's address with its headers; replayed with a client of another address."""
    name, path, make = MADE[kind]
    with Provider([step(say="hello")]) as provider:
        client = make(provider.url)
        with near("record", tmp_path / "x.db") as px:
            config = ModelConfig(model=name, extra={"client": client})
            assert asked(px.url, config).text == "hello"
        sent = provider.requests[0]
        assert sent.path.partition("?")[0] == f"{path}/chat/completions"
        assert sent.header("api_key") == "a-secret-of-ours"
        assert str(client.base_url).startswith(provider.url)  # the user's own object is as it was
    kept = (tmp_path / "x.db").read_bytes()
    assert b"a-secret-of-ours" not in kept
    assert b"sk-of-a-gateway" not in kept
    with near("replay", tmp_path / "x.db") as px:
        again = ModelConfig(model=name, extra={"client": make("http://127.0.0.1:9")})
        assert asked(px.url, again).text == "hello"


def test_a_client_that_points_to_the_proxy_already_is_asked_as_any_model() -> None:
    """`OpenAI()` made under `llmproxy run` or pytest: the proxy is no upstream of itself."""
    openai = sdk()
    for base in (f"{P}/s/p-7/v1", "https://api.openai.com/v1"):
        config = ModelConfig(model="gpt-4o-mini", extra={"client": openai.OpenAI(base_url=base, api_key="k")})
        assert map_upstream_names_to_urls([config], P) == {}
        assert build_litellm_proxy_kwargs(config, P)["api_base"] == f"{P}/v1"
    own = ModelConfig(model="gpt-4o-mini", api_base="http://h/v1", extra={"client": openai.OpenAI(api_key="k")})
    assert fill_api_base_from_client(own, P) is own


def test_a_handler_of_litellms_is_right_as_it_is() -> None:
    """It is told the address with each call."""
    import_litellm()
    from litellm.llms.custom_httpx.http_handler import HTTPHandler

    handler = HTTPHandler()
    assert redirect_client_to_proxy(handler, P, "anthropic/claude-sonnet-4-5") is handler
    assert fill_api_base_from_client(ModelConfig(model="anthropic/x", extra={"client": handler}), P).api_base is None


def test_a_client_that_nobody_knows_is_refused() -> None:
    """Its calls might pass the proxy by; the text says what to write."""
    with pytest.raises(SettingsError, match=r"client=Mock\(\.\.\.\), and nobody knows how") as caught:
        redirect_client_to_proxy(Mock(), P, "gpt-4o-mini")
    assert "api_base=" in str(caught.value.hint)
