"""Run variables: values that may differ between two runs and that both declare, each with its kind.

The kind decides where a value may be bound (`value_forms`). A name that only one run declares binds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from llmproxy.core.bindings.text_alignment import drop_llmproxy_git_status_lines
from llmproxy.errors import LLMProxyError
from llmproxy.lazy_regex import late
from llmproxy.protocol import API_KEYS

LONGEST_VALUE = 20_000
"""Maximum characters; git's status of a large tree is longer, and useless in a request to a model."""
_NAME = late(r"[A-Za-z_][\w.\[\]-]{0,99}")
_DATE = late(r"\d{4}-\d{2}-\d{2}")
_WINDOWS = late(r"[A-Za-z]:[\\/].+|\\\\.+", re.DOTALL)
_ROOT = late(r"[/\\][/\\.]*")
UUID = late(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DISTINCT = 8
"""Minimum characters of a value with a digit that counts as an id, found in any text."""

PATHS = frozenset({"cwd", "home", "tmp"})
"""Variables that ``--bind paths`` keeps, and that may change the answer of an exact hit."""
BLOCKS = frozenset({"timezone", "shell", "os_version", "git_branch", "git_status", "git_commits"})
WORDS = frozenset({"user", "host", "git_user"})
"""Variables whose values may occur anywhere (a member ``user`` may be another person): bound only at a given path."""
_WELL_KNOWN = re.compile(
    r"/usr/(?:src/app|local|bin|lib|share)|/var/(?:tmp|lib|log|www|task)|/private/tmp|/opt/app|/github/workspace"
)
"""Folders of machines and images, which a text may name without meaning this run's."""


class BadRunVariable(LLMProxyError):
    code = "llmproxy_run_variable"
    status = 400


class RunVariableKind(StrEnum):
    PATH = "path"
    """Absolute path: in every text, at path borders, in all its forms."""
    IDENTIFIER = "identifier"
    """A uuid or a long id: in every text, without a letter or digit next to it."""
    SHORT = "short"
    """A word or number that may occur anywhere by chance: only at members of tools' JSON that name it."""
    DATE = "date"
    """Only in the agent's own text, and never in an answer."""
    BLOCK = "block"
    """Like a date, and only as a whole: the rest of a line, or whole lines."""


@dataclass(frozen=True, slots=True)
class RunVariable:
    name: str
    value: str
    """Text; a number as it is written in JSON."""
    other: str = ""
    """A second spelling: the resolved path for a path, the UTC day for a date. Empty if there is none."""
    tool: str = ""
    """For a captured value: the tool whose arguments or results contain it; empty for any that its name fits."""
    path: str = ""
    """For a captured value: its path in that JSON, ``$.items[*].id``; empty for the members that its name fits."""

    @property
    def kind(self) -> RunVariableKind:
        if self.name in BLOCKS:
            return RunVariableKind.BLOCK
        if self.name in WORDS:
            return RunVariableKind.SHORT
        if self.value.startswith("/") or _WINDOWS.fullmatch(self.value):
            return RunVariableKind.PATH
        if self.name == "date" and _DATE.fullmatch(self.value):
            return RunVariableKind.DATE
        if UUID.fullmatch(self.value) or (
            len(self.value) >= _DISTINCT
            and any(letter.isdigit() for letter in self.value)
            and any(letter.isalpha() for letter in self.value)
            and not any(letter.isspace() for letter in self.value)
        ):
            return RunVariableKind.IDENTIFIER
        return RunVariableKind.SHORT

    @property
    def is_run_specific(self) -> bool:
        """Whether it is no path, or one of a run only: ``/srv/ci/work``, and neither ``/app`` nor ``/usr/local``."""
        trimmed = self.value.rstrip("/\\")
        parts = [part for part in re.split(r"[/\\]", trimmed) if part]
        return self.kind is not RunVariableKind.PATH or (len(parts) > 1 and not _WELL_KNOWN.fullmatch(trimmed))

    def to_dict(self) -> dict[str, str]:
        return {name: text for name, text in asdict(self).items() if text or name in ("name", "value")}


def build_run_variable(
    name: object, value: object, other: object = "", tool: object = "", path: object = ""
) -> RunVariable:
    """Return a run variable from a client's values. Raises BadRunVariable: a bad name, or neither text nor integer."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"llmproxy: {name!r} cannot be the name of a run variable."
        raise BadRunVariable(msg, hint="Letters, digits, `_ . -`.")
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise BadRunVariable(f"llmproxy: the run variable {name} is {value!r}; it can be a text or a whole number.")
    texts = [value if isinstance(value, str) else str(value), other, tool, path]
    for text in texts:
        if not isinstance(text, str) or len(text) > LONGEST_VALUE or "\0" in text:
            raise BadRunVariable(f"llmproxy: the run variable {name} is no text of at most {LONGEST_VALUE} characters.")
    if _ROOT.fullmatch(str(texts[0])):
        msg = f"llmproxy: the run variable {name} is the root of the file system, which is in every path."
        raise BadRunVariable(msg)
    return RunVariable(name, *map(str, texts))


def dump_run_variables(run_variables: Iterable[RunVariable]) -> str:
    """Return run variables as one text, equal for equal variables; empty for none."""
    written = sorted((each.to_dict() for each in run_variables), key=lambda each: each["name"])
    return json.dumps(written, ensure_ascii=False, separators=(",", ":")) if written else ""


def deserialize_run_variables(text: str) -> tuple[RunVariable, ...]:
    """Return the run variables in a text from :func:`dump_run_variables`. Raises BadRunVariable."""
    try:
        return tuple(build_run_variable(**value) for value in (json.loads(text) if text else []))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRunVariable(f"llmproxy: these are no run variables: {error}") from error


@dataclass(frozen=True, slots=True)
class RunVariablePair:
    recorded: RunVariable
    present: RunVariable

    @property
    def name(self) -> str:
        return self.recorded.name

    @property
    def has_changed(self) -> bool:
        mine, theirs = self.recorded, self.present
        return mine.value != theirs.value or (mine.other or mine.value) != (theirs.other or theirs.value)

    @property
    def is_too_short(self) -> bool:
        """Whether one of the values is too short to be bound in any text."""
        both = {self.recorded.kind, self.present.kind}
        return RunVariableKind.SHORT in both and both <= {RunVariableKind.SHORT, RunVariableKind.IDENTIFIER}


def pair_run_variables(recorded: Iterable[RunVariable], present: Iterable[RunVariable]) -> tuple[RunVariablePair, ...]:
    """Return the pairs of equal name and kind, sorted by name; a variable of one side only binds nothing."""
    now: Mapping[str, RunVariable] = {each.name: _remove_own_git_status(each) for each in present}
    found = [
        RunVariablePair(each, now[each.name])
        for each in map(_remove_own_git_status, sorted(recorded, key=lambda each: each.name))
        if each.name in now and each.name != API_KEYS and _have_same_kind(each, now[each.name])
    ]
    return tuple(found)


def _remove_own_git_status(each: RunVariable) -> RunVariable:
    """Return git's status of a folder without the proxy's own files, which appear when a run begins."""
    return replace(each, value=drop_llmproxy_git_status_lines(each.value)) if each.name == "git_status" else each


def _have_same_kind(recorded: RunVariable, present: RunVariable) -> bool:
    loose = (RunVariableKind.IDENTIFIER, RunVariableKind.SHORT)
    return recorded.kind == present.kind or (recorded.kind in loose and present.kind in loose)
