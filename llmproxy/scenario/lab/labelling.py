"""Conversations of a JSON report, for people who label them: what `llmproxy label` shows and writes.

    report.json -> Labelling(id, description, messages, criteria) for each run -> a line of labels as `judge calibrate` reads it

What the judge found is not shown: who has read a verdict agrees with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.files import read_text
from llmproxy.report.json_report import read_entries
from llmproxy.scenario.types import Message

KEYS: Mapping[str, str | None] = {"p": "passed", "f": "failed", "i": "inconclusive", "s": None}
"""What is typed, and the label that it means; None: nobody can say."""


@dataclass(frozen=True, slots=True)
class Labelling:
    id: str
    description: str
    messages: list[Message]
    criteria: tuple[str, ...]

    def line(self, labels: Iterable[str | None]) -> str:
        """Return the line of a file of labels."""
        criteria = [{"text": text, "label": label} for text, label in zip(self.criteria, labels, strict=True)]
        about = {"id": self.id, "description": self.description, "messages": self.messages, "criteria": criteria}
        return json.dumps(about, ensure_ascii=False)


def runs_of(report: Path, run: str = "", criteria: Iterable[str] = ()) -> list[Labelling]:
    """Return the runs of a JSON report that have a conversation and criteria.

    `run` is a run's id, or its beginning; `criteria` stand for those of the judge.

    Raises:
        SettingsError: the file is no such report, or nothing in it can be labelled.

    """
    try:
        entries = read_entries(report)
        found = [_labelling(*entry, tuple(criteria)) for entry in entries if str(entry[0]["run_id"]).startswith(run)]
    except OSError as error:
        hint = "A run is found by its id in the report of the last `llmproxy test` only."
        raise SettingsError(f"the report {report} cannot be read: {error.strerror or error}.", hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "llmproxy test --report json=FILE writes one, and pytest --scenario-report json=FILE."
        raise SettingsError(f"{report} is no JSON report of tests.", hint=hint) from error
    if run and not found:
        raise SettingsError(f"no run of {report} has an id that begins with {run!r}.", hint=_ids(entries))
    usable = [each for each in found if each.messages and each.criteria]
    if not usable:
        what = "has a conversation" if not any(each.messages for each in found) else "was judged by criteria"
        raise SettingsError(f"no run of {report} {what}.", hint='--criterion "..." names what to label.')
    return usable


def known_ids(path: Path) -> frozenset[str]:
    """Return the ids of a file of labels, so that nothing is labelled twice. Raises SettingsError for another kind of file."""
    if not path.is_file():
        return frozenset()
    try:
        trees = [
            json.loads(line)
            for line in read_text(path).splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]
        return frozenset(str(tree["id"]) for tree in trees)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path} is there, and is no file of labels.", hint="--out names another one.") from error


def put_label(path: Path, report: Path, run: str, criterion: str, label: str) -> None:
    """Write one label of one run of a report into a file of labels, beside those that the run has there.

    Raises:
        SettingsError: there is no such run, criterion or label, or the file is another one.

    """
    if label not in KEYS.values():
        raise SettingsError(f"{label!r} is no label.", hint="passed, failed or inconclusive")
    labelling = next((each for each in runs_of(report, run)), None) if run else None
    if labelling is None or criterion not in labelling.criteria:
        raise SettingsError("this criterion is in no run of the report.")
    known_ids(path)
    lines = read_text(path).splitlines() if path.is_file() else []
    said: dict[str, str | None] = dict.fromkeys(labelling.criteria)
    others = []
    for line in lines:
        tree = json.loads(line) if line.strip() and not line.lstrip().startswith("#") else {}
        if str(tree.get("id")) == labelling.id:
            said |= {str(each["text"]): each.get("label") for each in tree["criteria"] if each.get("text") in said}
        else:
            others.append(line)
    said[criterion] = label
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(f"{line}\n" for line in (*others, labelling.line(said.values()))), "utf-8")
    part.replace(path)


def _labelling(
    started: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    finished: Mapping[str, Any] | None,
    own: tuple[str, ...],
) -> Labelling:
    verdicts = [part["criteria"] for part in parts if part.get("event") == "verdict" and part.get("criteria")]
    judged = (finished or {}).get("criteria") or (verdicts[-1] if verdicts else [])
    texts = own or tuple(dict.fromkeys([*(each["text"] for each in judged), *started.get("criteria", ())]))
    return Labelling(
        id=f"{started['scenario']}~{started.get('sample', 1)} {str(started['run_id'])[-8:]}",
        description=str(started.get("description") or ""),
        messages=[dict(part["message"]) for part in parts if part.get("event") == "message"],
        criteria=texts,
    )


def _ids(entries: Iterable[tuple[Mapping[str, Any], Any, Any]]) -> str:
    names = [str(started["run_id"]) for started, _, _ in entries]
    return f"There are {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}."
