"""Table of the providers and their operations; a provider's row holds all data specific to it.

An operation has one name at all providers: ``chat.completions`` is the same dialect at OpenAI, Groq or a local vLLM.
The first of `versions` is restored if a client omits the version. A channel (`llm`, `mcp`, `http`) is derived from
stored names: services recorded by ``--record-host`` are providers ``http:HOST[:PORT]``, operations of MCP begin with
``mcp:``. Sources: WIRE.md 1.1 and 1.2 and the providers' own API references, read 2026-07.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from llmproxy.core.traffic.interaction import Headers, format_host, header
from llmproxy.lazy_regex import late
from llmproxy.parsers import host_matches
from llmproxy.protocol import STDIO_PREFIX, Channel

Family = Literal["openai", "anthropic", "gemini", "bedrock", "ollama", "cohere", "generic", "http"]
"""Dialect of bodies and of the error envelope; ``http`` is a service without models."""
METHOD_BEHIND_ID = frozenset[Family]({"gemini"})
"""Families that append a method to an id in a path, ``fileSearchStores/s:importFile``."""
HTTP_PREFIX = "http:"
"""Prefix of the names of other services, ``http:api.github.com``."""


@dataclass(frozen=True, slots=True)
class ApiOperation:
    name: str
    family: Family | None = None
    """Dialect of this operation if it differs from the provider's, for example Ollama's imitation of OpenAI."""
    stream_default: bool = False
    """Value of an absent ``stream`` member in the body."""
    tree: bool = False
    """Whether paths below it address objects that the server keeps: ``/files/file-1/content``."""
    not_llm: bool = False
    """Whether it is telemetry or trace ingest that only shares the host."""
    keeps: bool = False
    """Whether the server keeps data of requests: every method except reading ones creates or changes something."""
    unordered: bool = False
    """Whether the order of additions to its collection does not matter."""
    changes: tuple[str, ...] = ()
    """Members of the body that name objects which a request changes, though its path does not."""


class ProviderRequestSigns(NamedTuple):
    exact: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    """Prefixes of its paths, whatever follows."""
    below: tuple[str, ...] = ()
    """Prefixes of its paths, if its table knows the path."""
    holds: tuple[str, ...] = ()
    header: str = ""
    query: str = ""
    """Prefix of a query member that only its clients send."""
    certain: bool = False
    """Whether its paths take precedence over headers."""


@dataclass(frozen=True, slots=True)
class ApiKeyVariable:
    name: str
    instead: tuple[str, ...] = ()
    """Alternative variables: if one is set, no placeholder is needed and it would interfere."""
    needs: str = ""
    """Variable without which this one is not set."""
    header: str = ""
    """Header field of a key; if empty, and for a token, it is sent as a bearer token."""

    def list_header_fields(self) -> dict[str, str]:
        return {name: self.header if name.endswith("_KEY") else "" for name in (self.name, *self.instead)}


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    upstream: str
    """Base URL in the form of its SDK. Empty if it depends on the account (Azure)."""
    family: Family
    hosts: tuple[str, ...] = field(compare=False)
    """Public hosts, ``api.openai.com``; ``*`` matches any characters, ``:port`` is compared if given."""
    operations: Mapping[str, ApiOperation] = field(compare=False)
    """Operations by path, without version prefix."""
    versions: tuple[str, ...] = field(default=("/v1",), compare=False)
    env: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Variables for its base URL, by precedence, with the path after the provider's prefix in the proxy's URL."""
    credentials: frozenset[str] = field(default=frozenset(), compare=False)
    """Query members, in lower case, that identify the caller and do not affect the answer."""
    alike: frozenset[str] = field(default=frozenset(), compare=False)
    """Members of `versions` equivalent to the first one; under any other version a request is another request."""
    only_if_set: frozenset[str] = field(default=frozenset(), compare=False)
    """Members of `env` set only if the user set them: SDKs behave differently if they are present."""
    keys: tuple[ApiKeyVariable, ...] = field(default=(), compare=False)
    litellm: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Path after the proxy's address in litellm's base URL, by litellm's name of the provider."""
    otel: str = field(default="", compare=False)
    """OpenTelemetry's name of the provider, if different."""
    pattern: str = field(default="", compare=False)
    """Name of the parser for paths with a model or a method; see `routing.find_llm_operation`."""
    methods: Mapping[str, ApiOperation] = field(default_factory=dict, compare=False)
    own: ProviderRequestSigns = field(default=ProviderRequestSigns(), compare=False)
    telemetry: tuple[str, ...] = field(default=(), compare=False)
    signed: bool = field(default=False, compare=False)
    """Whether each request has a new signature, or a token that is valid for an hour."""
    price_names: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), compare=False)
    """Conversion of its model names to those of the price table: (expression, replacements), applied in order."""

    @property
    def prefix(self) -> str:
        """Prefix of its base URL after the proxy's address; empty for OpenAI, the default upstream."""
        return "" if self.name == "openai" else f"/{self.name}"


