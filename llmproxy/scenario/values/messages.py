"""Conversion of adapters' return values into messages, and copies of messages that are safe from changes.

A message is never extended: the output has the author's keys and no others. An agent's answer is read by a path, a
small part of JSONPath: ``$.answer``, ``$.choices[0].text``, ``$.parts[-1]``, ``$.parts[*].text``, ``$['odd name']``.
There are no filters and no search (``..``): a path has one meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from llmproxy.core.traffic.json_diff import clip_json
from llmproxy.errors import AgentError, SuiteError, printable
from llmproxy.scenario.types import AgentRole, Message

_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")
"""Members of a message object that are kept even if they equal their default."""
_SHOWN = 100  # characters of an invalid return value quoted in the error


def copy_value[T](value: T) -> T:
    """Return a copy that shares no list and no dict with the value; a message of JSON values is copied whole."""
    if isinstance(value, dict):
        return cast("T", {key: copy_value(each) for key, each in value.items()})
    if isinstance(value, list):
        return cast("T", [copy_value(each) for each in value])
    return value


def copy_messages(messages: Iterable[Message]) -> list[Message]:
    return [copy_value(message) for message in messages]


def get_message_text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else "" if content is None else str(content)


def convert_return_to_messages(returned: object, role: AgentRole, author: str) -> list[Message]:
    """Return the messages in a return value; `author` is the adapter's class. Raises ValueError: what to return."""
    if isinstance(returned, str):
        return [{"role": "user" if role is AgentRole.USER else "assistant", "content": returned}]
    several = returned if isinstance(returned, list) else [returned]
    try:
        return [_to_dict(each) for each in several]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(_explain_wrong_return(returned, author)) from error


def to_message(content: object, role: AgentRole) -> Message:
    """Return a script's value as a message of this role; a dict is used unchanged."""
    if isinstance(content, dict):
        return copy_value(cast("Message", content))
    return convert_return_to_messages(content, role, "script")[0]


def explain_call_not_async(author: str) -> str:
    return (
        f"The call method of the {author} agent adapter returned a non-awaitable response, "
        "you probably forgot to add the async keyword to the method definition:\n\n"
        f"    class {author}(scenario.AgentAdapter):\n"
        "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
        "            ...\n"
    )


def _to_dict(message: object) -> Message:
    if isinstance(message, dict):
        if "role" not in message:
            raise ValueError("no role")
        found: dict[str, Any] = message
    elif isinstance(message, BaseModel) and hasattr(message, "role"):
        found = message.model_dump(exclude_unset=True, exclude_none=True, exclude_defaults=True, warnings=False)
        kept = {name: getattr(message, name, None) for name in _KEPT if name not in found}
        found |= {name: value for name, value in kept.items() if value is not None}
    else:
        raise ValueError("neither dict nor message")
    return cast("Message", json.loads(json.dumps(found, default=_encode_value)))


