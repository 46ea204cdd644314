"""Which variables the SDKs read, as data: base URLs, keys, proxies, certificates. `client.environment.build` makes an environment of it.

A base URL is written as what follows ``http://HOST:PORT/s/<session>``. Providers have their prefix wherever a path alone could be of
several (``GET /v1/models``); OpenAI has none, so that ``--upstream default=URL`` keeps its meaning. Sources: WIRE.md 1.1 and 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACEHOLDER = "llmproxy-placeholder"
"""What stands for a key in replay, where no key is needed but SDKs refuse to start without one."""


@dataclass(frozen=True, slots=True)
class BaseURL:
    """A variable that holds a provider's base URL."""

    name: str
    path: str
    preset_only: bool = False
    """Set only where it was set: SDKs behave differently merely because it is there."""


BASE_URLS = (
    BaseURL("OPENAI_BASE_URL", "/v1"),
    BaseURL("OPENAI_API_BASE", "/v1"),
    BaseURL("ANTHROPIC_BASE_URL", "/anthropic"),
    BaseURL("ANTHROPIC_API_URL", "/anthropic"),
    BaseURL("GOOGLE_GEMINI_BASE_URL", "/gemini"),
    BaseURL("GEMINI_API_BASE", "/gemini"),
    BaseURL("GOOGLE_VERTEX_BASE_URL", "/vertex"),
    BaseURL("ANTHROPIC_VERTEX_BASE_URL", "/vertex/v1"),
    BaseURL("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "/bedrock"),
    BaseURL("AWS_BEDROCK_RUNTIME_ENDPOINT", "/bedrock"),
    BaseURL("ANTHROPIC_BEDROCK_BASE_URL", "/bedrock"),
    BaseURL("ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "/bedrock/anthropic"),
    BaseURL("CO_API_URL", "/cohere"),
    BaseURL("COHERE_API_BASE", "/cohere/v2/chat"),  # litellm posts to it as it is
    BaseURL("GROQ_BASE_URL", "/groq"),
    BaseURL("GROQ_API_BASE", "/groq/openai/v1"),
    BaseURL("TOGETHER_BASE_URL", "/together"),
    BaseURL("TOGETHER_AI_API_BASE", "/together/v1"),
    BaseURL("OPENROUTER_API_BASE", "/openrouter/api/v1"),
    BaseURL("OPENROUTER_BASE_URL", "/openrouter/api/v1"),
    BaseURL("MISTRAL_API_BASE", "/mistral/v1"),
    BaseURL("DEEPSEEK_API_BASE", "/deepseek"),
    BaseURL("XAI_API_BASE", "/xai/v1"),
    BaseURL("FIREWORKS_API_BASE", "/fireworks/inference/v1"),
    BaseURL("CEREBRAS_API_BASE", "/cerebras/v1"),
    BaseURL("NVIDIA_NIM_API_BASE", "/nvidia/v1"),
    BaseURL("WRITER_BASE_URL", "/writer"),
    BaseURL("OLLAMA_HOST", "/ollama"),
    BaseURL("OLLAMA_API_BASE", "/ollama"),
    BaseURL("AZURE_OPENAI_ENDPOINT", "/azure", preset_only=True),
    BaseURL("AZURE_API_BASE", "/azure", preset_only=True),
    BaseURL("ANTHROPIC_FOUNDRY_BASE_URL", "/azure/anthropic", preset_only=True),
    BaseURL("ANTHROPIC_GOOGLE_CLOUD_BASE_URL", "/vertex/v1", preset_only=True),
)

AZURE = ("AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE")
OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Node's and LangChain's Azure clients refuse to start where both an Azure endpoint and one of these is set."""


@dataclass(frozen=True, slots=True)
class Key:
    """A variable that holds a provider's key."""

    name: str
    instead: tuple[str, ...] = ()
    """Variables that do its service: where one is set, a placeholder would only get in the way."""
    needs: str = ""
    """Given only where this variable is set."""


KEYS = (
    Key("OPENAI_API_KEY"),
    Key("ANTHROPIC_API_KEY", ("ANTHROPIC_AUTH_TOKEN",)),
    Key("GEMINI_API_KEY", ("GOOGLE_API_KEY",)),
    Key("GOOGLE_GENERATIVE_AI_API_KEY"),
    Key("AZURE_OPENAI_API_KEY", ("AZURE_OPENAI_AD_TOKEN",), needs="AZURE_OPENAI_ENDPOINT"),
    Key("AZURE_API_KEY", ("AZURE_AD_TOKEN",), needs="AZURE_API_BASE"),
    Key("CO_API_KEY"),
    Key("COHERE_API_KEY"),
    Key("GROQ_API_KEY"),
    Key("TOGETHER_API_KEY"),
    Key("TOGETHERAI_API_KEY"),
    Key("OPENROUTER_API_KEY"),
    Key("MISTRAL_API_KEY"),
    Key("DEEPSEEK_API_KEY"),
    Key("XAI_API_KEY"),
    Key("FIREWORKS_API_KEY"),
    Key("CEREBRAS_API_KEY"),
    Key("NVIDIA_NIM_API_KEY"),
    Key("WRITER_API_KEY"),
)

AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
)
"""Where one of these is set, AWS has credentials of some kind, which a placeholder would hide from S3 and others."""
AWS_PLACEHOLDERS = {"AWS_ACCESS_KEY_ID": PLACEHOLDER, "AWS_SECRET_ACCESS_KEY": PLACEHOLDER}
AWS_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
AWS_FIRST_REGION = "us-east-1"
AWS_IGNORES = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"

QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
"""What in replay by base URL ends traffic that is no call of a model and would go past the proxy: the Agents SDK sends its traces to
api.openai.com whatever the base URL."""

NO_PROXIES = ("NO_PROXY", "no_proxy")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
JAVA_PASSWORD = "changeit"  # noqa: S105 (of a file of public certificates: Java's own default)
PROXY_PASSWORD = "llmproxy"  # noqa: S105 (Node sends the user name, our session, only if there is a password)
