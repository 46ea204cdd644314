"""A long conversation for a judge: an outline, in which it looks up what it needs.

    transcript above `token_threshold` -> outline [n] role: beginning ...  + expand_transcript(indices), grep_transcript(pattern)

Estimated at four characters a token, as everybody's rule of thumb. What the judge looks up is cut as well, and says so: no look-up may be
larger than what the outline saved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EXPAND, GREP = "expand_transcript", "grep_transcript"
_CHARACTERS = 4
"""Of a token, about."""
_HEAD = 120
"""Characters of a message that the outline shows."""
_LONGEST = 16_000
"""Characters of one answer to a look-up."""
_AROUND = 160
"""Characters around a match that are shown."""
_MATCHES = 20
_PATTERN = 200
"""Longest pattern: longer ones are pasted texts."""


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return len(text) // _CHARACTERS


@dataclass(frozen=True, slots=True)
class Lookup:
    """A conversation, message by message, as text."""

    entries: Sequence[str]
    """What a transcript shows for each message, in order; each begins with its number in brackets."""

    def outline(self) -> str:
        """Return the beginning of every message, and how to see more."""
        heads = [_head(each) for each in self.entries]
        how = f"(Beginnings only. {EXPAND}(indices) shows messages as a whole, {GREP}(pattern) searches all of them. Quote what you looked up.)"
        return "\n".join([*heads, how])

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools of looking up, in the form of OpenAI's chat completions."""
        indices = {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Numbers of messages, as in the brackets.",
        }
        pattern = {"type": "string", "description": "Words as they stand there; a|b finds either. Case does not count."}
        return [
            _tool(EXPAND, "Show messages as a whole.", {"indices": indices}),
            _tool(GREP, "Search all messages.", {"pattern": pattern}),
        ]

    def answer(self, name: str, arguments: str) -> str:
        """Return what a look-up finds; what is wrong with it, in words, where it cannot be done."""
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return f"The arguments of {name} are no JSON."
        if not isinstance(given, dict):
            return f"The arguments of {name} are no object."
        return _cut(
            self._expand_messages(given.get("indices")) if name == EXPAND else self._matches(given.get("pattern"))
        )

    def _expand_messages(self, indices: object) -> str:
        wanted = [each for each in indices if isinstance(each, int)] if isinstance(indices, list) else []
        found = [self.entries[each - 1] for each in dict.fromkeys(wanted) if 0 < each <= len(self.entries)]
        return "\n".join(found) or f"There is no such message; they are numbered 1 to {len(self.entries)}."

    def _matches(self, pattern: object) -> str:
        if not isinstance(pattern, str) or not pattern.strip():
            return "The pattern is empty."
        if len(pattern) > _PATTERN:
            return f"The pattern is longer than {_PATTERN} characters; a few words do."
        # As it is written: an expression of a model's would be run on a text that is not the user's, for as long as it likes.
        words = [each for each in re.split(r"\.\*|\|", pattern) if each.strip()]
        found = [line for entry in self.entries for line in _around(entry, words)]
        more = f"\n({len(found) - _MATCHES} more matches)" if len(found) > _MATCHES else ""
        return "\n".join(found[:_MATCHES]) + more if found else f"No message has {pattern!r}."


def _around(entry: str, words: Sequence[str]) -> list[str]:
    """Return where any of the words stands in a message, with what is around it."""
    number, folded = entry.partition(" ")[0], entry.casefold()
    found = []
    for word in words:
        place = folded.find(word.casefold())
        if place >= 0:
            start, end = max(0, place - _AROUND), place + len(word) + _AROUND
            found.append(f"{number} ...{entry[start:end]}...".replace("\n", " "))
    return found


def _head(entry: str) -> str:
    first = entry.replace("\n", " ")
    return first if len(first) <= _HEAD else f"{first[:_HEAD]} ... ({len(first) - _HEAD} more characters)"


def _cut(text: str) -> str:
    more = len(text) - _LONGEST
    return text if more <= 0 else f"{text[:_LONGEST]} ... ({more} more characters: ask for fewer messages, or search)"


def _tool(name: str, description: str, members: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "strict": True, "parameters": parameters},
    }
