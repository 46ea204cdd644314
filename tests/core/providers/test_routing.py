"""Routing: which provider, which operation, and where the request goes."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from llmproxy.core.providers.provider_table import (
    PROVIDERS,
    Family,
    HostParsedFromPath,
    build_http_provider_name_and_url,
    find_host_in_path,
    get_call_channel,
)
from llmproxy.core.providers.routing import (
    asks_for_stream,
    get_operation_dialect,
    route,
    route_by_host,
    split_session_from_path,
)
from llmproxy.core.providers.upstreams_and_rate_limits import (
    AwsSignedForProxyError,
    CallRateLimiter,
    add_env_upstreams,
    check_aws_signature_host,
    read_env_upstreams,
)
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import RefusedError
from llmproxy.protocol import Channel
from llmproxy.settings import SettingSource, SettingSourceKind, load
from tests.support.narrowing import known
from tests.support.traffic import exchanges

BEARER: Headers = (("Host", "127.0.0.1:8080"), ("Authorization", "Bearer x"))
ANTHROPIC: Headers = (("Anthropic-Version", "2023-06-01"),)
GOOGLE: Headers = (("x-goog-api-key", "k"),)
AZURE: Headers = (("api-key", "k"),)

# target as sent, headers -> provider, operation, target as the provider sees it
BY_URL: list[tuple[str, Headers, str, str, str]] = [
    ("/v1/chat/completions", BEARER, "openai", "chat.completions", "/v1/chat/completions"),
    ("/chat/completions", BEARER, "openai", "chat.completions", "/v1/chat/completions"),
    ("/openai/v1/responses?beta=true", BEARER, "openai", "responses", "/v1/responses?beta=true"),
    ("/openai/responses", BEARER, "openai", "responses", "/v1/responses"),
    ("/v1/models", BEARER, "openai", "models", "/v1/models"),
    ("/v1/models", ANTHROPIC, "anthropic", "models", "/v1/models"),
    ("/v1/models", GOOGLE, "gemini", "models", "/v1/models"),
    ("/v1/models?key=abc", (), "gemini", "models", "/v1/models?key=abc"),
    ("/v1/messages?beta=true", BEARER, "anthropic", "messages", "/v1/messages?beta=true"),
    ("/v1/messages/count_tokens", (), "anthropic", "count_tokens", "/v1/messages/count_tokens"),
    ("/messages", (), "anthropic", "messages", "/v1/messages"),
    ("/anthropic/v1/messages", (), "anthropic", "messages", "/v1/messages"),
    ("/anthropic/messages", (), "anthropic", "messages", "/v1/messages"),
    ("/v1beta/models/g:generateContent?key=a~b", (), "gemini", "generateContent",
     "/v1beta/models/g:generateContent?key=a~b"),
    ("/v1/models/g:generateContent", GOOGLE, "gemini", "generateContent", "/v1/models/g:generateContent"),
    ("/models/g:generateContent", (), "gemini", "generateContent", "/v1beta/models/g:generateContent"),
    ("/gemini/v1beta/models/g%3AcountTokens", (), "gemini", "countTokens", "/v1beta/models/g%3AcountTokens"),
    ("/gemini/v1beta/openai/chat/completions", (), "gemini", "chat.completions", "/v1beta/openai/chat/completions"),
    ("/v1beta1/projects/p/locations/us-east5/publishers/google/models/g:streamGenerateContent", GOOGLE, "vertex",
     "generateContent", "/v1beta1/projects/p/locations/us-east5/publishers/google/models/g:streamGenerateContent"),
    ("/vertex/projects/p/locations/l/publishers/anthropic/models/c:rawPredict", (), "vertex", "messages",
     "/v1beta1/projects/p/locations/l/publishers/anthropic/models/c:rawPredict"),
    ("/openai/deployments/d/chat/completions?api-version=1", AZURE, "azure", "chat.completions",
     "/openai/deployments/d/chat/completions?api-version=1"),
    ("/openai/deployments/d/embeddings", BEARER, "azure", "embeddings", "/openai/deployments/d/embeddings"),
    ("/openai/responses?api-version=1", BEARER, "azure", "responses", "/openai/responses?api-version=1"),
    ("/openai/v1/responses", AZURE, "azure", "responses", "/openai/v1/responses"),
    ("/azure/openai/v1/chat/completions", BEARER, "azure", "chat.completions", "/openai/v1/chat/completions"),
    ("/azure/openai/deployments/d/audio/speech", AZURE, "azure", "audio.speech", "/openai/deployments/d/audio/speech"),
    ("/groq/openai/v1/chat/completions", BEARER, "groq", "chat.completions", "/openai/v1/chat/completions"),
    ("/groq/v1/chat/completions", BEARER, "groq", "chat.completions", "/openai/v1/chat/completions"),
    ("/openrouter/chat/completions", BEARER, "openrouter", "chat.completions", "/api/v1/chat/completions"),
    ("/deepseek/chat/completions", BEARER, "deepseek", "chat.completions", "/chat/completions"),
    ("/deepseek/beta/chat/completions", BEARER, "deepseek", "chat.completions", "/beta/chat/completions"),
    ("/mistral/v1/fim/completions", BEARER, "mistral", "fim.completions", "/v1/fim/completions"),
    ("/model/a%3A0/invoke", (), "bedrock", "invoke", "/model/a%3A0/invoke"),
    ("/model/arn%3Aaws%3Ab%2Fc/converse-stream", ANTHROPIC, "bedrock", "converse",
     "/model/arn%3Aaws%3Ab%2Fc/converse-stream"),
    ("/api/chat", (), "ollama", "api.chat", "/api/chat"),
    ("/ollama/v1/chat/completions", (), "ollama", "chat.completions", "/v1/chat/completions"),
    ("/v2/chat", BEARER, "cohere", "v2.chat", "/v2/chat"),
    ("/v1/chat", BEARER, "cohere", "v1.chat", "/v1/chat"),
    ("/writer/v1/chat", BEARER, "writer", "writer.chat", "/v1/chat"),
    ("/v1/files/file-1/content", BEARER, "openai", "files/file-1/content", "/v1/files/file-1/content"),
    ("/v1/chat/completions/", BEARER, "openai", "chat.completions", "/v1/chat/completions/"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "headers", "provider", "operation", "seen"), BY_URL)
def test_base_url_routes(target: str, headers: Headers, provider: str, operation: str, seen: str) -> None:
    """A request to a base URL is told by prefix, headers or path, and a version left out is restored."""
    found = route(target, headers)
    assert (found.provider.name, found.operation, found.target, found.known) == (provider, operation, seen, True)


@pytest.mark.parametrize("prefix", PROVIDERS)
def test_prefix_names_provider(prefix: str) -> None:
    """Every provider's name is its prefix, and a path it does not know is generic HTTP with its query kept."""
    found = route(f"/s/x/{prefix}/who/kn%C3%B6ws~?a=1&key=2", BEARER)
    assert (found.provider.name, found.known, found.operation) == (prefix, False, "/who/knöws~")
    assert found.target == "/who/kn%C3%B6ws~?a=1&key=2"


