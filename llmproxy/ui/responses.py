"""Responses of the viewer's servers: a value, with header fields that protect it from others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmproxy.errors import CassetteNotFound, LLMProxyError
from llmproxy.protocol import UI_PREFIX

logger = logging.getLogger(__name__)
_FAULT = "That is a fault of the viewer, not of the recording: llmproxy show reads it in the terminal."
Headers = tuple[tuple[str, str], ...]
Ask = Callable[[str, dict[str, str]], Any]
"""Converts question and query to plain values; raises LLMProxyError."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    status: int
    kind: str
    body: bytes
    more: Headers = ()


def build_headers(answer: PageAnswer) -> Headers:
    """Return header fields common to all our answers: no caching, framing, sniffing or referrer."""
    return (
        ("content-type", answer.kind),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        *answer.more,
    )


def page_answer(start: dict[str, Any]) -> PageAnswer:
    from llmproxy.ui.page import render_page  # late: it reads and hashes files

    return PageAnswer(200, "text/html; charset=utf-8", render_page({"served": True, **start}, served=True).encode())


def json_answer(status: int, value: object) -> PageAnswer:
    """Return plain values as JSON; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return PageAnswer(status, "application/json", text.encode("utf-8", "backslashreplace"))


def answer_query_as_json(ask: Ask, question: str, query: dict[str, str]) -> PageAnswer:
    try:
        return json_answer(200, ask(question, query))
    except LLMProxyError as error:
        return error_answer(error)
    except Exception as error:
        logger.debug("the viewer could not answer %s", question, exc_info=True)
        told = f"llmproxy: this cannot be shown: {type(error).__name__}: {str(error)[:300]}"
        return refusal_answer(500, "llmproxy_viewer", told, _FAULT)


def error_answer(error: LLMProxyError) -> PageAnswer:
    status = 404 if isinstance(error, CassetteNotFound) else error.status
    return refusal_answer(status, error.code, error.message, error.hint)


def refusal_answer(status: int, code: str, message: str, hint: str = "") -> PageAnswer:
    return json_answer(status, {"error": {"code": code, "message": message, "hint": hint}})


def redirect_to_page() -> PageAnswer:
    return PageAnswer(302, "text/plain", b"", (("location", UI_PREFIX),))
