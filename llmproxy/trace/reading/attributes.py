"""What spans carry as metadata, by the names of OpenTelemetry's GenAI conventions (1.40, read 2026-11).

What these conventions have no word for begins with ``llmproxy.``. What is not known is left out: there is no attribute
that says "unknown".
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from llmproxy.core.dialects.messages import ToolCall
from llmproxy.core.traffic.interaction import Usage
from llmproxy.trace.reading.exchange import OpenedExchange, parameters, provider_name

_OPERATIONS = {"generateContent": "generate_content", "completions": "text_completion", "complete": "text_completion",
               "fim.completions": "text_completion", "api.generate": "text_completion", "v1.generate": "text_completion",
               "writer.completions": "text_completion", "generate": "text_completion"}  # fmt: skip
_CHAT = ("chat.completions", "responses", "messages", "converse", "invoke", "api.chat", "v1.chat", "v2.chat",
         "writer.chat", "agents.completions")  # fmt: skip
_EMBEDDINGS = ("embed",)


def operation_name(operation: str) -> str:
    """Return ``chat``, ``generate_content``, ``text_completion``, ``embeddings``; else the operation itself."""
    if operation in _CHAT:
        return "chat"
    if any(part in operation.lower() for part in _EMBEDDINGS):
        return "embeddings"
    return _OPERATIONS.get(operation, operation)


def _drop_none(**attributes: Any) -> dict[str, Any]:  # noqa: ANN401 - attribute values
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}


def request_attributes(exchange: OpenedExchange) -> dict[str, Any]:
    interaction = exchange.interaction
    server = urlsplit(interaction.upstream) if interaction.upstream else None
    found = _drop_none(
        gen_ai__operation__name=operation_name(interaction.operation),
        gen_ai__provider__name=provider_name(interaction.provider),
        gen_ai__request__model=interaction.model,
        server__address=server.hostname if server else None,
        server__port=server.port if server else None,
        llmproxy__operation=interaction.operation,
        llmproxy__interaction=interaction.id,
        llmproxy__key=interaction.key,
        llmproxy__occurrence=interaction.occurrence,
        llmproxy__party=interaction.party,
        llmproxy__stream=interaction.stream,
        llmproxy__tools=sorted(exchange.tools) or None,
    )
    return found | parameters(exchange.tree)


def response_attributes(exchange: OpenedExchange) -> dict[str, Any]:
    """Return the attributes of an answer; its tokens are :func:`usage_attributes`."""
    response, first = exchange.interaction.response, exchange.first_token_ms
    found = _drop_none(
        gen_ai__response__model=exchange.answer_model,
        gen_ai__response__id=exchange.answer_id,
        gen_ai__response__finish_reasons=list(exchange.finish_reasons) or None,
        http__response__status_code=response.status,
        llmproxy__ending=response.ending.value,
        llmproxy__reasoning=(exchange.answer.reasoning or None) if exchange.answer else None,
    )
    if first is not None:
        found["gen_ai.response.time_to_first_chunk"] = first / 1000  # seconds
    if exchange.error is not None:
        found["error.type"] = str(response.status) if response.status >= _CLIENT_ERROR else "incomplete"
    return found


_CLIENT_ERROR = 400


def usage_attributes(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a call: input and output with their cached, written and reasoning parts."""
    return {
        name: count
        for name, count in (
            ("gen_ai.usage.input_tokens", usage.input),
            ("gen_ai.usage.output_tokens", usage.output),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached),
            ("gen_ai.usage.cache_creation.input_tokens", usage.cache_written),
            ("gen_ai.usage.reasoning.output_tokens", usage.reasoning),
        )
        if count is not None
    }


def call_attributes(call: ToolCall) -> dict[str, Any]:
    return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name} | (
        {"gen_ai.tool.call.id": call.id} if call.id else {}
    )