def test_unknown_path_is_refused_with_prefixes() -> None:
    """A path that says nothing is refused, and the message lists what to write instead."""
    with pytest.raises(RefusedError, match=r"(?s)/foo.*/anthropic .*/mine.*--upstream default=URL"):
        route("/foo", BEARER, {"mine": "http://h"})


# provider's upstream as the user gives it, target as sent -> where it is sent
BEDROCK_KEY: Headers = (("Authorization", "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-central-1/bedrock/aws4_request"),)
PREDICTED = "endpoint=projects%2Fp%2Flocations%2Feurope-west1%2Fendpoints%2F1"
VERTEX = "/v1/projects/p/locations/europe-west4/publishers/google/models/g:generateContent"
DEFAULT = {"default": "http://gpu:8000/v1"}


@pytest.mark.parametrize(("target", "headers", "upstreams", "facts"), [
    # Vertex goes to the location's host, Bedrock to the region that was signed, Azure nowhere without an endpoint.
    (VERTEX, BEARER, {}, {"upstream": "https://europe-west4-aiplatform.googleapis.com"}),
    ("/model/m/converse", BEDROCK_KEY, {}, {"upstream": "https://bedrock-runtime.eu-central-1.amazonaws.com"}),
    ("/openai/deployments/d/embeddings", AZURE, {}, {"upstream": ""}),
    # `default` gets shared paths and unknown ones; a provider's own path stays with that provider.
    ("/v1/chat/completions", BEARER, DEFAULT, {"name": "default", "sent": "http://gpu:8000/v1/chat/completions"}),
    ("/foo", BEARER, DEFAULT, {"name": "default"}),
    ("/v1/messages", BEARER, DEFAULT, {"name": "anthropic"}),
    # Where the path names the model and decides on streaming, the route says so.
    ("/v1beta/models/g-1:streamGenerateContent?alt=sse", (), {}, {"model": "g-1", "stream": True, "operation": "generateContent"}),
    ("/model/anthropic.c-v1%3A0/invoke", (), {}, {"model": "anthropic.c-v1:0", "stream": False}),
    ("/openai/deployments/my~dep/chat/completions", (), {},
     {"model": "my~dep", "stream": None, "target": "/openai/deployments/my~dep/chat/completions"}),
    ("/openrouter/v1/models/a/b", (), {}, {"model": "a/b"}),
    ("/v1beta/tunedModels/m:generateContent", (), {}, {"model": "tunedModels/m"}),
    ("/v1/responses/resp_1?stream=true", BEARER, {}, {"stream": True}),
    # Two different resources of a server never share an operation; the ids in it are told.
    ("/v1/threads/thread_1/runs/run_2/steps", BEARER, {},
     {"operation": "threads/thread_1/runs/run_2/steps", "ids": ("thread_1", "run_2")}),
    ("/upload/v1beta/files", GOOGLE, {}, {"name": "gemini", "operation": "upload.files", "target": "/upload/v1beta/files"}),
    # Trace ingest and telemetry on a provider's host are told apart from a call of a model.
    ("/v1/traces/ingest", BEARER, {}, {"not_llm": True}),
    ("/api/event_logging/batch", (), {}, {"not_llm": True}),
    ("/v1/chat/completions", BEARER, {}, {"not_llm": False}),
    # A service of gRPC names its provider: its path has no prefix; Vertex's region stands in the metadata.
    ("/xai_api.Chat/GetCompletion", (), {}, {"sent": "https://api.x.ai/xai_api.Chat/GetCompletion", "known": False}),
    ("/google.ai.generativelanguage.v1beta.GenerativeService/GenerateContent", (), {},
     {"upstream": "https://generativelanguage.googleapis.com", "known": False}),
    ("/google.cloud.aiplatform.v1.PredictionService/Predict", (("x-goog-request-params", PREDICTED),), {},
     {"upstream": "https://europe-west1-aiplatform.googleapis.com", "known": False}),
])  # fmt: skip
def test_what_a_target_says(target: str, headers: Headers, upstreams: dict[str, str], facts: dict[str, object]) -> None:
    """Its provider, model, region and resource, and whether it streams; what is not named is of no matter here."""
    found = route(target, headers, upstreams)
    told = {"name": found.provider.name, "sent": found.upstream + found.upstream_target}
    assert {fact: told.get(fact, getattr(found, fact, getattr(found.row, fact, None))) for fact in facts} == facts


