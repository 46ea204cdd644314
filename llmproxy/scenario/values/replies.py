"""What an agent said, from what it sent: paths into JSON, and the shapes of an answer.

A path is a small part of JSONPath: ``$.answer``, ``$.choices[0].message.content``, ``$.parts[-1]``,
``$.parts[*].text``, ``$['odd name']``. The leading ``$.`` may be left out; ``[*]`` gives a list of what is found in
every item. There are no filters and no search (``..``), so that a path has one meaning that everybody sees.

An answer is a text, or an object with one of ``text``, ``message``, ``messages``, or a message, or a list of messages.
What is none of these is an error that shows what was there; nothing is guessed, and an answer that says nothing is no
answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmproxy.errors import AgentError, SuiteError, printable
from llmproxy.scenario.values.messages import text_of

EVERY = None
"""The step ``[*]``."""
SHOWN = 300
"""Characters of a wrong value that an error quotes."""
TAIL = 2000
"""Characters of the end of a body, or of what a program complained of."""
_FORMS = ("text", "message", "messages")
_STEP = re.compile(
    r"\.?(?P<name>[A-Za-z_][\w-]*)|\[(?P<index>-?\d+)\]|\[(?P<every>\*)\]"
    r"""|\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
)
_TITLE = re.compile(r"<title[^>]*>(?P<title>.*?)</title>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Path:
    text: str
    steps: tuple[str | int | None, ...]
    """Names, indices, and `EVERY`."""


def read_path(text: str, what: str = "reply") -> Path:
    """Read a path; `what` names the key it stands under. Raises SuiteError with the place that is not understood."""
    rest = text.strip().removeprefix("$")
    steps: list[str | int | None] = []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            raise SuiteError(
                f"{what}: {text!r} is not a path that is understood, from {rest[at : at + 20]!r} on.",
                hint="A path is like $.choices[0].message.content; also [-1], [*] and ['odd name'].",
            )
        at = found.end()
        if found["name"] is not None:
            steps.append(found["name"])
        elif found["index"] is not None:
            steps.append(int(found["index"]))
        elif found["every"]:
            steps.append(EVERY)
        else:
            steps.append(found["quoted"])
    return Path(text, tuple(steps))


def pick(path: Path, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return what stands at a path. Raises LookupError with the step that leads nowhere, and what there is instead."""
    return _pick(path.steps, value, "$")


def _pick(steps: Sequence[str | int | None], value: Any, where: str) -> Any:  # noqa: ANN401 - JSON
    for at, step in enumerate(steps):
        if step is EVERY and isinstance(value, list):
            return [_pick(steps[at + 1 :], each, f"{where}[{n}]") for n, each in enumerate(value)]
        if isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value, where = value[step], f"{where}[{step}]"
        elif isinstance(step, str) and isinstance(value, dict) and step in value:
            value, where = value[step], f"{where}.{step}"
        else:
            wanted = f".{step}" if isinstance(step, str) else "[*]" if step is EVERY else f"[{step}]"
            raise LookupError(f"there is no {where}{wanted}; {where} is {_kind(value)}")
    return value


def _kind(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        names = ", ".join(map(str, list(value)[:12])) or "nothing"
        return f"an object with {names}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return format_value(value)


# -- answers -----------------------------------------------------------------------------------------------------------


def answer(value: Any, who: str) -> Any:  # noqa: ANN401 - JSON, and a text, a message or a list of messages
    """Return the answer in a value: a text, message or messages. Raises AgentError, naming `who`: none, or empty."""
    if isinstance(value, dict) and "role" not in value:
        if value.get("error"):
            raise AgentError(f"{who} answered with an error: {format_value(value['error'])}")
        given = [name for name in _FORMS if value.get(name) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "has none of them"
            raise AgentError(
                f"{who} answered {format_value(value)}, which {what}.",
                hint='An answer is {"text": "..."}, {"message": {...}} or {"messages": [...]}.',
            )
        value = value[given[0]]
    if isinstance(value, list):
        return [_message(each, who) for each in _require_messages(value, who)]
    return value if isinstance(value, str) and _has_text(value, who) else _message(value, who)


def _has_text(text: str, who: str) -> bool:
    if not text.strip():
        raise AgentError(f"{who} gave an empty answer.")
    return True


def _require_messages(messages: list[Any], who: str) -> list[Any]:
    if not messages:
        raise AgentError(f"{who} gave an empty list of messages.")
    return messages


def _message(value: Any, who: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a message that says or asks something."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise AgentError(
            f"{who} answered {format_value(value)}, which is neither a text nor a message.",
            hint='A message is {"role": "assistant", "content": "..."}.',
        )
    if value["role"] == "assistant" and not value.get("content") and not value.get("tool_calls"):
        raise AgentError(f"{who} answered with an empty message: {format_value(value)}")
    return value


def join_user_texts(messages: Iterable[dict[str, Any]]) -> str | None:
    """Return what users newly said, several messages apart by an empty line; None if nobody said anything."""
    texts = [text_of(each) for each in messages if each.get("role") == "user"]
    return "\n\n".join(texts) if texts else None


# -- showing -----------------------------------------------------------------------------------------------------------


def format_value(value: object, limit: int = SHOWN) -> str:
    """Return a value as JSON on one printable line, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tail(text: str, limit: int = TAIL) -> str:
    """Return the end of a text, without what a terminal would obey."""
    end = "\n".join(printable(line) for line in text.strip()[-limit:].splitlines())
    return end if len(text.strip()) <= limit else f"… {end}"


def html_title(body: str) -> str | None:
    """Return the title of a web page (an empty text if it has none), or None if this is no web page."""
    start = body.lstrip()[:200].lower()
    if not start.startswith(("<!doctype html", "<html", "<head", "<body", "<?xml", "<!--")):
        return None
    found = _TITLE.search(body)
    return printable(" ".join(found["title"].split()))[:SHOWN] if found else ""