_TREES = (
    "assistants", "audio.voices", "batches", "chatkit.sessions", "chatkit.threads", "conversations", "evals",
    "libraries", "skills", "threads", "videos",
)  # fmt: skip
_HEAPS = ("containers", "files", "uploads", "vector_stores")
"""Trees whose objects have no order."""
READS_BY_POST = frozenset({"search", "query"})
_CONVERSATION = ("conversation", "conversation.id", "tools.container")
_CONTAINER = ("container", "container.id")

MESSAGES = {
    "/messages": ApiOperation("messages", "anthropic", changes=_CONTAINER),
    "/messages/count_tokens": ApiOperation("count_tokens", "anthropic"),
    "/messages/batches": ApiOperation("messages/batches", "anthropic", tree=True, keeps=True),
}

OPENAI = {
    **{"/" + row.name.replace(".", "/"): row for row in (
        *map(ApiOperation, (
            "completions", "embeddings", "moderations", "rerank", "score",
            "responses.compact", "responses.input_tokens", "images.generations", "audio.speech",
            "fim.completions", "agents.completions", "images.edits", "images.variations", "audio.transcriptions",
            "audio.translations",
        )),
        ApiOperation("threads.runs", keeps=True),
        ApiOperation("chat.completions", tree=True),
        ApiOperation("responses", tree=True, changes=_CONVERSATION),
        *(ApiOperation(name, tree=True, keeps=True) for name in _TREES),
        *(ApiOperation(name, tree=True, keeps=True, unordered=True) for name in _HEAPS),
    )},
    "/models": ApiOperation("models", tree=True),
    "/fine_tuning": ApiOperation("fine_tuning", tree=True, keeps=True),
    "/realtime": ApiOperation("realtime", tree=True),
    "/agents": ApiOperation("agents", tree=True, keeps=True),
    **MESSAGES,
}  # fmt: skip

ANTHROPIC = {
    **MESSAGES,
    "/complete": ApiOperation("complete", "anthropic"),
    "/models": ApiOperation("models", tree=True),
    "/files": ApiOperation("files", tree=True, keeps=True, unordered=True),
    "/skills": ApiOperation("skills", tree=True, keeps=True),
    "/organizations": ApiOperation("organizations", tree=True, keeps=True),
    "/chat/completions": ApiOperation("chat.completions", "openai"),
}

OLLAMA = {
    "/api/chat": ApiOperation("api.chat", stream_default=True),
    "/api/generate": ApiOperation("api.generate", stream_default=True),
    **{
        f"/api/{name}": ApiOperation(f"api.{name}", stream_default=True, keeps=True)
        for name in ("pull", "push", "create")
    },
    **{f"/api/{name}": ApiOperation(f"api.{name}", keeps=True) for name in ("copy", "delete")},
    **{
        f"/api/{name}": ApiOperation(f"api.{name}")
        for name in ("embed", "embeddings", "show", "tags", "ps", "version", "me", "web_search")
    },
    **{
        f"/v1{path}": replace(operation, family=operation.family or "openai")
        for path, operation in OPENAI.items()
        if operation.name in ("chat.completions", "completions", "responses", "embeddings", "models", "messages")
    },
}

COHERE = {
    **{f"/v1/{name}": ApiOperation(f"v1.{name}") for name in ("chat", "generate", "embed", "rerank", "classify")},
    **{f"/v1/{name}": ApiOperation(f"v1.{name}") for name in ("tokenize", "detokenize", "summarize", "check-api-key")},
    **{f"/v2/{name}": ApiOperation(f"v2.{name}") for name in ("chat", "embed", "rerank")},
    "/v1/models": ApiOperation("models", tree=True),
    **{f"/v1/{name}": ApiOperation(name, tree=True, keeps=True) for name in ("datasets", "connectors", "finetuning")},
    "/v1/audio/transcriptions": ApiOperation("audio.transcriptions", "openai"),
    "/compatibility/v1/chat/completions": ApiOperation("chat.completions", "openai"),
    "/compatibility/v1/embeddings": ApiOperation("embeddings", "openai"),
}