@pytest.mark.parametrize(("name", "url", "target", "sent"), [
    ("openai", "https://gw.corp/openai/v1", "/v1/chat/completions", "https://gw.corp/openai/v1/chat/completions"),
    ("openai", "https://gw.corp/openai/v1/", "/v1/chat/completions", "https://gw.corp/openai/v1/chat/completions"),
    ("openai", "http://127.0.0.1:4010", "/v1/chat/completions", "http://127.0.0.1:4010/v1/chat/completions"),
    ("openai", "https://gw.corp/llm", "/v1/chat/completions", "https://gw.corp/llm/chat/completions"),
    ("openai", "https://ark.example/api/v3", "/v1/chat/completions", "https://ark.example/api/v3/chat/completions"),
    ("openai", "https://api.perplexity.ai", "/v1/chat/completions", "https://api.perplexity.ai/chat/completions"),
    ("anthropic", "https://gw.corp/a", "/v1/messages?b=1", "https://gw.corp/a/v1/messages?b=1"),
    ("anthropic", "https://gw.corp/a/v1", "/v1/messages", "https://gw.corp/a/v1/messages"),
    ("gemini", "https://gw.corp/v1beta", "/models/g:generateContent", "https://gw.corp/v1beta/models/g:generateContent"),
    ("groq", "https://gw.corp/g", "/groq/openai/v1/models", "https://gw.corp/g/openai/v1/models"),
    ("groq", "https://gw.corp/openai/v1", "/groq/openai/v1/models", "https://gw.corp/openai/v1/models"),
    ("azure", "https://r.openai.azure.com/", "/openai/deployments/d/embeddings",
     "https://r.openai.azure.com/openai/deployments/d/embeddings"),
    ("vllm", "http://gpu:8000/v1", "/vllm/v1/embeddings", "http://gpu:8000/v1/embeddings"),
    ("vllm", "http://gpu:8000/v1", "/vllm/embeddings", "http://gpu:8000/v1/embeddings"),
])  # fmt: skip
def test_upstream_is_a_base_url(name: str, url: str, target: str, sent: str) -> None:
    """An upstream means what the provider's SDK makes of such a base URL; key and store see the public target."""
    found = route(target, BEARER, {name: url})
    assert found.upstream + found.upstream_target == sent
    plain = route(target, BEARER, {name: "http://elsewhere"})
    assert (found.target, found.operation, found.provider.name) == (plain.target, plain.operation, name)


