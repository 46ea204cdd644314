"""What is asked for by ``--live``: the channels that go to the real providers or tools, and what becomes of a tool's call without a recording."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from llmproxy.core.forks.write_answer import WRITERS
from llmproxy.core.keys.mcp import is_call, is_message
from llmproxy.core.providers.table import HTTP_PREFIX, MCP_PREFIX, PROVIDERS
from llmproxy.core.traffic.json_bytes import NotLossless, parse
from llmproxy.protocol import Channel, UnknownTool

_OF_MODELS = frozenset(
    {*WRITERS, "completions", "complete", "embeddings", "count_tokens", "models", "moderations", "rerank"}
)
"""Operations that ask a model, or about models, whoever serves them."""


@dataclass(frozen=True, slots=True)
class LiveChannels:
    """What goes live in a session, and how."""

    channels: frozenset[Channel]
    unknown: UnknownTool = UnknownTool.ERROR
    read_only: tuple[str, ...] = ()
    """Patterns of calls that change nothing: names of tools, ``POST api.example.com/search*``."""

    def declares(self, name: str) -> bool:
        """Tell whether the user said that a call changes nothing; `name` as :func:`name_of_call` gives it."""
        return any(fnmatchcase(name, pattern) for pattern in self.read_only)

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "channels": sorted(self.channels),
            "unknown_tool": str(self.unknown),
            "read_only": list(self.read_only),
        }


def name_of_call(operation: str, provider: str, method: str, target: str) -> str:
    """Return what people call a call: the name of the tool, else MCP's method; of HTTP method, host and path."""
    if operation.startswith(MCP_PREFIX):
        return operation.rpartition(" ")[2] if is_call(operation) else operation.removeprefix(MCP_PREFIX)
    return f"{method} {provider.removeprefix(HTTP_PREFIX)}{target.partition('?')[0]}"


def asks_a_model(provider: str, operation: str, body: bytes) -> bool:
    """Tell whether a request of channel `llm` is for a model: under a name of the user's own (`--upstream`) there may be any service."""
    if provider in PROVIDERS:
        return True
    if operation.partition("/")[0] not in _OF_MODELS:
        return False
    try:
        return not is_message(parse(body)) if body else True
    except NotLossless:
        return True
