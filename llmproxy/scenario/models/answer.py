"""What a model answered, whoever spoke to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_THOUGHT = re.compile(r"<(think|thinking|reasoning|thought)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"^.*</(?:think|thinking|reasoning|thought)>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Called:
    """A tool that the model wants to be called."""

    name: str
    arguments: str
    """As the model wrote them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered."""

    text: str
    """Without reasoning, and without white space around it."""
    tool_calls: tuple[Called, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    """Tokens, as far as the provider told: prompt, completion, total."""

    @classmethod
    def of(cls, kept: str) -> Answer:
        """Read what :meth:`kept` wrote."""
        value = json.loads(kept)
        calls = tuple(Called(**call) for call in value.pop("tool_calls"))
        return cls(**value, tool_calls=calls)

    def to_text(self) -> str:
        """Return it as a text that can be kept."""
        return json.dumps(asdict(self), ensure_ascii=False)


def spoken_text(content: object) -> str:
    """Return what was said aloud: text, without the reasoning that some models put into it."""
    if isinstance(content, list):
        content = "".join(
            str(part.get("text") or "") for part in content if isinstance(part, dict) and part.get("type") == "text"
        )
    text = content if isinstance(content, str) else ""
    return _THOUGHT_END.sub("", _THOUGHT.sub("", text)).strip()