@pytest.mark.parametrize(("target", "session", "rest"), [
    ("/v1/models", None, "/v1/models"),
    ("/s/a%20b%2Fc~2/v1/models?x=%41", "a b/c~2", "/v1/models?x=%41"),
    ("/s/a", "a", "/"),
    ("/s/a?x", "a", "/?x"),
    ("/sx/a", None, "/sx/a"),
])  # fmt: skip
def test_session_segment(target: str, session: str | None, rest: str) -> None:
    """The session is one percent-decoded segment; the rest of the URL is left as it came."""
    assert split_session_from_path(target) == (session, rest)


@pytest.mark.parametrize("target", ["/s//v1/models", "/s/", "/s/?a", "/s/%ff/v1/models"])
def test_bad_session_is_refused(target: str) -> None:
    """An empty session name, or one that is not UTF-8, is refused."""
    with pytest.raises(RefusedError, match="session"):
        split_session_from_path(target)


@pytest.mark.parametrize(("target", "body", "expected"), [
    ("/v1/chat/completions", {}, False),
    ("/v1/chat/completions", {"stream": True}, True),
    ("/v1/chat/completions", {"stream": None}, False),
    ("/v1/chat/completions", None, False),
    ("/api/chat", {}, True),
    ("/api/chat", {"stream": False}, False),
    ("/api/embed", {}, False),
    ("/model/m/converse", {"stream": True}, False),
    ("/v1beta/models/m:streamGenerateContent", None, True),
    ("/openai/unknown", {"stream": True}, True),
])  # fmt: skip
def test_streams(target: str, body: object, expected: bool) -> None:
    """The path decides where it can, else the body, else the operation's default (Ollama streams)."""
    assert asks_for_stream(route(target, ()), body) is expected


@pytest.mark.parametrize(("scheme", "host", "port", "target", "provider"), [
    ("https", "api.openai.com", None, "/v1/chat/completions", "openai"),
    ("https", "API.openai.com.", 443, "/v1/chat/completions", "openai"),
    ("https", "res.openai.azure.com", None, "/openai/deployments/d/chat/completions", "azure"),
    ("https", "bedrock-runtime.us-gov-west-1.amazonaws.com", None, "/model/m/converse", "bedrock"),
    ("https", "europe-west1-aiplatform.googleapis.com", None,
     "/v1/projects/p/locations/l/publishers/google/models/g:countTokens", "vertex"),
    ("http", "localhost", 11434, "/api/chat", "ollama"),
    ("http", "::1", 11434, "/api/chat", "ollama"),
])  # fmt: skip
def test_hosts(scheme: str, host: str, port: int | None, target: str, provider: str) -> None:
    """A host of the table is its provider's, and the request goes where the client wanted it."""
    found = known(route_by_host(scheme, host, port, target))
    assert (found.provider.name, found.known, found.upstream_target) == (provider, True, target)


def test_host_and_base_url_agree() -> None:
    """What was met at the public host and what came by base URL is the same operation and target."""
    for target, headers, provider, operation, seen in BY_URL:
        name, _, port = PROVIDERS[provider].hosts[0].replace("*", "eu").partition(":")
        by_host = known(route_by_host("https", name, int(port) if port else None, seen))
        by_url = route(target, headers)
        assert (by_host.operation, by_host.model, by_host.stream, by_host.target) == (
            operation, by_url.model, by_url.stream, seen,
        )  # fmt: skip


