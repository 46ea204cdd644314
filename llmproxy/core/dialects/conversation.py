"""What was said: the conversation in a request, the answer in a response, and the ids that later requests may name.

For people who look (`show`, the view in the store), for the runner and for the index of server-made ids. A stream is
put together by index. Nothing here raises on odd input; what is not understood is left out.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from llmproxy.core.dialects.messages import (
    Draft,
    Message,
    as_dict,
    as_list,
    as_str,
    entry_messages,
    list_typed,
    role_of,
    words,
)
from llmproxy.core.dialects.streams import events_once, parse_json
from llmproxy.core.dialects.table import codec_of, dialect_of, find_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from llmproxy.core.providers.table import Family

LOOKED_AT = 1000
"""Entries of a conversation, from its end, among which the user's last words are looked for: a body of 5 MB may hold
millions of entries."""

# -- requests ----------------------------------------------------------------------------------------------------------


# Any: what JSON holds.
_Part = tuple["Callable[[Any], Iterable[Message]]", Any]
"""Part of a request, and what makes messages of it."""


def _systems(body: dict[str, Any]) -> Iterator[Message]:
    for name in ("system", "instructions", "systemInstruction", "system_instruction", "preamble"):
        if body.get(name) and (text := words(body[name])):
            yield Message("system", text)


_CONVERSATIONS = ("chat_history", "messages", "contents", "input")
_PROMPTS = ("message", "prompt", "inputText", "inputs", "query", "texts", "content", "instances")


def _user(text: str) -> Iterable[Message]:
    return (Message("user", text),)


def _wrap_message(message: Message) -> Iterable[Message]:
    return (message,)


def _parts(tree: dict[str, Any]) -> list[_Part]:
    """Return the parts of a request's conversation, in order."""
    found: list[_Part] = [(_systems, tree)]
    for name in _CONVERSATIONS:
        value = tree.get(name)
        if isinstance(value, str):
            found.append((_user, value))
        elif isinstance(value, dict):  # a single content; Replicate's input is an object
            found.append((_systems, value))
            found.append((entry_messages, value) if "prompt" not in value else (_user, words(value["prompt"])))
        elif name == "input" and all(isinstance(part, str) for part in as_list(value)):
            found.extend((_user, part) for part in as_list(value))
        else:
            found.extend((entry_messages, part) for part in as_list(value))
    for name in _PROMPTS:
        value = tree.get(name)
        if isinstance(value, (str, list)) and value:
            texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
            role = role_of(tree.get("role"), "user")
            made = (Message(role, part) for part in (value if texts else [words(value)]) if part)
            found.extend((_wrap_message, message) for message in made)
            break
    return found


def _tree(body: bytes) -> dict[str, Any]:
    tree = as_dict(parse_json(body))
    return as_dict(tree.get("request")) or tree  # Code Assist wraps it


def read_conversation(family: Family, operation: str, body: bytes) -> list[Message]:  # noqa: ARG001 - the same for all of its kind
    """Return the conversation of a request, system first; empty where there is none. Never raises."""
    found = (message for make, part in _parts(_tree(body)) for message in make(part))
    return [
        message for message in found if message.text or message.tool_calls or message.reasoning or message.tool_call_id
    ]


def last_user_text(body: bytes) -> str | None:
    """Return what the user typed last in a request's conversation, without reading what came before it. Never raises.

    What the agent put around it, or sent in the user's name, only where nothing was typed. None as well where all that
    stands before the last `LOOKED_AT` entries.
    """
    sent = None
    for make, part in islice(reversed(_parts(_tree(body))), LOOKED_AT):
        for message in reversed(list(make(part))):
            if message.role == "user" and message.text:
                if typed := list_typed(message.text):
                    return typed
                sent = sent or message.text
    return sent


def read_answer(family: Family, operation: str, content_type: str, body: bytes) -> Message | None:  # noqa: ARG001 - the same for all of its kind
    """Return the answer, put together if it was streamed, as far as it came; None where there is none. Never raises."""
    add, draft = codec_of(operation).add, Draft()
    for value in events_once(content_type, body):
        if isinstance(value, dict):
            add(draft, value)
    return draft.message() if draft.heard else None


# -- ids ---------------------------------------------------------------------------------------------------------------

_MAKERS = ("responses", "files", "containers", "conversations", "vector_stores", "batches", "threads", "assistants",
           "uploads", "evals", "videos", "skills", "fine_tuning", "messages/batches", "interactions",
           "predictions")  # fmt: skip


def made_ids(family: Family, operation: str, content_type: str, body: bytes) -> tuple[str, ...]:
    """Return the ids in a response that later requests may refer to, each once, in order. Never raises."""
    makes, names = operation.startswith(_MAKERS), dialect_of(family).made_names
    if not (makes or names or ((codec := find_codec(operation)) and codec.makes_ids)):
        return ()
    found: dict[str, None] = {}
    for value in events_once(content_type, body):
        if isinstance(value, dict):
            found.update(dict.fromkeys(_ids(value, names, makes=makes)))
    return tuple(found)


def _ids(value: dict[str, Any], names: tuple[str, ...], *, makes: bool) -> Iterable[str]:
    response = as_dict(value.get("response")) or as_dict(value.get("message")) or value
    candidates: list[object] = []
    if makes and not isinstance(value.get("error"), dict):
        candidates.append(response.get("id"))
    for item in (*as_list(response.get("output")), value.get("item")):
        candidates += [as_dict(item).get("id"), as_dict(item).get("call_id")]
    waiting = as_dict(as_dict(response.get("required_action")).get("submit_tool_outputs"))
    candidates += [as_dict(call).get("id") for call in as_list(waiting.get("tool_calls"))]
    for name in ("conversation", "container"):
        candidates.append(
            as_dict(response.get(name)).get("id") or as_dict(as_dict(value.get("delta")).get(name)).get("id")
        )
    for holder in (value, as_dict(value.get("file"))):
        name = as_str(holder.get("name"))
        candidates.append(name if name.startswith(names) else None)
    return [name for name in candidates if isinstance(name, str) and name]
