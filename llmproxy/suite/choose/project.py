"""What a project says for all of its suites: the table ``[tool.llmproxy.suite]`` of pyproject.toml, with ``agent`` and ``store``.

    [tool.llmproxy.suite]
    agent = {http = "http://127.0.0.1:8000/v1"}
    store = {sqlalchemy = "sqlite:///tasks.db"}

Suites that say so themselves win; ``--agent`` and ``--entity-store`` win over both. Paths are relative to the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError
from llmproxy.yaml_reader import Problems, read

KEYS = ("agent", "store")
TABLE = "[tool.llmproxy.suite]"


def project(cwd: Path) -> tuple[dict[str, Any], Path]:
    """Return what the nearest pyproject.toml with our table says, and its folder; an empty table where there is none.

    Raises:
        SuiteError: it cannot be read, or says something unknown.

    """
    for folder in (cwd, *cwd.parents):
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            tool = tomllib.loads(path.read_text("utf-8")).get("tool", {})
        except (OSError, ValueError, RecursionError) as error:
            raise SuiteError(f"cannot read {path}: {error}") from error
        ours = tool.get("llmproxy") if isinstance(tool, dict) else None
        if isinstance(ours, dict) and "suite" in ours:
            return _check_table(ours["suite"], path), folder
    return {}, cwd


def _check_table(table: object, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SuiteError(f"{path}: {TABLE} is not a table, but {table!r}")
    for key, value in table.items():
        if key not in KEYS:
            raise SuiteError(f"{path}: {TABLE} has no key {key!r}{did_you_mean(str(key), KEYS)}")
        if not isinstance(value, dict):
            raise SuiteError(f"{path}: {key} of {TABLE} is not a table, but {value!r}")
    return dict(table)


def read_description(text: str, flag: str) -> Mapping[str, Any]:
    """Read an agent or a store from the command line: an address, or YAML as in a suite.

    Raises:
        SuiteError: it is neither.

    """
    if flag == "--agent" and text.startswith(("http://", "https://")):
        return {"http": text}
    if flag == "--entity-store" and "://" in text and not text.lstrip().startswith("{"):
        return {"http" if text.startswith("http") else "sqlalchemy": text}
    problems = Problems()
    documents = read(text, flag, problems)
    problems.stop()
    value = documents[0][0] if documents else None
    if not isinstance(value, Mapping):
        such = "{command: [node, agent.mjs]}" if flag == "--agent" else "{sqlalchemy: 'sqlite:///tasks.db'}"
        raise SuiteError(f"{flag} {text!r} is neither an address nor a mapping such as {such}")
    return value