@pytest.mark.parametrize("host", [
    "example.com", "api.openai.com.evil.example", "notapi.openai.com", "127.0.0.1", "phi.eu.inference.ai.azure.com",
    "a1b2.us-east-1.aws.endpoints.huggingface.cloud",
])  # fmt: skip
def test_foreign_hosts_are_none(host: str) -> None:
    """Hosts in no table are out of scope: those that look alike, and those of one model each, which no request names."""
    assert route_by_host("https", host, None, "/v1/chat/completions") is None


def test_host_of_an_upstream() -> None:
    """The host of an `--upstream` is in scope below its path, under its name."""
    upstreams = {"openai": "https://gw.corp/openai/v1", "vllm": "http://gpu:8000"}
    found = known(route_by_host("https", "gw.corp", 443, "/openai/v1/chat/completions", upstreams))
    assert (found.provider.name, found.target) == ("openai", "/v1/chat/completions")
    assert found.upstream + found.upstream_target == "https://gw.corp/openai/v1/chat/completions"
    assert route_by_host("https", "gw.corp", 443, "/other", upstreams) is None
    custom = known(route_by_host("http", "gpu", 8000, "/v1/embeddings", upstreams))
    assert (custom.provider.name, custom.operation) == ("vllm", "embeddings")
    teams = {"all": "http://gw", "a": "http://gw/team-a"}
    assert known(route_by_host("http", "gw", 80, "/team-a/chat/completions", teams)).provider.name == "a"


@pytest.mark.parametrize("target", ["/_llmproxy/health", "//_llmproxy/health", "/s/x/_llmproxy/sessions"])
def test_a_path_of_the_proxy_is_never_sent(target: str) -> None:
    """Also where everything without a provider's prefix goes to one upstream."""
    with pytest.raises(RefusedError, match="is a path of this proxy itself"):
        route(target, (), {"default": "http://gw"})


@pytest.mark.parametrize(("env", "upstreams"), [
    ({"OPENAI_BASE_URL": "http://localhost:8080/v1", "OPENAI_API_BASE": "https://gw.corp/v1"},
     {"openai": "https://gw.corp/v1"}),
    ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080", "GROQ_BASE_URL": "nonsense",
      "GEMINI_API_BASE": "http://h:port"}, {}),
    ({"OLLAMA_HOST": "0.0.0.0"}, {"ollama": "http://127.0.0.1:11434"}),
    ({"COHERE_API_BASE": "https://gw.corp/v2/chat"}, {"cohere": "https://gw.corp"}),
    ({"OPENAI_BASE_URL": "https://user:hunter2pw@gw.corp:8443/v1?key=abc#x"}, {"openai": "https://gw.corp:8443/v1"}),
    ({"OLLAMA_HOST": "http://u:hunter2pw@[::1]:9"}, {"ollama": "http://[::1]:9"}),
])  # fmt: skip
def test_upstreams_from_env(env: dict[str, str], upstreams: dict[str, str]) -> None:
    """A preset base URL becomes the upstream, without its credentials, unless it points to us or is no URL."""
    assert read_env_upstreams(env, "127.0.0.1:8080") == upstreams


def test_routing_is_quick() -> None:
    """Routing is made for every request: far below 0.1 ms even on a busy machine."""
    headers = BEARER + tuple((f"x-stainless-{number}", "1") for number in range(12))
    started = time.thread_time()
    for _ in range(2000):
        route("/v1/chat/completions", headers)
    assert (time.thread_time() - started) / 2000 < 100e-6


def test_real_traffic_is_known(traffic: Path) -> None:
    """Every recorded exchange with an LLM host is a known operation; hosts that are no provider are out of scope."""
    seen: Counter[str] = Counter()
    for exchange in exchanges(traffic):
        if exchange.route is None:
            # No LLM (telemetry, datasets, search), or a local OpenAI-compatible server that only `--upstream` names.
            assert exchange.host in {
                "api-staging.traceloop.com", "api.traceloop.dev", "api.cloud.llamaindex.ai", "api.smith.langchain.com",
                "api.tavily.com", "os-api.agno.com", "localhost:8000", "localhost:5002",
                "w8qtunpthvh1r7a0.us-east-1.aws.endpoints.huggingface.cloud",
            }, exchange.host  # fmt: skip
            continue
        # Replicate's streams come from an address that a prediction made up.
        assert exchange.route.known or exchange.host.endswith(".replicate.net"), exchange.name
        seen[exchange.route.provider.name] += 1
    assert sum(seen.values()) >= 600, seen
    assert seen["openai"] >= 400, seen


