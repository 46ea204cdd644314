"""The scripted provider's Bedrock: frames that AWS's own rules accept."""

from __future__ import annotations

import json
import struct
from zlib import crc32

from llmproxy.core.dialects.stream_events import iter_aws_event_frames

from . import Call, Reply, Seen, render
from .say_bedrock import frame

SAID = Reply("one two", (Call("get_weather", {"city": "Oslo"}),))


def seen(action: str, body: object) -> Seen:
    return Seen("POST", f"/model/anthropic.claude%3A0/{action}", (), json.dumps(body).encode(), 1)


def test_a_frame_has_its_lengths_and_sums() -> None:
    """Total and header length, the CRC of the prelude and the CRC of all."""
    made = frame({":event-type": "x"}, b"{}")
    total, headers, prelude = struct.unpack("!III", made[:12])
    assert (total, headers, prelude) == (len(made), len(made) - 18, crc32(made[:8]))
    assert struct.unpack("!I", made[-4:])[0] == crc32(made[:-4])


def test_a_request_is_understood() -> None:
    """Model, stream, last text and tool result are read from path and body."""
    asked = seen("converse-stream", {"messages": [{"role": "user", "content": [{"text": "hi"}]}]})
    assert (asked.dialect, asked.model, asked.stream, asked.last_user) == (
        "bedrock.converse", "anthropic.claude:0", True, "hi",
    )  # fmt: skip
    result = {"toolResult": {"toolUseId": "t", "content": [{"text": "twelve"}]}}
    told = seen("converse", {"messages": [{"role": "user", "content": [result]}]})
    assert (told.stream, "twelve" in (told.tool_result or "")) == (False, True)


def test_a_streamed_answer_is_the_whole_one_in_frames() -> None:
    """Text and tool input put together are what converse says at once."""
    whole = json.loads(render(SAID, seen("converse", {}), 1).body)
    events = [
        (head[":event-type"], json.loads(payload))
        for head, payload in iter_aws_event_frames(render(SAID, seen("converse-stream", {}), 1).body)
    ]
    deltas = [value["delta"] for kind, value in events if kind == "contentBlockDelta"]
    text, used = whole["output"]["message"]["content"]
    assert "".join(delta.get("text", "") for delta in deltas) == text["text"]
    found = json.loads("".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta))
    assert found == used["toolUse"]["input"]
    assert [kind for kind, _ in events][-2:] == ["messageStop", "metadata"]
