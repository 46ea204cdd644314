"""What travels to a node, and nothing else: files that are named one by one, never a folder; variables that are named, never the environment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmproxy.errors import SettingsError, SuiteError
from llmproxy.store_server import without_secrets

_LISTED = 6
_NO_KEY = "none"
"""What stands in a variable for a key in replay, where nobody is asked: SDKs want one to be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What any run on a node needs."""

    batch: str
    """Of this test: a worker unpacks once."""
    version: str
    """Of llmproxy."""
    files: Mapping[str, bytes]
    """By path, relative to the folder in which the test was started."""
    cassettes: Mapping[str, bytes]
    """By name of the file."""
    proxy: Sequence[str]
    """Options of `llmproxy start`, but for where recordings are."""
    server: str = field(default="", repr=False)
    """URL of the team's store, as libpq takes it (may hold a password); empty where each node has a file and cassettes travel."""
    rates: Mapping[str, str] = field(default_factory=dict)
    """Of providers, over the whole cluster; empty in replay, where nobody is asked."""
    env: Mapping[str, str] = field(default_factory=dict)


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


def variables(names: Sequence[str], env: Mapping[str, str], *, live: bool, flag: str) -> dict[str, str]:
    """Return the variables that are named; in replay also those of keys that are set here, with no key in them. Raises SettingsError."""
    from llmproxy.core.providers.table import PROVIDERS

    for name in names:
        if name not in env:
            raise SettingsError(f"{flag} {name}: it is not set.")
    keys = () if live else (key.name for row in PROVIDERS.values() for key in row.keys if key.name in env)
    return dict.fromkeys(keys, _NO_KEY) | {name: env[name] for name in names}


def cassette_files(folder: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return the files of these cassettes, and no other ones."""
    from llmproxy.core.cassettes.folder import CassetteDir

    names = set(wanted)
    files = CassetteDir(folder, now=time.time).files() if folder.is_dir() else {}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for name, path in files.items() if name in names}


def describe_parcel(parcel: Parcel, where: str, how: str) -> str:
    """Say what travels, by name; `how` adds files."""
    names = list(parcel.files)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    said = f"; variables: {', '.join(sorted(parcel.env))}" if parcel.env else "; no variable"
    cassettes = f"{len(parcel.cassettes)} cassette{'' if len(parcel.cassettes) == 1 else 's'}"
    held = f"where the store is ({without_secrets(parcel.server)})" if parcel.server else cassettes
    return f"to {where}: {', '.join(names[:_LISTED]) or 'no file'}{more}, {held}{said}  ({how} adds files)"
