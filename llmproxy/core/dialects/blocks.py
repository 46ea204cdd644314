"""What an agent wrote into a user's message, and what was typed there.

<system-reminder> ... </system-reminder>      <environment_context> ... </environment_context>      # AGENTS.md instructions ...
"""

from __future__ import annotations

import re

from llmproxy.late import late

_OPENER = late(r"^[ \t]*<([A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)+)(?:[ \t][^<>\n]*)?>", re.MULTILINE)
_TYPED = late(r"quer|question|message|request|prompt|task|input|args|command", re.IGNORECASE)
"""Tags with these words are put around what a user typed."""
_OPENINGS = ("This is the Gemini CLI.", "This is the Qwen Code", "# AGENTS.md instructions", "# Context\n", "[SYSTEM]")
"""How texts begin that coding agents send as the user's, and nobody typed (2026-07)."""


def find_blocks(text: str) -> list[tuple[int, int]]:
    """Return the parts of a user's message that the agent wrote: ``<system-reminder>`` and its like, each on lines of its own.

    Only tags of two words count, ``<environment_context>``: people type ``<b>``.
    """
    if text.startswith(_OPENINGS):
        return [(0, len(text))]
    if "</" not in text:
        return []
    spans: list[tuple[int, int]] = []
    unclosed: set[str] = set()
    end = 0
    for opener in _OPENER.finditer(text):
        tag = opener[1]
        if opener.start() < end or tag in unclosed or _TYPED.search(tag):
            continue
        closing = f"</{tag}>"
        if (at := text.find(closing, opener.end())) < 0:
            unclosed.add(tag)
            continue
        end = at + len(closing)
        spans.append((opener.start(), end))
    return spans


def list_typed(text: str) -> str:
    """Return what of a user's message was typed: all but the blocks that the agent wrote."""
    parts, last = [], 0
    for start, end in find_blocks(text):
        parts.append(text[last:start].strip())
        last = end
    return "\n".join(filter(None, [*parts, text[last:].strip()])) if last else text