@pytest.mark.parametrize(("typed", "env", "upstreams"), [
    ({}, {"OPENAI_BASE_URL": "https://gw.example/openai/v1"},
     (("openai", "https://gw.example/openai/v1", SettingSource(SettingSourceKind.ENVIRONMENT, "OPENAI_BASE_URL")),)),
    ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1", "ANTHROPIC_BASE_URL": "http://localhost:8080"}, ()),
    ({}, {"LLMPROXY_URL": "http://127.0.0.1:9", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "GROQ_BASE_URL": "http://localhost:9/groq"}, ()),
    ({"upstream": ["openai=http://127.0.0.1:4010"]}, {"OPENAI_BASE_URL": "https://gw.example/v1"},
     (("openai", "http://127.0.0.1:4010", SettingSource(SettingSourceKind.FLAG, "--upstream")),)),
], ids=["a company's gateway", "our own address", "a proxy that may have ended", "an option wins"])  # fmt: skip
def test_a_gateway_in_the_environment_becomes_the_upstream(
    typed: dict[str, list[str]], env: dict[str, str], upstreams: tuple[object, ...], tmp_path: Path
) -> None:
    """A gateway's key is the client's, and its source is remembered; who exported ours, or a dead proxy's by `llmproxy env`, does not make it call that."""
    assert add_env_upstreams(load(typed, {}, tmp_path), env).upstreams == upstreams


AWS = "https://bedrock-runtime.eu-central-1.amazonaws.com"
SIGNED = (
    "Authorization",
    "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-central-1/bedrock/aws4_request, SignedHeaders=host",
)


def test_a_signature_for_our_address_is_refused_with_what_to_do() -> None:
    """The message names both hosts, and the ways that work."""
    with pytest.raises(AwsSignedForProxyError) as raised:
        check_aws_signature_host((("host", "127.0.0.1:8080"), SIGNED), AWS)
    for said in ("127.0.0.1:8080", AWS.removeprefix("https://"), "--intercept", "AWS_BEARER_TOKEN_BEDROCK"):
        assert said in str(raised.value)
    assert raised.value.status == 400


@pytest.mark.parametrize(("host", "authorization", "upstream"), [
    ("bedrock-runtime.eu-central-1.amazonaws.com", SIGNED[1], AWS),
    ("Bedrock-Runtime.eu-central-1.amazonaws.com:443", SIGNED[1], AWS),
    ("127.0.0.1:8080", "Bearer key", AWS),
    ("127.0.0.1:8080", "", AWS),
    ("127.0.0.1:8080", SIGNED[1], "http://127.0.0.1:4566"),
    ("127.0.0.1:8080", SIGNED[1], "https://gateway.example/bedrock"),
])  # fmt: skip
def test_what_may_be_accepted_is_sent(host: str, authorization: str, upstream: str) -> None:
    """Signed for the host that is asked, not signed at all, or sent to whoever is not AWS."""
    check_aws_signature_host((("host", host), ("authorization", authorization)), upstream)


@pytest.mark.parametrize(("provider", "operation", "channel", "family"), [
    ("openai", "chat.completions", Channel.LLM, "openai"),
    ("ollama", "api.chat", Channel.LLM, "ollama"),
    ("ollama", "chat.completions", Channel.LLM, "openai"),
    ("vertex", "messages", Channel.LLM, "anthropic"),
    ("my-vllm", "chat.completions", Channel.LLM, "openai"),
    ("local", "/anything", Channel.LLM, "openai"),
    ("http:api.github.com", "/repos", Channel.HTTP, "http"),
    ("http:mcp.example.com", "mcp:tools/call", Channel.MCP, "http"),
    ("tools", "mcp:initialize", Channel.MCP, "openai"),
])  # fmt: skip
def test_channel_and_dialect_are_read_off_the_names(
    provider: str, operation: str, channel: Channel, family: Family
) -> None:
    """Whatever is stored says what it is about; its dialect is its operation's, else its provider's, and of unknown names OpenAI's."""
    assert (get_call_channel(provider, operation), get_operation_dialect(provider, operation)) == (channel, family)


