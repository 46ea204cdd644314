"""What travels to a node, and nothing else: files that are named one by one, never a folder; variables that are named, never the environment.

suites and what they include · the files that their agents name · cassettes of the selected scenarios · what `--send` names
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.errors import SuiteError

if TYPE_CHECKING:
    from llmproxy.suite.choose.options import Options
    from llmproxy.suite.reading.load import SuiteCase

__all__ = ["Baggage", "agent_files", "named_variables", "pack_files", "sent_files"]

_VARIABLE = re.compile(rb"\$\{env:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baggage:
    """Everything that a run on a node needs."""

    batch: str
    """Of this test: a worker unpacks once."""
    version: str
    """Of llmproxy."""
    files: Mapping[str, bytes]
    """By path, relative to the folder in which the test was started."""
    cassettes: Mapping[str, bytes]
    """By name of the file."""
    paths: Sequence[str]
    """Suites to load, relative as well."""
    options: Options
    proxy: Sequence[str]
    """Options of `llmproxy start`, but for where recordings are."""
    server: str = field(default="", repr=False)
    """URL of the team's store, as libpq takes it (may hold a password); empty where each node has a file and cassettes travel."""
    rates: Mapping[str, str] = field(default_factory=dict)
    """Of providers, over the whole cluster; empty in replay, where nobody is asked."""
    env: Mapping[str, str] = field(default_factory=dict)
    agent: Mapping[str, Any] | None = None
    store: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_folder: str = "."


def pack_files(paths: Iterable[Path], root: Path) -> dict[str, bytes]:
    """Read files; by path relative to `root`. Raises SuiteError for one that lies outside, or cannot be read."""
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            name = path.resolve().relative_to(root.resolve()).as_posix()
            found[name] = path.read_bytes()
        except ValueError:
            raise SuiteError(
                f"{path} lies outside of {root}, so a node would not find it.",
                hint="Start the test in a folder above both.",
            ) from None
        except OSError as error:
            raise SuiteError(f"{path} cannot be sent to a node: {error.strerror or error}.") from error
    return dict(sorted(found.items()))


def sent_files(patterns: Sequence[str], root: Path) -> Iterator[Path]:
    """Give the files that patterns name. Raises SuiteError for one that names none: what is missing there would be found out late."""
    for pattern in patterns:
        try:
            files = [path for path in root.glob(pattern) if path.is_file()]
        except (ValueError, NotImplementedError):  # an empty or an absolute one
            files = [path for path in (Path(pattern),) if path.is_file()]
        if not files:
            hint = "A folder's files are named as 'lib/**/*.py'." if (root / pattern).is_dir() else ""
            raise SuiteError(f"--send {pattern!r}: there is no such file.", hint=hint)
        yield from sorted(files)


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
