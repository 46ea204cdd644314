"""Recordings of Datadog's ddapm-test-agent (``--vcr-cassettes-directory``): a JSON file for each exchange.

    {"request": {"method", "url", "headers", "body"}, "response": {"status": {"code", "message"}, "headers", "body"}}

A body that is not UTF-8 text has the form ``base64:...``. Source: ddapm_test_agent/vcr_proxy.py of 1.69.1.
"""

from __future__ import annotations

from llmproxy.core.cassettes.formats import (
    Recorded,
    Source,
    Tree,
    decode_base64,
    encode_utf8_with_surrogates,
    mapping,
    parse_header_mapping,
    read_each_item,
    status,
    text,
)

_BINARY = "base64:"


def recognises(source: Source) -> bool:
    request, response = source.members.get("request"), source.members.get("response")
    return isinstance(request, dict) and "url" in request and isinstance(response, dict)


def read(source: Source) -> list[Recorded]:
    return read_each_item([source.json], _read_interaction, source, "exchange")


def _read_interaction(tree: Tree, number: int) -> Recorded:
    request, response = mapping(tree, "request"), mapping(tree, "response")
    how = mapping(tree, "response", "status")
    return Recorded(
        method=text(request, "method").upper(),
        uri=text(request, "url"),
        headers=parse_header_mapping(request.get("headers")),
        body=_read_body(text(request, "body", "")),
        status=status(how.get("code")),
        reason=text(how, "message", ""),
        response_headers=parse_header_mapping(response.get("headers")),
        response_body=_read_body(text(response, "body", "")),
        number=number,
    )


def _read_body(value: str) -> bytes:
    return (
        decode_base64(value.removeprefix(_BINARY)) if value.startswith(_BINARY) else encode_utf8_with_surrogates(value)
    )
