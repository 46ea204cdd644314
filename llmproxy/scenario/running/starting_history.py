"""Starting history of a conversation: a transcript, or a recorded session's texts.

    [{"role": ..., "content": ...}, ...]      messages, unchanged
    "talk.json", "talk.jsonl"                 a file of messages; an object with `messages` is one too
    "store.db::cassette", "...::cassette~2"   a recorded session of a store: the texts of user and agent

Of a recording, the main conversation is taken (sub-agents have their own) without the agent's instructions and tool
calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.advice import format_command, quote_word
from llmproxy.errors import SettingsError
from llmproxy.files import read_bounded_text, unique_members
from llmproxy.scenario.running.conversation import Conversation
from llmproxy.scenario.types import AgentRole, Message
from llmproxy.scenario.values.messages import copy_messages, to_text
from llmproxy.trace import Cassette
from llmproxy.trace.spans import Span, SpanKind

SEPARATOR = "::"
_ONE_EXCHANGE = 2
"""Messages of an exchange: a user's and the answer."""
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def add_history_to_conversation(conversation: Conversation, history: Sequence[Message] | str) -> None:
    """Add history to a conversation; after a user's last message it is the agent's turn."""
    found = read_history(history) if isinstance(history, str) else history
    conversation.add_messages(copy_messages(found))
    if conversation.messages and conversation.messages[-1]["role"] == "user":
        conversation.turns.skip_to(AgentRole.AGENT)


def read_history(source: str) -> list[Message]:
    """Return the messages of a source. Raises SettingsError: it is empty; CassetteError."""
    if SEPARATOR in source:
        path, _, name = source.rpartition(SEPARATOR)
        cassette, sample = _split_sample_suffix(name)
        spans = Cassette.from_store(path, cassette=cassette, sample=sample).spans
        found = _longest_conversation(spans)
        if not found:
            raise SettingsError(
                f"nobody says anything in cassette {cassette!r}, sample {sample}, of {path}: there is nothing to go on "
                f"from.",
                hint=format_command(f"show {quote_word(cassette)}", path),
            )
        return found
    return _check_messages(_read_messages_file(Path(source)), source)


def _longest_conversation(spans: Sequence[Span]) -> list[Message]:
    """Return the longest conversation that no other started; of an agent without memory, all of them."""
    roots = [
        span.metadata.get("gen_ai.conversation.id")
        for span in spans
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation" and not span.parent_id
    ]
    said: dict[Any, list[Message]] = {root: [] for root in roots}
    for span in spans:
        found = said.get(span.metadata.get("gen_ai.conversation.id"))
        if found is None:
            continue
        if span.kind is SpanKind.USER_INPUT:
            found.append({"role": "user", "content": to_text(span.input)})
        elif span.kind is SpanKind.AGENT_OUTPUT:
            found.append({"role": "assistant", "content": to_text(span.output)})
    longest = max(said.values(), key=len, default=[])
    return longest if len(longest) > _ONE_EXCHANGE else [message for messages in said.values() for message in messages]


def _split_sample_suffix(name: str) -> tuple[str, int]:
    cassette, tilde, sample = name.rpartition("~")
    return (cassette, int(sample)) if tilde and sample.isdigit() and int(sample) else (name, 1)


def _read_messages_file(path: Path) -> list[Any]:
    try:
        text = read_bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the history {str(path)!r} cannot be read: {error}",
            hint="It is a list of messages, a .json or .jsonl file of them, or a recording: store.db::cassette.",
        ) from error
    try:
        value = (
            [json.loads(line, object_pairs_hook=unique_members) for line in text.splitlines() if line.strip()]
            if path.suffix == ".jsonl"
            else json.loads(text, object_pairs_hook=unique_members)
        )
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the history {str(path)!r} is no JSON: {error}") from error
    value = value.get("messages") if isinstance(value, dict) else value
    return value if isinstance(value, list) else [value]


def _check_messages(messages: list[Any], where: str) -> list[Message]:
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            raise SettingsError(
                f"{where}: message {place + 1} is {message!r}; a message has a role of {', '.join(sorted(_ROLES))}."
            )
    return [dict(message) for message in messages]
