"""What travels to a node, and nothing else: files that are named one by one, never a folder; variables that are named, never the environment.

suites and what they include · the files that their agents name · cassettes of the selected scenarios · what `--send` names
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.cluster.parcel import Parcel

if TYPE_CHECKING:
    from llmproxy.suite.choose.options import Options
    from llmproxy.suite.reading.load import SuiteCase

_VARIABLE = re.compile(rb"\$\{env:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baggage(Parcel):
    """Everything that a run of a suite needs on a node."""

    paths: Sequence[str]
    """Suites to load, relative as well."""
    options: Options
    agent: Mapping[str, Any] | None = None
    store: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_folder: str = "."


def agent_files(cases: Iterable[SuiteCase], more: Iterable[tuple[Mapping[str, Any] | None, Path]] = ()) -> list[Path]:
    """Return the files that descriptions of agents name: ``agent.py`` of a function, words of a command that are files."""
    described = [(getattr(case.suite, "agent", None), case.folder) for case in cases]
    found: dict[Path, None] = {}
    for mapping, folder in (*described, *more):
        for value in (mapping or {}).values():
            words = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
            for word in words:
                if isinstance(word, str) and (path := folder / word.partition(":")[0]).is_file():
                    found[path] = None
    return list(found)


def named_variables(files: Iterable[bytes], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that suites name as ``${env:NAME}``, as far as they are set."""
    names = sorted({name.decode() for data in files for name in _VARIABLE.findall(data)})
    return {name: env[name] for name in names if name in env}
