"""Human labels of conversations: one JSON object a line (docs/repeats.md).

    {"id": "refund-1", "description": "User wants a refund", "messages": [{"role": "user", "content": "..."}, ...],
     "criteria": [{"text": "Agent offers a refund", "label": "passed"}, ...]}

`transcript` may replace `messages`: the same list, or lines that begin with ``user:`` or ``assistant:``. `criteria` may
be an object, text -> label. A label of ``null`` is a criterion for the judge without a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.file_io import build_dict_without_duplicates, read_bounded_text, replace_file
from llmproxy.parsers import read_text_file_named_by_user
from llmproxy.report.json_report import read_report_runs
from llmproxy.scenario.lab.judge_finished_conversation import Transcript
from llmproxy.scenario.types import Message

_LABELS: Mapping[str, str] = {
    **{name: name for name in ("passed", "failed", "inconclusive")},
    **dict.fromkeys(("pass", "true", "yes"), "passed"),
    **dict.fromkeys(("fail", "false", "no"), "failed"),
}
_MEMBERS = frozenset({"id", "description", "messages", "transcript", "criteria", "comment"})
_SPEAKER = re.compile(r"(user|assistant|agent|system)\s*:\s?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LabelledTranscript:
    transcript: Transcript
    labels: Mapping[str, str | None]  # by criterion, in the order of the file


def read_human_labels(path: Path) -> list[LabelledTranscript]:
    """Read a file of labels. Raises SettingsError: it is unreadable or empty, or a line is invalid."""
    text = read_text_file_named_by_user(path, f"the labels {path}")
    found: dict[str, LabelledTranscript] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if _is_blank_or_comment(line):
            continue
        try:
            labelled = _parse_line(line, f"line-{number}", found)
        except SettingsError as error:
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


def _parse_line(line: str, default_id: str, taken: Container[str]) -> LabelledTranscript:
    try:
        said = json.loads(line, object_pairs_hook=build_dict_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"this is not JSON ({error})") from error
    if not isinstance(said, dict):
        raise SettingsError("this is no JSON object")
    if unknown := sorted(set(said) - _MEMBERS):
        raise SettingsError(f"unknown member {', '.join(unknown)}; there are {', '.join(sorted(_MEMBERS))}")
    if ("messages" in said) == ("transcript" in said):
        raise SettingsError("it needs 'messages' or 'transcript', one of them")
    given = said.get("messages", said.get("transcript"))
    if not isinstance(given, str) and not (
        isinstance(given, list) and all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in given)
    ):
        raise SettingsError("'messages' takes a list of messages, each with a role")
    transcript = Transcript(
        id=str(said.get("id", default_id)),
        messages=_parse_text_transcript(given) if isinstance(given, str) else given,
        description=str(said.get("description") or ""),
    )
    labels = _read_criterion_labels(said.get("criteria"))
    if transcript.id in taken:
        raise SettingsError(f"the id {transcript.id!r} is taken by an earlier line")
    return LabelledTranscript(transcript, labels)


def _parse_text_transcript(text: str) -> list[Message]:
    """Parse a transcript written as lines; a line without a speaker belongs to the one before."""
    messages: list[Message] = []
    for line in text.strip().split("\n"):
        if speaker := _SPEAKER.match(line):
            role = speaker[1].lower()
            messages.append({"role": "assistant" if role == "agent" else role, "content": line[speaker.end() :]})
        elif messages:
            messages[-1]["content"] += "\n" + line
        else:
            raise SettingsError("a 'transcript' that is a text begins its lines with 'user:' or 'assistant:'")
    return messages


def _read_criterion_labels(given: object) -> dict[str, str | None]:
    pairs: list[tuple[Any, Any]]
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list) and all(isinstance(each, dict) for each in given):
        pairs = [(each.get("text"), each.get("label")) for each in given]
        if unknown := sorted({name for each in given for name in each} - {"text", "label", "comment"}):
            raise SettingsError(f"a criterion has no {', '.join(unknown)}; it has 'text' and 'label'")
    else:
        raise SettingsError('\'criteria\' takes a list of {"text": ..., "label": ...}')
    found: dict[str, str | None] = {}
    for text, label in pairs:
        if not isinstance(text, str) or not text.strip():
            raise SettingsError(f"a criterion takes a text, not {text!r}")
        if text in found:
            raise SettingsError(f"the criterion {text!r} is there twice")
        plain = str(label).strip().lower() if isinstance(label, (str, bool)) else ""
        if label is not None and plain not in _LABELS:
            raise SettingsError(f"{label!r} is no label; there are passed, failed, inconclusive")
        found[text] = None if label is None else _LABELS[plain]
    if not found:
        raise SettingsError("it has no criteria")
    return found


KEYS: Mapping[str, str | None] = {"p": "passed", "f": "failed", "i": "inconclusive", "s": None}


@dataclass(frozen=True, slots=True)
class ConversationToLabel:
    id: str
    description: str
    messages: list[Message]
    criteria: tuple[str, ...]

    def format_jsonl_line(self, labels: Iterable[str | None]) -> str:
        criteria = [{"text": text, "label": label} for text, label in zip(self.criteria, labels, strict=True)]
        about = {"id": self.id, "description": self.description, "messages": self.messages, "criteria": criteria}
        return json.dumps(about, ensure_ascii=False)


def list_labelable_conversations(
    report: Path, run: str = "", criteria: Iterable[str] = ()
) -> list[ConversationToLabel]:
    """Return a report's runs with criteria; `run`: an id's start, `criteria` for the judge's. Raises SettingsError."""
    try:
        entries = read_report_runs(report)
        found = [
            _read_report_run(*entry, tuple(criteria)) for entry in entries if str(entry[0]["run_id"]).startswith(run)
        ]
    except OSError as error:
        hint = "A run is found by its id in the report of the last `llmproxy test` only."
        raise SettingsError(f"the report {report} cannot be read: {error.strerror or error}.", hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "llmproxy test --report json=FILE writes one, and pytest --scenario-report json=FILE."
        raise SettingsError(f"{report} is no JSON report of tests.", hint=hint) from error
    if run and not found:
        names = [str(started["run_id"]) for started, _, _ in entries]
        hint = f"Its runs: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}."
        raise SettingsError(f"no run of {report} has an id that begins with {run!r}.", hint=hint)
    if not (usable := [each for each in found if each.messages and each.criteria]):
        what = "has a conversation" if not any(each.messages for each in found) else "was judged by criteria"
        raise SettingsError(f"no run of {report} {what}.", hint='--criterion "..." names what to label.')
    return usable


def _is_blank_or_comment(line: str) -> bool:
    return line.strip()[:1] in {"", "#"}


def read_labelled_conversation_ids(path: Path) -> frozenset[str]:
    """Return a label file's ids, so that nothing is labelled twice. Raises SettingsError: another kind of file."""
    if not path.is_file():
        return frozenset()
    try:
        lines = (line for line in read_bounded_text(path).splitlines() if not _is_blank_or_comment(line))
        return frozenset(str(json.loads(line)["id"]) for line in lines)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path} is there, and is no file of labels.", hint="--out names another one.") from error


