"""Snapshots of a suite: what an answer was, which tools were called, in a file beside it.

They stand in ``<suite>.snapshots.json``: scenario -> step (its label, else its number) -> what was seen. ``--update`` writes them;
nothing else ever does. What people wrote into a suite by hand is never touched, and in CI nothing is written at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.errors import MachineError, SuiteError
from llmproxy.files import read_text

FORMAT = 1


def in_ci(env: Mapping[str, str]) -> bool:
    return env.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def refuse_in_ci(env: Mapping[str, str]) -> None:
    """Refuse to write snapshots where nobody looks at them. Raises SuiteError."""
    if in_ci(env):
        raise SuiteError(
            "--update is refused in CI (the variable CI is set): a snapshot that nobody looked at proves nothing.",
            hint="Run it on your machine, look at the difference, and commit it.",
        )


@dataclass(slots=True)
class Snapshots:
    """The snapshots of one suite file."""

    path: Path
    update: bool = False
    values: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def beside(cls, suite: Path, *, update: bool = False) -> Snapshots:
        """Read those of a suite file.

        Raises:
            SuiteError: the file is damaged, or of a newer format.

        """
        path = suite.with_name(f"{suite.name.removesuffix('.yaml').removesuffix('.yml')}.snapshots.json")
        try:
            tree = json.loads(read_text(path))
        except FileNotFoundError:
            return cls(path, update)
        except (OSError, ValueError, RecursionError) as error:
            raise SuiteError(f"{path}: the snapshots cannot be read: {error}") from error
        if not isinstance(tree, dict) or tree.get("version") != FORMAT or not isinstance(tree.get("scenarios"), dict):
            raise SuiteError(
                f"{path} holds no snapshots of version {FORMAT}.",
                hint="`--update` writes them anew once it is removed.",
            )
        return cls(path, update, tree["scenarios"])

    def get(self, scenario: str, step: str, what: str) -> object:
        """Return what was stored, None if nothing was."""
        return self.values.get(scenario, {}).get(step, {}).get(what)

    def put(self, scenario: str, step: str, what: str, value: object) -> None:
        """Keep what was seen."""
        of_step = self.values.setdefault(scenario, {}).setdefault(step, {})
        self.changed = self.changed or of_step.get(what) != value
        of_step[what] = value

    def save(self) -> bool:
        """Write what changed; tells whether anything did.

        Raises:
            MachineError: it cannot be written.

        """
        if not (self.update and self.changed):
            return False
        text = json.dumps({"version": FORMAT, "scenarios": self.values}, ensure_ascii=False, indent=2, sort_keys=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            raise MachineError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.changed = False
        return True
