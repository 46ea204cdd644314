"""Recordings of Datadog's ddapm-test-agent (``--vcr-cassettes-directory``): a JSON file for each exchange.

    {"request": {"method", "url", "headers", "body"}, "response": {"status": {"code", "message"}, "headers", "body"}}

A body that is not UTF-8 text has the form ``base64:...``. Source: ddapm_test_agent/vcr_proxy.py of 1.69.1.
"""

from __future__ import annotations

from llmproxy.core.cassettes import formats
from llmproxy.core.cassettes.formats import Recorded, Source, Tree


def recognises(source: Source) -> bool:
    request, response = source.members.get("request"), source.members.get("response")
    return isinstance(request, dict) and "url" in request and isinstance(response, dict)


def read(source: Source) -> list[Recorded]:
    return formats.read_each_item([source.json], _read_interaction, source, "exchange")


def _read_interaction(tree: Tree, number: int) -> Recorded:
    request, response = formats.mapping(tree, "request"), formats.mapping(tree, "response")
    how = formats.mapping(tree, "response", "status")
    return Recorded(
        method=formats.text(request, "method").upper(),
        uri=formats.text(request, "url"),
        headers=formats.parse_header_mapping(request.get("headers")),
        body=_read_body(formats.text(request, "body", "")),
        status=formats.status(how.get("code")),
        reason=formats.text(how, "message", ""),
        response_headers=formats.parse_header_mapping(response.get("headers")),
        response_body=_read_body(formats.text(response, "body", "")),
        number=number,
    )


def _read_body(value: str) -> bytes:
    coded = value.removeprefix("base64:")
    return formats.encode_text(value) if coded == value else formats.decode_base64(coded)