def add_or_replace_label(path: Path, report: Path, run: str, criterion: str, label: str) -> None:
    """Add a label of a report's run to a file of labels. Raises SettingsError: no such run, criterion, label."""
    if label not in KEYS.values():
        raise SettingsError(f"{label!r} is no label.", hint="passed, failed or inconclusive")
    labelling = next((each for each in list_labelable_conversations(report, run)), None) if run else None
    if labelling is None or criterion not in labelling.criteria:
        raise SettingsError("this criterion is in no run of the report.")
    read_labelled_conversation_ids(path)
    said: dict[str, str | None] = dict.fromkeys(labelling.criteria)
    others = []
    for line in read_bounded_text(path).splitlines() if path.is_file() else ():
        tree = json.loads(line) if not _is_blank_or_comment(line) else {}
        if str(tree.get("id")) == labelling.id:
            said |= {str(each["text"]): each.get("label") for each in tree["criteria"] if each.get("text") in said}
        else:
            others.append(line)
    said[criterion] = label
    with replace_file(path) as file:
        file.writelines(f"{line}\n" for line in (*others, labelling.format_jsonl_line(said.values())))


def _read_report_run(
    started: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    finished: Mapping[str, Any] | None,
    own: tuple[str, ...],
) -> ConversationToLabel:
    verdicts = [part["criteria"] for part in parts if part.get("event") == "verdict" and part.get("criteria")]
    judged = (finished or {}).get("criteria") or (verdicts[-1] if verdicts else [])
    return ConversationToLabel(
        id=f"{started['scenario']}~{started.get('sample', 1)} {str(started['run_id'])[-8:]}",
        description=str(started.get("description") or ""),
        messages=[dict(part["message"]) for part in parts if part.get("event") == "message"],
        criteria=own or tuple(dict.fromkeys([*(each["text"] for each in judged), *started.get("criteria", ())])),
    )
