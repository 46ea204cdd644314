"""A reply as Bedrock says it: converse and Anthropic's own dialect under invoke, whole and in AWS's binary event stream.

A frame is: total length, length of the headers, CRC-32 of these eight bytes; headers (name, type 7, text); payload; CRC-32 of all
before it. Source: https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

from . import say_anthropic
from .answer import dumps
from .say_openai import words
from .script import Reply

STREAM_TYPE = "application/vnd.amazon.eventstream"


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    packed = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    message = prelude + struct.pack("!I", crc32(prelude)) + packed + payload
    return message + struct.pack("!I", crc32(message))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"\x07" + struct.pack("!H", len(value)) + value


def event_frame(kind: str, value: object) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, dumps(value).encode())


def converse(reply: Reply, number: int, tokens: tuple[int, int]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"text": reply.say}] if reply.say else []
    content += [
        {"toolUse": {"toolUseId": f"tooluse_{number:06d}{index}", "name": call.name, "input": dict(call.arguments)}}
        for index, call in enumerate(reply.call)
    ]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if reply.call else "end_turn",
        "usage": {"inputTokens": tokens[0], "outputTokens": tokens[1], "totalTokens": sum(tokens)},
        "metrics": {"latencyMs": 100 + number},
    }


def converse_stream(whole: Mapping[str, Any]) -> Iterator[bytes]:
    message = whole["output"]["message"]
    yield event_frame("messageStart", {"role": message["role"]})
    for index, block in enumerate(message["content"]):
        if "toolUse" in block:
            used = block["toolUse"]
            start = {"toolUse": {"toolUseId": used["toolUseId"], "name": used["name"]}}
            yield event_frame("contentBlockStart", {"start": start, "contentBlockIndex": index})
            text = dumps(used["input"])
            deltas: list[dict[str, Any]] = [{"toolUse": {"input": text[at : at + 7]}} for at in range(0, len(text), 7)]
        else:
            deltas = [{"text": word} for word in words(block["text"])]
        for delta in deltas:
            yield event_frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": index})
        yield event_frame("contentBlockStop", {"contentBlockIndex": index})
    yield event_frame("messageStop", {"stopReason": whole["stopReason"]})
    yield event_frame("metadata", {"usage": whole["usage"], "metrics": whole["metrics"]})


def invoke_stream(whole: dict[str, Any]) -> Iterator[bytes]:
    """Stream a message of Anthropic's as frames of base64; the last one has Bedrock's own counts."""
    for raw in say_anthropic.message_stream(whole):
        data = raw.decode().partition("data: ")[2].strip()
        if '"message_stop"' in data:
            counts = {
                "inputTokenCount": whole["usage"]["input_tokens"],
                "outputTokenCount": whole["usage"]["output_tokens"],
            }
            data = dumps({"type": "message_stop", "amazon-bedrock-invocationMetrics": counts})
        yield event_frame("chunk", {"bytes": base64.b64encode(data.encode()).decode()})