GEMINI = {
    **{f"/{name}": ApiOperation(name, tree=True, keeps=True) for name in ("cachedContents", "batches", "tunedModels")},
    **{f"/{name}": ApiOperation(name, tree=True, keeps=True, unordered=True) for name in ("files", "fileSearchStores")},
    **{f"/{name}": ApiOperation(name, tree=True) for name in ("models", "operations", "interactions")},
    **{
        f"/openai{path}": ApiOperation(
            operation.name, "openai", keeps=operation.keeps, unordered=operation.unordered, changes=operation.changes
        )
        for path, operation in OPENAI.items()
    },
}
_METHODS = {
    name: ApiOperation(name)
    for name in (
        "generateContent", "countTokens", "computeTokens", "embedContent", "batchEmbedContents", "predict",
        "predictLongRunning", "fetchPredictOperation", "generateAnswer", "generateText", "embedText",
        "generateMessage", "batchGenerateContent", "asyncBatchEmbedContent",
    )
}  # fmt: skip
"""Operations by the text after the colon in ``models/M:generateContent``, without a leading ``stream``."""
RAW_PREDICT: Mapping[str, ApiOperation] = {"anthropic": ApiOperation("messages", "anthropic")}
"""Operations on Vertex in a publisher's own dialect, by publisher: ``publishers/anthropic/models/M:rawPredict``."""

_ACTIONS = {
    **dict.fromkeys(("converse", "converse-stream"), ApiOperation("converse")),
    **dict.fromkeys(("invoke", "invoke-with-response-stream"), ApiOperation("invoke")),
    "count-tokens": ApiOperation("count-tokens"),
}
"""Operations by the last segment of ``/model/M/invoke``; one with "stream" in its name asks for a stream."""
BEARER_TOKEN = "AWS_BEARER_TOKEN_BEDROCK"  # noqa: S105 - a variable's name
"""Variable of an API key, which replaces a signature."""
BEDROCK = {
    "/async-invoke": ApiOperation("async-invoke", tree=True, keeps=True),
    "/openai/v1/chat/completions": ApiOperation("chat.completions", "openai"),
    "/v1/chat/completions": ApiOperation("chat.completions", "openai"),
    "/v1/responses": ApiOperation("responses", "openai", tree=True, changes=_CONVERSATION),
    "/anthropic/v1/messages": ApiOperation("messages", "anthropic"),
}

GOOGLE_CREDENTIALS = frozenset({"key", "access_token", "oauth_token"})
SIGNED_QUERY = frozenset(
    f"x-amz-{name}"
    for name in ("algorithm", "credential", "date", "expires", "security-token", "signature", "signedheaders")
)

WRITER = {"/chat": ApiOperation("writer.chat"), "/completions": ApiOperation("writer.completions")}
"""OpenAI's dialect, except that streams end without ``[DONE]``; therefore these have their own names."""
REPLICATE = {"/predictions": ApiOperation("predictions", tree=True), "/models": ApiOperation("models", tree=True)}


def _compatible(
    name: str, upstream: str, *hosts: str, versions: tuple[str, ...] = ("/v1",), keys: str = "", **more: Any
) -> Provider:
    alike = frozenset({"", "/v1"} & set(versions[1:]))
    return Provider(name, upstream, "openai", hosts, OPENAI, versions, alike=alike, keys=_keys(keys), **more)


def _keys(names: str) -> tuple[ApiKeyVariable, ...]:
    return tuple(map(ApiKeyVariable, names.split()))


