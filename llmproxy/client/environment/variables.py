"""Which variables the SDKs read, as data: base URLs and keys (of the providers' rows), proxies, certificates.
`client.environment.build` makes an environment of it.

A base URL is written as what follows ``http://HOST:PORT/s/<session>``. Providers have their prefix wherever a path
alone could be of several (``GET /v1/models``); OpenAI has none, so that ``--upstream default=URL`` keeps its meaning.
Sources: WIRE.md 1.1 and 4.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from llmproxy.core.providers.table import PROVIDERS

PLACEHOLDER = "llmproxy-placeholder"
"""What stands for a key in replay, where no key is needed but SDKs refuse to start without one."""


@dataclass(frozen=True, slots=True)
class BaseURL:
    """A variable that holds a provider's base URL."""

    name: str
    path: str
    preset_only: bool = False
    """Set only where it was set: SDKs behave differently merely because it is there."""


BASE_URLS = tuple(
    sorted(
        (
            BaseURL(name, provider.prefix + path, name in provider.only_if_set)
            for provider in PROVIDERS.values()
            for name, path in provider.env.items()
        ),
        key=lambda variable: variable.preset_only,
    )
)

AZURE = ("AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE")
OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Node's and LangChain's Azure clients refuse to start where both an Azure endpoint and one of these is set."""


KEYS = tuple(key for provider in PROVIDERS.values() for key in provider.keys)

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
"""What in replay by base URL ends traffic that is no call of a model and would go past the proxy: the Agents SDK sends
its traces to api.openai.com whatever the base URL.
"""

NO_PROXIES = ("NO_PROXY", "no_proxy")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
NODE_OPTIONS = "NODE_OPTIONS"
NODE_PRELOAD = f"--require {json.dumps((Path(__file__).parents[2] / 'data/node_proxy.cjs').as_posix())}"
"""Makes a Node that heeds no proxy variable heed them; Node unquotes as JSON does."""
JAVA_PASSWORD = "changeit"  # noqa: S105 (of a file of public certificates: Java's own default)
PROXY_PASSWORD = "llmproxy"  # noqa: S105 (Node sends the user name, our session, only if there is a password)
