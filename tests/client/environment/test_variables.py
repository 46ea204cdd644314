"""Every base-URL variable leads to its provider."""

from __future__ import annotations

import pytest

from llmproxy.client.environment.variables import BASE_URLS
from llmproxy.core.providers.routing import route
from llmproxy.core.providers.table import PROVIDERS

ANSWERS = {  # variable: what its SDK appends, provider, operation, target at the public host
    "OPENAI_BASE_URL": ("/chat/completions", "openai", "chat.completions", "/v1/chat/completions"),
    "OPENAI_API_BASE": ("/responses", "openai", "responses", "/v1/responses"),
    "ANTHROPIC_BASE_URL": ("/v1/messages", "anthropic", "messages", "/v1/messages"),
    "ANTHROPIC_API_URL": ("/v1/messages", "anthropic", "messages", "/v1/messages"),
    "GOOGLE_GEMINI_BASE_URL": ("/v1beta/models/g:generateContent", "gemini", "generateContent", None),
    "GEMINI_API_BASE": ("/models/g:generateContent", "gemini", "generateContent", "/v1beta/models/g:generateContent"),
    "GOOGLE_VERTEX_BASE_URL": (
        "/v1beta1/projects/p/locations/l/publishers/google/models/g:generateContent",
        "vertex",
        "generateContent",
        None,
    ),
    "ANTHROPIC_VERTEX_BASE_URL": (
        "/projects/p/locations/l/publishers/anthropic/models/c:rawPredict",
        "vertex",
        "messages",
        "/v1/projects/p/locations/l/publishers/anthropic/models/c:rawPredict",
    ),
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": ("/model/m/converse", "bedrock", "converse", "/model/m/converse"),
    "AWS_BEDROCK_RUNTIME_ENDPOINT": ("/model/m/invoke", "bedrock", "invoke", "/model/m/invoke"),
    "ANTHROPIC_BEDROCK_BASE_URL": ("/model/m/invoke", "bedrock", "invoke", "/model/m/invoke"),
    "ANTHROPIC_BEDROCK_MANTLE_BASE_URL": ("/v1/messages", "bedrock", "messages", "/anthropic/v1/messages"),
    "CO_API_URL": ("/v2/chat", "cohere", "v2.chat", "/v2/chat"),
    "COHERE_API_BASE": ("", "cohere", "v2.chat", "/v2/chat"),
    "GROQ_BASE_URL": ("/openai/v1/chat/completions", "groq", "chat.completions", "/openai/v1/chat/completions"),
    "GROQ_API_BASE": ("/chat/completions", "groq", "chat.completions", "/openai/v1/chat/completions"),
    "TOGETHER_BASE_URL": ("/v1/chat/completions", "together", "chat.completions", "/v1/chat/completions"),
    "TOGETHER_AI_API_BASE": ("/chat/completions", "together", "chat.completions", "/v1/chat/completions"),
    "OPENROUTER_API_BASE": ("/chat/completions", "openrouter", "chat.completions", "/api/v1/chat/completions"),
    "OPENROUTER_BASE_URL": ("/chat/completions", "openrouter", "chat.completions", "/api/v1/chat/completions"),
    "MISTRAL_API_BASE": ("/chat/completions", "mistral", "chat.completions", "/v1/chat/completions"),
    "DEEPSEEK_API_BASE": ("/chat/completions", "deepseek", "chat.completions", "/chat/completions"),
    "XAI_API_BASE": ("/chat/completions", "xai", "chat.completions", "/v1/chat/completions"),
    "FIREWORKS_API_BASE": ("/chat/completions", "fireworks", "chat.completions", "/inference/v1/chat/completions"),
    "CEREBRAS_API_BASE": ("/chat/completions", "cerebras", "chat.completions", "/v1/chat/completions"),
    "NVIDIA_NIM_API_BASE": ("/chat/completions", "nvidia", "chat.completions", "/v1/chat/completions"),
    "WRITER_BASE_URL": ("/v1/chat", "writer", "writer.chat", "/v1/chat"),
    "OLLAMA_HOST": ("/api/chat", "ollama", "api.chat", "/api/chat"),
    "OLLAMA_API_BASE": ("/api/generate", "ollama", "api.generate", "/api/generate"),
    "AZURE_OPENAI_ENDPOINT": (
        "/openai/deployments/d/chat/completions?api-version=1",
        "azure",
        "chat.completions",
        "/openai/deployments/d/chat/completions?api-version=1",
    ),
    "AZURE_API_BASE": (
        "/openai/deployments/d/chat/completions?api-version=1",
        "azure",
        "chat.completions",
        "/openai/deployments/d/chat/completions?api-version=1",
    ),
    "ANTHROPIC_FOUNDRY_BASE_URL": ("/v1/messages", "azure", "messages", "/anthropic/v1/messages"),
    "ANTHROPIC_GOOGLE_CLOUD_BASE_URL": (
        "/projects/p/locations/l/publishers/anthropic/models/c:rawPredict",
        "vertex",
        "messages",
        None,
    ),
}


@pytest.mark.parametrize("each", BASE_URLS, ids=lambda each: each.name)
def test_what_a_sdk_asks_below_its_variable_reaches_its_provider(each: object) -> None:
    """The session, the provider, the operation and the target at the public host come out right."""
    name, path = getattr(each, "name", ""), getattr(each, "path", "")
    appended, provider, operation, target = ANSWERS[name]
    found = route("POST", f"/s/my%20test{path}{appended}", (), {"azure": "https://x.openai.azure.com"})
    assert (found.session, found.provider.name, found.operation, found.known) == ("my test", provider, operation, True)
    if target is not None:
        assert found.target == target


def test_every_variable_that_becomes_an_upstream_is_set() -> None:
    """A provider's variable that the child kept would lead past the proxy."""
    known = {variable for provider in PROVIDERS.values() for variable in provider.env}
    assert known - {each.name for each in BASE_URLS} == set()