@pytest.mark.parametrize(("target", "patterns", "found"), [
    ("/api.x.com/a/b?q=1", ("api.x.com",), HostParsedFromPath("http:api.x.com", "https://api.x.com", "/a/b?q=1")),
    ("/api.x.com", ("*.x.com",), HostParsedFromPath("http:api.x.com", "https://api.x.com", "/")),
    ("/API.x.com/A", ("api.x.com",), HostParsedFromPath("http:api.x.com", "https://api.x.com", "/A")),
    ("/127.0.0.1:9/a", ("127.0.0.1",), HostParsedFromPath("http:127.0.0.1:9", "http://127.0.0.1:9", "/a")),
    ("/api.x.com:443/a", ("*",), HostParsedFromPath("http:api.x.com", "https://api.x.com", "/a")),
    ("/db/a", ("db",), HostParsedFromPath("http:db", "https://db", "/a")),
    ("/v1/models", ("*",), None),
    ("/openai/v1/models", ("*",), None),
    ("/other.com/a", ("api.x.com",), None),
    ("/http:api.x.com/a", ("*",), None),
    ("/", ("*",), None),
    ("/127.0.0.1:0443/a", ("*",), HostParsedFromPath("http:127.0.0.1", "https://127.0.0.1", "/a")),
    *((f"/127.0.0.1:{port}/a", ("*",), None) for port in ("", "0", "65536", "99999", "9" * 5_000, "-1", "+80", "\u0661", "8_0")),
])  # fmt: skip
def test_a_path_may_name_a_host_to_be_recorded(
    target: str, patterns: tuple[str, ...], found: HostParsedFromPath | None
) -> None:
    """Only a host that was named to be recorded is taken for one; providers' prefixes are none."""
    assert find_host_in_path(target, patterns) == found


@pytest.mark.parametrize(("where", "named"), [
    (("https", "a.b", 443), ("http:a.b", "https://a.b")),
    (("http", "a.b", 80), ("http:a.b:80", "http://a.b")),
    (("http", "a.b", None), ("http:a.b:80", "http://a.b")),
    (("http", "a.b", 8080), ("http:a.b:8080", "http://a.b:8080")),
    (("https", "::1", 9), ("http:[::1]:9", "https://[::1]:9")),
])  # fmt: skip
def test_a_host_becomes_a_provider_of_its_own(where: tuple[str, str, int], named: tuple[str, str]) -> None:
    """Two services never share a name, nor do http and https; the port of https is left out."""
    assert build_http_provider_name_and_url(*where) == named
    assert get_operation_dialect(named[0], "/x") == "http"


def test_so_many_go_at_once_and_the_next_waits_for_the_first() -> None:
    """A window that slides: who asks later waits for a later moment."""
    now = 100.0
    pace = CallRateLimiter({"openai": "2/min"}, lambda: now)
    assert [pace.count_call("openai") for _ in range(5)] == [0.0, 0.0, 60.0, 60.0, 120.0]
    now = 190.0
    assert pace.count_call("openai") == 30.0
    now = 1000.0
    assert [pace.count_call("openai") for _ in range(3)] == [0.0, 0.0, 60.0]


@pytest.mark.parametrize("seed", range(20))
def test_no_window_has_more(seed: int) -> None:
    chance, now = random.Random(seed), 100.0
    many = chance.randrange(1, 6)
    pace, gone = CallRateLimiter({"*": f"{many}/s"}, lambda: now), []
    for _ in range(200):
        now += chance.choice((0.0, 0.0, 0.1, 0.9, 3.0))
        gone.append(now + pace.count_call("openai"))
    assert gone == sorted(gone)
    assert all(later - first >= 1.0 - 1e-9 for first, later in zip(gone, gone[many:], strict=False))
    assert gone[-1] > gone[0]


def test_each_provider_is_counted_for_itself() -> None:
    """A name wins over what is said of all, which holds for models."""
    pace = CallRateLimiter({"*": "1/min", "openai": "2/min", "api.example.com": "1/h"}, lambda: 100.0)
    assert [pace.count_call("openai") for _ in range(2)] == [0.0, 0.0]
    assert [pace.count_call("anthropic") for _ in range(2)] == [0.0, 60.0]
    assert [pace.count_call("http:api.example.com", model=False) for _ in range(2)] == [0.0, 3600.0]
    assert [pace.count_call("http:other.example", model=False) for _ in range(2)] == [0.0, 0.0]


def test_who_counts_after_another_lets_a_window_pass() -> None:
    """What the one before had let go is not known: all of it, at the latest moment."""
    assert CallRateLimiter({"openai": "3/min"}, lambda: 100.0, since=100.0).count_call("openai") == 60.0
