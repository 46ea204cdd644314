"""Human labels of conversations: one JSON object a line.

    {"id": "refund-1", "description": "User wants a refund", "messages": [{"role": "user", "content": "..."}, ...],
     "criteria": [{"text": "Agent offers a refund", "label": "passed"}, ...]}

`transcript` may stand for `messages`: the same list, or a text of lines that begin with ``user:`` or ``assistant:``. `criteria` may be an
object, text -> label. A label is ``passed``, ``failed`` or ``inconclusive`` (``true`` and ``false`` mean the first two); ``null`` is a
criterion that the judge sees and nobody labelled. Lines that are empty or begin with ``#`` are skipped. Whatever is wrong names its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from llmproxy.errors import SettingsError
from llmproxy.files import read_text, unique_members
from llmproxy.scenario.lab.judgements import Transcript
from llmproxy.scenario.types import Message

_LABELS: Mapping[str, str] = {
    **{name: name for name in ("passed", "failed", "inconclusive")},
    **dict.fromkeys(("pass", "true", "yes"), "passed"),
    **dict.fromkeys(("fail", "false", "no"), "failed"),
}
_MEMBERS = frozenset({"id", "description", "messages", "transcript", "criteria", "comment"})
_SPEAKER = re.compile(r"(user|assistant|agent|system)\s*:\s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Labelled:
    transcript: Transcript
    labels: Mapping[str, str | None]
    """By criterion, in the order of the file."""


class _Wrong(ValueError):
    """A line says what cannot be meant."""


def read_labels(path: Path) -> list[Labelled]:
    """Read a file of labels.

    Raises:
        SettingsError: it cannot be read, is empty, or a line of it is wrong.

    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the labels {path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    found: dict[str, Labelled] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            labelled = _parse_line(line, f"line-{number}")
            if labelled.transcript.id in found:
                _wrong(f"the id {labelled.transcript.id!r} is taken by an earlier line")
        except (_Wrong, SettingsError) as error:
            raise SettingsError(
                f"{path}:{number}: {error}.".replace("..", "."),
                hint='A line is {"id": "...", "messages": [...], "criteria": [{"text": "...", "label": "passed"}]}.',
            ) from error
        found[labelled.transcript.id] = labelled
    if not found:
        raise SettingsError(f"the labels {path} are empty: there is nothing to compare a judge with.")
    if not any(label for each in found.values() for label in each.labels.values()):
        raise SettingsError(f"nothing in {path} has a label: there is nothing to compare a judge with.")
    return list(found.values())


def _parse_line(line: str, default_id: str) -> Labelled:
    try:
        said = json.loads(line, object_pairs_hook=unique_members)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"this is not JSON ({error})") from error
    if not isinstance(said, dict):
        _wrong("this is no JSON object")
    if unknown := sorted(set(said) - _MEMBERS):
        _wrong(f"unknown member {', '.join(unknown)}; there are {', '.join(sorted(_MEMBERS))}")
    if ("messages" in said) == ("transcript" in said):
        _wrong("it needs 'messages' or 'transcript', one of them")
    given = said.get("messages", said.get("transcript"))
    transcript = Transcript(
        id=str(said.get("id", default_id)),
        messages=_read_transcript(given) if isinstance(given, str) else _messages(given),
        description=str(said.get("description") or ""),
    )
    return Labelled(transcript, _labels(said.get("criteria")))


def _messages(given: object) -> list[Message]:
    if not isinstance(given, list) or not all(
        isinstance(each, dict) and isinstance(each.get("role"), str) for each in given
    ):
        _wrong("'messages' takes a list of messages, each with a role")
    return given


def _read_transcript(text: str) -> list[Message]:
    """Read a transcript written as lines; a line that names no speaker belongs to the one before."""
    messages: list[Message] = []
    for line in text.strip().split("\n"):
        speaker = _SPEAKER.match(line)
        if speaker:
            role = speaker[1].lower()
            messages.append({"role": "assistant" if role == "agent" else role, "content": line[speaker.end() :]})
        elif messages:
            messages[-1]["content"] += "\n" + line
        else:
            _wrong("a 'transcript' that is a text begins its lines with 'user:' or 'assistant:'")
    return messages


def _labels(given: object) -> dict[str, str | None]:
    pairs: list[tuple[Any, Any]]
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list) and all(isinstance(each, dict) for each in given):
        pairs = [(each.get("text"), each.get("label")) for each in given]
        if unknown := sorted({name for each in given for name in each} - {"text", "label", "comment"}):
            _wrong(f"a criterion has no {', '.join(unknown)}; it has 'text' and 'label'")
    else:
        _wrong('\'criteria\' takes a list of {"text": ..., "label": ...}')
    found: dict[str, str | None] = {}
    for text, label in pairs:
        if not isinstance(text, str) or not text.strip():
            _wrong(f"a criterion takes a text, not {text!r}")
        if text in found:
            _wrong(f"the criterion {text!r} is there twice")
        found[text] = _label(label)
    if not found:
        _wrong("it has no criteria")
    return found


def _label(label: object) -> str | None:
    if label is None:
        return None
    plain = str(label).strip().lower() if isinstance(label, (str, bool)) else ""
    if plain not in _LABELS:
        _wrong(f"{label!r} is no label; there are passed, failed, inconclusive")
    return _LABELS[plain]


def _wrong(what: str) -> NoReturn:
    raise _Wrong(what)
