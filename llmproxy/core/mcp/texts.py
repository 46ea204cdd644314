"""What was asked of a tool and what came of it, in words: for lists and for people who look. Never raises."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from llmproxy.core.bindings.answer_bodies import list_parts


class ToolText(NamedTuple):
    tool: str
    arguments: str
    """JSON."""
    result: str
    """Its texts; of other content what it is. Empty where none came."""
    failed: bool


def read_call(request: bytes, content_type: str, answer: bytes) -> ToolText | None:
    """Return the call of a tool that an interaction is; None for any other message."""
    try:
        asked = json.loads(request)
        if not isinstance(asked, dict) or asked.get("method") != "tools/call":
            return None
        params = asked["params"]
        messages = [part.value for part in list_parts(content_type, answer)]
        last: dict[str, Any] = next(
            (m for m in reversed(messages) if "method" not in m and m.get("id") == asked.get("id")), {}
        )
        arguments = json.dumps(params.get("arguments", {}), ensure_ascii=False)
        return ToolText(str(params["name"]), arguments, *_result(last))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def called_in(request: bytes) -> tuple[str, ...]:
    """Return the name of the tool that a request calls; nothing for any other message."""
    try:
        asked = json.loads(request)
        return (str(asked["params"]["name"]),) if asked["method"] == "tools/call" else ()
    except (ValueError, RecursionError, KeyError, TypeError):
        return ()


def _result(message: dict[str, Any]) -> tuple[str, bool]:
    if isinstance(error := message.get("error"), dict):
        return str(error.get("message", "")), True
    result = message.get("result") or {}
    content = result.get("content") or []
    shown = [each["text"] if each.get("type") == "text" else f"[{each.get('type')}]" for each in content]
    if not shown and "structuredContent" in result:
        shown = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    return "\n".join(map(str, shown)), result.get("isError") is True