def _encode_value(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _explain_wrong_return(returned: object, author: str) -> str:
    shown = repr(returned)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return (
        f"On the call method of the {author} agent adapter, you returned:\n\n    {shown}\n\n"
        "But the adapter should return either a string, a dict on the OpenAI messages format, or a list of messages in "
        "the OpenAI messages format so the testing agent can understand what happened. For example:\n\n"
        f"    class {author}(scenario.AgentAdapter):\n"
        "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
        "            response = call_my_agent(input.messages)\n"
        '            return response.output_text    # or [{"role": "assistant", "content": response.output_text}]\n'
    )


class UserFarewellMessages(list[Message]):
    """Last messages. The judge is next, and has to decide."""

    def __init__(self, messages: Iterable[Message] = (), *, reached: bool | None = None) -> None:
        """Leave with these messages; `reached`: whether the goal is reached, None if unknown."""
        super().__init__(messages)
        self.reached = reached


EVERY = None  # the step ``[*]``
SHOWN = 300  # characters of an invalid value quoted in an error
TAIL = 2000  # characters quoted from the end of a body, or of stderr
_FORMS = ("text", "message", "messages")
_STEP = re.compile(
    r"\.?(?P<name>[A-Za-z_][\w-]*)|\[(?P<index>-?\d+)\]|\[(?P<every>\*)\]"
    r"""|\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
)
_TITLE = re.compile(r"<title[^>]*>(?P<title>.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedJsonPath:
    text: str
    steps: tuple[str | int | None, ...]
    """Names, indices, and `EVERY`."""


def parse_value_path(text: str, what: str = "reply") -> ParsedJsonPath:
    """Parse a path; `what` names its key. Raises SuiteError with the invalid part."""
    rest = text.strip().removeprefix("$")
    steps: list[str | int | None] = []
    at = 0
    while at < len(rest):
        if (found := _STEP.match(rest, at)) is None:
            raise SuiteError(
                f"{what}: {text!r} is not a path that is understood, from {rest[at : at + 20]!r} on.",
                hint="A path is like $.choices[0].message.content; also [-1], [*] and ['odd name'].",
            )
        at = found.end()
        if found["index"] is not None:
            steps.append(int(found["index"]))
        else:
            steps.append(EVERY if found["every"] else found["name"] or found["quoted"])
    return ParsedJsonPath(text, tuple(steps))


def require_value_at_path(path: ParsedJsonPath, value: Any, where: str = "$") -> Any:
    """Return the value at a path. Raises LookupError with the step that fails, and the existing members."""
    for at, step in enumerate(path.steps):
        if step is EVERY and isinstance(value, list):
            rest = ParsedJsonPath(path.text, path.steps[at + 1 :])
            return [require_value_at_path(rest, each, f"{where}[{n}]") for n, each in enumerate(value)]
        if isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value, where = value[step], f"{where}[{step}]"
        elif isinstance(step, str) and isinstance(value, dict) and step in value:
            value, where = value[step], f"{where}.{step}"
        else:
            wanted = f".{step}" if isinstance(step, str) else "[*]" if step is EVERY else f"[{step}]"
            raise LookupError(f"there is no {where}{wanted}; {where} is {_describe_kind(value)}")
    return value


def _describe_kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(map(str, list(value)[:12])) or 'nothing'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return format_value_as_short_json(value)


def validate_agent_answer(value: Any, who: str) -> Any:
    """Return the answer in a value: a text, message or messages. Raises AgentError, naming `who`: none, or empty."""
    if isinstance(value, dict) and "role" not in value:
        if value.get("error"):
            raise AgentError(f"{who} answered with an error: {format_value_as_short_json(value['error'])}")
        given = [name for name in _FORMS if value.get(name) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "has none of them"
            raise AgentError(
                f"{who} answered {format_value_as_short_json(value)}, which {what}.",
                hint='An answer is {"text": "..."}, {"message": {...}} or {"messages": [...]}.',
            )
        value = value[given[0]]
    if isinstance(value, list):
        if not value:
            raise AgentError(f"{who} gave an empty list of messages.")
        return [_check_message(each, who) for each in value]
    if not isinstance(value, str):
        return _check_message(value, who)
    if not value.strip():
        raise AgentError(f"{who} gave an empty answer.")
    return value


def _check_message(value: Any, who: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise AgentError(
            f"{who} answered {format_value_as_short_json(value)}, which is neither a text nor a message.",
            hint='A message is {"role": "assistant", "content": "..."}.',
        )
    if value["role"] == "assistant" and not value.get("content") and not value.get("tool_calls"):
        raise AgentError(f"{who} answered with an empty message: {format_value_as_short_json(value)}")
    return value


def convert_json_value_to_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def join_user_texts(messages: Iterable[dict[str, Any]]) -> str | None:
    """Return the users' new texts, separated by an empty line; None if there are none."""
    texts = [get_message_text(each) for each in messages if each.get("role") == "user"]
    return "\n\n".join(texts) if texts else None


def format_value_as_short_json(value: object) -> str:
    """Return a value as JSON on one printable line, shortened."""
    return clip_json(value, SHOWN)


def keep_text_end(text: str, limit: int = TAIL) -> str:
    """Return the end of a text, without terminal escapes."""
    end = "\n".join(printable(line) for line in text.strip()[-limit:].splitlines())
    return end if len(text.strip()) <= limit else f"… {end}"


def extract_html_title(body: str) -> str | None:
    """Return the title of a web page (empty if it has none), or None if this is no web page."""
    if not body.lstrip()[:200].lower().startswith(("<!doctype html", "<html", "<head", "<body", "<?xml", "<!--")):
        return None
    found = _TITLE.search(body)
    return printable(" ".join(found["title"].split()))[:SHOWN] if found else ""