_TELEMETRY = ("/api/event_logging", "/api/claude_code/metrics", "/api/claude_cli_feedback", "/api/hello")
_AZURE = {"AZURE_OPENAI_ENDPOINT": "", "AZURE_API_BASE": "", "ANTHROPIC_FOUNDRY_BASE_URL": "/anthropic"}
_ROWS = (
    Provider(
        "openai", "https://api.openai.com/v1", "openai",
        ("api.openai.com", "eu.api.openai.com", "us.api.openai.com"),
        {**OPENAI, "/traces/ingest": ApiOperation("traces.ingest", not_llm=True)},
        env={"OPENAI_BASE_URL": "/v1", "OPENAI_API_BASE": "/v1"}, keys=_keys("OPENAI_API_KEY"),
        litellm={"openai": "/v1"},
    ),
    Provider(
        "anthropic", "https://api.anthropic.com", "anthropic", ("api.anthropic.com",), ANTHROPIC,
        env={"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_URL": ""},
        keys=(ApiKeyVariable("ANTHROPIC_API_KEY", ("ANTHROPIC_AUTH_TOKEN",), header="x-api-key"),),
        litellm={"anthropic": ""}, telemetry=_TELEMETRY,
        own=ProviderRequestSigns(
            tuple(version + path for version in ("", "/v1") for path in (*MESSAGES, "/complete")), _TELEMETRY,
            ("/v1/messages/", "/messages/"), header="anthropic-version",
        ),
    ),
    Provider(
        "gemini", "https://generativelanguage.googleapis.com", "gemini", ("generativelanguage.googleapis.com",), GEMINI,
        ("/v1beta", "/v1", "/v1alpha", "/v1beta2", "/v1beta3"), {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_API_BASE": ""},
        GOOGLE_CREDENTIALS,
        keys=(
            ApiKeyVariable("GEMINI_API_KEY", ("GOOGLE_API_KEY",), header="x-goog-api-key"),
            ApiKeyVariable("GOOGLE_GENERATIVE_AI_API_KEY", header="x-goog-api-key"),
        ),
        litellm={"gemini": "/v1beta"}, otel="gcp.gemini", pattern="google", methods=_METHODS,
        own=ProviderRequestSigns(
            begins=("/v1beta/", "/upload/v1", "/ws/google.ai.generativelanguage.", "/google.ai.generativelanguage."),
            holds=(":",),
            header="x-goog-api-key", query="key=",
        ),
    ),
    Provider(
        "vertex", "https://aiplatform.googleapis.com", "gemini",
        ("aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com"), {},
        ("/v1beta1", "/v1"),
        {"GOOGLE_VERTEX_BASE_URL": "", "ANTHROPIC_VERTEX_BASE_URL": "/v1", "ANTHROPIC_GOOGLE_CLOUD_BASE_URL": "/v1"},
        GOOGLE_CREDENTIALS, only_if_set=frozenset({"ANTHROPIC_GOOGLE_CLOUD_BASE_URL"}), otel="gcp.vertex_ai",
        pattern="google", methods=_METHODS, own=ProviderRequestSigns(
            begins=("/google.cloud.aiplatform.",), holds=("/publishers/", "/locations/"), certain=True
        ),
        signed=True,
    ),
    Provider(
        "azure", "", "openai",
        ("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com"),
        {**OPENAI, "/anthropic/v1/messages": ApiOperation("messages", "anthropic")},
        ("/openai/v1", "/openai", "/models", ""), _AZURE, frozenset({"api-key", "subscription-key"}),
        only_if_set=frozenset(_AZURE),
        keys=(
            ApiKeyVariable("AZURE_OPENAI_API_KEY", ("AZURE_OPENAI_AD_TOKEN",), "AZURE_OPENAI_ENDPOINT", "api-key"),
            ApiKeyVariable("AZURE_API_KEY", ("AZURE_AD_TOKEN",), "AZURE_API_BASE", "api-key"),
        ),
        litellm={"azure": "/azure"}, otel="azure.ai.openai", pattern="deployments",
        own=ProviderRequestSigns(begins=("/openai/deployments/",), header="api-key"),
        price_names=((r"gpt-3\.5", ("gpt-35",)),),
    ),
    Provider(
        "bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", "bedrock",
        ("bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com", "bedrock-mantle.*.api.aws"),
        BEDROCK, ("",),
        {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "", "AWS_BEDROCK_RUNTIME_ENDPOINT": "", "ANTHROPIC_BEDROCK_BASE_URL": "",
         "ANTHROPIC_BEDROCK_MANTLE_BASE_URL": "/anthropic"},
        SIGNED_QUERY, otel="aws.bedrock", pattern="actions", methods=_ACTIONS,
        own=ProviderRequestSigns(below=("/model/",), certain=True), signed=True,
        price_names=(
            (r"^(?:us|eu|apac|ap|jp|au|global|us-gov|ca|sa)\.", ("",)),
            # answers use the model maker's own name
            (r"^(claude-.*)$", (r"anthropic.\1-v1:0", r"anthropic.\1-v2:0")),
        ),
    ),
    Provider(
        "ollama", "http://127.0.0.1:11434", "ollama",
        ("127.0.0.1:11434", "localhost:11434", "[::1]:11434", "ollama.com"), OLLAMA, ("",),
        {"OLLAMA_HOST": "", "OLLAMA_API_BASE": ""}, litellm={"ollama": "/ollama", "ollama_chat": "/ollama"},
        own=ProviderRequestSigns(tuple(path for path in OLLAMA if path.startswith("/api/")), below=("/api/",)),
    ),
    Provider(
        "cohere", "https://api.cohere.com", "cohere", ("api.cohere.com", "api.cohere.ai"), COHERE, ("",),
        {"CO_API_URL": "", "COHERE_API_BASE": "/v2/chat"},  # litellm posts to the second URL unchanged
        keys=_keys("CO_API_KEY COHERE_API_KEY"),
        litellm={"cohere": "/cohere/v2/chat", "cohere_chat": "/cohere/v2/chat"},
        own=ProviderRequestSigns((
            *(path for path in COHERE if path.startswith("/v2/")), "/v1/chat", "/v1/generate", "/v1/summarize",
            "/compatibility/v1/chat/completions",
        )),
    ),
    Provider(
        "replicate", "https://api.replicate.com", "generic", ("api.replicate.com", "*.replicate.net"), REPLICATE,
    ),
    Provider(
        "writer", "https://api.writer.com", "openai", ("api.writer.com",),
        {**OPENAI, **WRITER}, env={"WRITER_BASE_URL": ""}, keys=_keys("WRITER_API_KEY"),
    ),
    Provider(
        "deepseek", "https://api.deepseek.com", "openai", ("api.deepseek.com",),
        {**OPENAI, "/anthropic/v1/messages": ApiOperation("messages", "anthropic")}, ("", "/v1", "/beta"),
        {"DEEPSEEK_API_BASE": ""}, alike=frozenset({"/v1"}), keys=_keys("DEEPSEEK_API_KEY"),
        litellm={"deepseek": "/deepseek"},
    ),
    Provider(
        "huggingface", "https://router.huggingface.co/v1", "openai",
        ("router.huggingface.co", "api-inference.huggingface.co"),  # no endpoints of one model, which only hosts name
        {**OPENAI, "/": ApiOperation("generate", "generic")}, ("/v1", ""), alike=frozenset({""}),
    ),
    _compatible("mistral", "https://api.mistral.ai", "api.mistral.ai", "api.eu.mistral.ai", "api.us.mistral.ai",
                "codestral.mistral.ai", env={"MISTRAL_API_BASE": "/v1"}, keys="MISTRAL_API_KEY",
                litellm={"mistral": "/mistral/v1"}, otel="mistral_ai"),
    _compatible("groq", "https://api.groq.com", "api.groq.com", versions=("/openai/v1",),
                env={"GROQ_BASE_URL": "", "GROQ_API_BASE": "/openai/v1"}, keys="GROQ_API_KEY",
                litellm={"groq": "/groq/openai/v1"}),
    _compatible("openrouter", "https://openrouter.ai/api/v1", "openrouter.ai", versions=("/api/v1",),
                env={"OPENROUTER_API_BASE": "/api/v1", "OPENROUTER_BASE_URL": "/api/v1"}, keys="OPENROUTER_API_KEY",
                litellm={"openrouter": "/openrouter/api/v1"}),
    _compatible("together", "https://api.together.xyz", "api.together.xyz", "api.together.ai",
                env={"TOGETHER_BASE_URL": "", "TOGETHER_AI_API_BASE": "/v1"},
                keys="TOGETHER_API_KEY TOGETHERAI_API_KEY", litellm={"together_ai": "/together/v1"}),
    _compatible("xai", "https://api.x.ai/v1", "api.x.ai", "*.api.x.ai", env={"XAI_API_BASE": "/v1"}, keys="XAI_API_KEY",
                litellm={"xai": "/xai/v1"}, otel="x_ai", own=ProviderRequestSigns(begins=("/xai_api.",))),
    _compatible("voyage", "https://api.voyageai.com/v1", "api.voyageai.com"),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1", "api.fireworks.ai", versions=("/inference/v1",),
                env={"FIREWORKS_API_BASE": "/inference/v1"}, keys="FIREWORKS_API_KEY",
                litellm={"fireworks_ai": "/fireworks/inference/v1"}),
    _compatible("perplexity", "https://api.perplexity.ai", "api.perplexity.ai", versions=("", "/v1"),
                litellm={"perplexity": "/perplexity"}),
    _compatible("cerebras", "https://api.cerebras.ai/v1", "api.cerebras.ai", env={"CEREBRAS_API_BASE": "/v1"},
                keys="CEREBRAS_API_KEY", litellm={"cerebras": "/cerebras/v1"}),
    _compatible("nvidia", "https://integrate.api.nvidia.com/v1", "integrate.api.nvidia.com",
                env={"NVIDIA_NIM_API_BASE": "/v1"}, keys="NVIDIA_NIM_API_KEY", litellm={"nvidia_nim": "/nvidia/v1"}),
    _compatible("deepinfra", "https://api.deepinfra.com/v1/openai", "api.deepinfra.com", versions=("/v1/openai",),
                litellm={"deepinfra": "/deepinfra/v1/openai"}),
    _compatible("moonshot", "https://api.moonshot.ai/v1", "api.moonshot.ai", "api.moonshot.cn",
                litellm={"moonshot": "/moonshot/v1"}),
)  # fmt: skip

