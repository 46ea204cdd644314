"""Suite settings of a project: defaults in ``pyproject.toml``, test options, files watched by ``--watch`` (polled)."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import LLMProxyError, SettingsError, SuiteError, ensure_program_prefix
from llmproxy.settings import find_pyproject_tables
from llmproxy.yaml_reader import Problems, read_documents

KEYS = ("agent", "store")
TABLE = "[tool.llmproxy.suite]"
_EXAMPLE = f'{TABLE} has the tables agent and store, as in agent = {{command = ["node", "agent.mjs"]}}'
PAUSE = 0.5
_KINDS = frozenset({".yaml", ".yml", ".py", ".mjs", ".js", ".ts", ".json", ".toml", ".md", ".txt"})
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages", "cassettes"})
_MOST = 5000
"""Maximum watched files; a folder with more is no project of tests."""
Seen = dict[Path, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCommandOptions:
    mode: str | None = None
    """Mode of every session; None: the proxy's."""
    runs: int | None = None
    """Executions of each scenario; None: from the scenario."""
    parallel: int = 1
    """Maximum concurrent runs, as far as they do not disturb each other."""
    keep_going: bool = False
    label: str = ""
    fast_waits: bool = False
    """Whether `wait` polls as often as it can."""
    update: bool = False
    live: bool = False
    """Whether models are called in mode replay."""
    max_cost: Decimal | None = None
    """Budget in US dollars."""
    fail_on_carried: bool = False
    """Whether carried answers lead to an exit code of their own."""
    fail_on_stale: bool = False
    """Whether replayed recordings above their max age do."""
    command: str = "llmproxy test"
    """The user's command without options that select scenarios, for messages about reruns."""
    only: str = "--id"
    """Option that selects one scenario; empty if the command already names it."""
    mode_flag: str = "--mode"
    partly: bool = False
    """Whether only some scenarios of the suites are selected."""
    title: str = ""
    """Title of the test; empty: the names of its suites."""
    shard: Mapping[str, Any] | None = None
    """Shard of the test (`report.sharding`); None for a whole one."""

    def build_rerun_command(self, case: str) -> str:
        return f"{self.command} {self.only} {shlex.quote(case)}" if self.only else self.command


def read_suite_pyproject_table(cwd: Path) -> tuple[dict[str, Any], Path]:
    """Return our table of the nearest pyproject.toml, empty if none, and its folder. Raises SuiteError."""
    try:
        for table, folder in find_pyproject_tables(cwd):
            if "suite" in table:
                return _check_toml_table(table["suite"], folder / "pyproject.toml"), folder
    except SettingsError as error:
        raise SuiteError(error.message, hint=error.hint) from error
    return {}, cwd


def _check_toml_table(table: object, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SuiteError(f"{path}: {TABLE} is not a table, but {table!r:.60}", hint=_EXAMPLE)
    for key, value in table.items():
        if key not in KEYS:
            raise SuiteError(f"{path}: {TABLE} has no key {key!r}{did_you_mean(str(key), KEYS)}")
        if not isinstance(value, dict):
            raise SuiteError(f"{path}: {key} of {TABLE} is not a table, but {value!r:.60}", hint=_EXAMPLE)
    return dict(table)


def parse_agent_or_store_flag_value(text: str, flag: str) -> Mapping[str, Any]:
    """Read an agent (address, YAML, ``module:function``, command) or store (address, YAML). Raises SuiteError."""
    if flag == "--agent" and not re.match(r"\s*([{[]|\w+:\s)", text):
        return _agent_flag_to_mapping(text.strip())
    if flag == "--entity-store" and "://" in text and not text.lstrip().startswith("{"):
        return {"http" if text.startswith("http") else "sqlalchemy": text}
    problems = Problems()
    documents = read_documents(text, flag, problems)
    problems.raise_if_any()
    value = documents[0][0] if documents else None
    if not isinstance(value, Mapping):
        such = "{command: [node, agent.mjs]}" if flag == "--agent" else "{sqlalchemy: 'sqlite:///tasks.db'}"
        raise SuiteError(f"{flag} {text!r} is neither an address nor a mapping such as {such}")
    return value


def _agent_flag_to_mapping(text: str) -> Mapping[str, Any]:
    if not text:
        raise SuiteError("an agent is reached somehow: an address, a command, or module:function.")
    if text.startswith(("http://", "https://")):
        return {"http": text}
    module, colon, function = text.rpartition(":")
    if colon and " " not in text and module and function.isidentifier():
        return {"python": text}
    try:
        return {"command": shlex.split(text)}
    except ValueError as error:
        raise SuiteError(f"{text!r} is no command that a shell could read: {error}.") from error


def read_file_modification_times(paths: Sequence[str]) -> Seen:
    found: Seen = {}
    for folder in sorted({Path(path) if Path(path).is_dir() else Path(path).parent for path in paths}):
        for root, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if not name.startswith(".") and name not in _PASSED_OVER)
            for name in sorted(files):
                if len(found) >= _MOST:
                    return found
                if Path(name).suffix in _KINDS and "snapshots" not in name:
                    with suppress(OSError):
                        found[Path(root, name)] = Path(root, name).stat().st_mtime_ns
    return found


def diff_file_snapshots(before: Seen, after: Seen) -> list[Path]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def rerun_on_change(
    run: Callable[[], int],
    paths: Sequence[str],
    say: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run, wait for a change, run again. An error of a suite does not end it; Ctrl-C does (KeyboardInterrupt)."""
    while True:
        before = read_file_modification_times(paths)
        try:
            run()
        except LLMProxyError as error:
            say(ensure_program_prefix(error))
        say(f"llmproxy: watching {len(before)} files; Ctrl-C ends it")
        while not (found := diff_file_snapshots(before, read_file_modification_times(paths))):
            sleep(PAUSE)
        say(f"llmproxy: {found[0]} changed" + (f", and {len(found) - 1} more" if len(found) > 1 else ""))
