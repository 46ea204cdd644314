"""Presets: sets of rules as files, to be used by name, or printed (`llmproxy faults NAME`) and changed."""

from __future__ import annotations

from collections.abc import Mapping

from llmproxy.files import DATA

PRESETS: Mapping[str, str] = {
    "flaky-network": "connections are reset, break off in the middle, or are slow to begin",
    "rate-limited": "429 with retry-after, now and then twice in a row",
    "overloaded": "529, 503 and 500, and error events in the middle of streams",
    "broken-stream": "streams that break in every place: in an event, in a character, before their end",
    "flaky-tools": "MCP servers that fail, answer late or go away",
    "odd-answers": "answers that are whole and no good: empty, cut short, refused, with tool calls that nobody can run",
}
"""By name, in the order in which they are shown: what they do."""


def preset_text(name: str) -> str:
    return (DATA / "faults" / f"{name}.yaml").read_text(encoding="utf-8")