PROVIDERS: Mapping[str, Provider] = {row.name: row for row in _ROWS}
"""All providers by logical name, which is also the path prefix: ``/groq/...``."""
LITELLM_OFFLINE = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
"""Variables that stop litellm from downloading lists when it is imported."""


def format_base_url_assignments(address: str) -> str:
    return f"OPENAI_BASE_URL={address}/v1 ANTHROPIC_BASE_URL={address}"


@lru_cache(maxsize=64)
def build_custom_provider(name: str, upstream: str) -> Provider:
    """Return a new name's provider: OpenAI-compatible (``--upstream NAME=URL``), or a service (``--record-host``)."""
    if name.startswith((HTTP_PREFIX, STDIO_PREFIX)):
        return Provider(name, upstream, "http", (), {}, ("",))
    return _compatible(name, upstream)


MCP_PREFIX = "mcp:"
"""Prefix of MCP operations, ``mcp:tools/call``."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""


class HostParsedFromPath(NamedTuple):
    provider: str
    url: str
    rest: str


def get_call_channel(provider: str, operation: str) -> Channel:
    if operation.startswith(MCP_PREFIX):
        return Channel.MCP
    return Channel.HTTP if provider.startswith(HTTP_PREFIX) else Channel.LLM


def parse_port_or_none(text: str) -> int | None:
    plain = text.isascii() and text.isdecimal() and len(text) <= len("65535")
    return int(text) if plain and 0 < int(text) < 1 << 16 else None


def build_http_provider_name_and_url(scheme: str, host: str, port: int | None) -> tuple[str, str]:
    there = format_host(scheme, host.lower(), port)
    port_80 = ":80" if scheme == "http" and port in (None, 80) else ""  # recorded apart from https
    return f"{HTTP_PREFIX}{there}{port_80}", f"{scheme}://{there}"


def find_host_in_path(target: str, patterns: Sequence[str]) -> HostParsedFromPath | None:
    """Return the recorded host that begins a target, ``/api.github.com/repos``; http for a port other than 443."""
    path, mark, query = target.partition("?")
    first, slash, rest = path[1:].partition("/")
    host, colon, port = first.rpartition(":") if ":" in first else (first, "", "")
    if (colon and parse_port_or_none(port) is None) or not ("." in host or colon or host in patterns):
        return None
    if not host_matches(patterns, host.lower()):
        return None
    number = parse_port_or_none(port)
    name, url = build_http_provider_name_and_url("https" if number in (None, 443) else "http", host, number)
    return HostParsedFromPath(name, url, f"{slash + rest or '/'}{mark}{query}")


class ClientProgram(NamedTuple):
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


_PRODUCT = late(r"([A-Za-z][\w.@-]*(?:/[A-Za-z][\w.@-]*)*)[/ ]v?(\d[\w.+-]{0,40})")
CLIENTS = {
    "claude-cli": "Claude Code",
    "codex_cli_rs": "Codex",
    "codex_exec": "Codex",
    "GeminiCLI": "Gemini CLI",
    "GeminiCLI-tui": "Gemini CLI",
    "QwenCode": "Qwen Code",
}
"""Names of agents by the beginning of their user-agent; other clients keep the name in it."""


def parse_user_agent_client(headers: Headers) -> ClientProgram | None:
    match = _PRODUCT.match(header(headers, "user-agent") or "")
    return None if match is None else ClientProgram(CLIENTS.get(match[1], match[1]), match[2])
