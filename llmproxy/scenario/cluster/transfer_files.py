"""Files sent to a node, and results returned from it.

Sent: files that are named one by one, never a folder; variables that are named, never the environment. Returned: the
cassette files that a node's runs changed; and events, with the ids of this machine's recordings. A recording that is
not in the local store has no id: a wrong one would show another recording.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmproxy.amount_formatting import name_some
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.errors import LLMProxyError, SettingsError, SuiteError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, strip_secrets_from_url
from llmproxy.report.events import Event, Started, Step
from llmproxy.scenario.cluster.worker_node import CASSETTES, NodeSetup, write_files
from llmproxy.settings import Loaded
from llmproxy.trace.observing.agent_activity import build_store_independent_id
from llmproxy.trace.observing.tool_calls import InteractionIdsLabel
from llmproxy.trace.reading.recording_spans import read_interactions_as_json

_LISTED = 6
_NO_KEY = "none"
"""Placeholder key in replay, where no provider is called: SDKs require one."""


def read_project_files_for_cluster(paths: Iterable[Path], root: Path) -> dict[str, bytes]:
    """Read files, and the project's own; by path relative to `root`. Raises SuiteError: one is outside, unreadable."""
    found, project = dict[str, bytes](), root / "pyproject.toml"
    for path in (*paths, *([project] if project.is_file() else [])):
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


def glob_files(patterns: Sequence[str], root: Path) -> Iterator[Path]:
    """Yield the files matching patterns. Raises SuiteError for a pattern without files, which would fail late."""
    for pattern in patterns:
        try:
            files = [path for path in root.glob(pattern) if path.is_file()]
        except (ValueError, NotImplementedError):  # an empty or an absolute one
            files = [path for path in (Path(pattern),) if path.is_file()]
        if not files:
            hint = "A folder's files are named as 'lib/**/*.py'." if (root / pattern).is_dir() else ""
            raise SuiteError(f"--send {pattern!r}: there is no such file.", hint=hint)
        yield from sorted(files)


def collect_cluster_env_variables(
    names: Sequence[str], env: Mapping[str, str], *, live: bool, flag: str
) -> dict[str, str]:
    """Return the named variables; in replay also names of set keys, without values. Raises SettingsError."""
    for name in names:
        if name not in env:
            raise SettingsError(f"{flag} {name}: it is not set.")
    keys = () if live else (key.name for row in PROVIDERS.values() for key in row.keys if key.name in env)
    return dict.fromkeys(keys, _NO_KEY) | {name: env[name] for name in names}


def get_ray_driver_cassette_dir(settings: Loaded) -> Path:
    said = settings.settings.cassette_dir if not settings.is_default("cassette_dir") else None
    return Path.cwd() / CASSETTES if said is None else Path(said)


def read_cassette_files_as_bytes(folder: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    from llmproxy.core.cassettes.folder_sync import CassetteDir

    names = set(wanted)
    files = CassetteDir(folder, now=time.time).list_cassette_files() if folder.is_dir() else {}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for name, path in files.items() if name in names}


def describe_files_sent_to_cluster(parcel: NodeSetup, where: str, how: str) -> str:
    said = f"; variables: {', '.join(sorted(parcel.env))}" if parcel.env else "; no variable"
    cassettes = f"{len(parcel.cassettes)} cassette{'' if len(parcel.cassettes) == 1 else 's'}"
    held = f"where the store is ({strip_secrets_from_url(parcel.server)})" if parcel.server else cassettes
    return f"to {where}: {name_some(parcel.files, shown=_LISTED) or 'no file'}, {held}{said}  ({how} adds files)"


def merge_cluster_node_cassettes(recorded: Sequence[Mapping[str, bytes]], target: Path) -> str:
    """Merge files, by name, into a folder; returns a description, empty for nothing. Raises MergeConflict."""
    from llmproxy.core.cassettes.merging import merge_cassette_folders

    if not recorded:
        return ""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmproxy-home-") as folder:
        for number, files in enumerate(recorded):
            write_files(files, Path(folder) / str(number))
        done = merge_cassette_folders(sorted(Path(folder).iterdir()), target, time.time)
    where = target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target
    return f"{len(done.written)} cassette files came home to {where}"


def map_recording_names_to_ids(store: Path, cassette: str, sample: int) -> Mapping[str, int]:
    """Return the names of recordings in every store, with their ids in this one, which may not exist."""
    if find_postgres_of_local_copy(store) is None and not store.is_file():
        return {}
    try:
        found = read_interactions_as_json(store, cassette=cassette, sample=sample)
        return {build_store_independent_id(line): int(line["recorded"]["id"]) for line in found}
    except LLMProxyError:
        return {}


def use_local_store_ids_in_events(
    events: Sequence[Event], known: Callable[[str, int], Mapping[str, int]]
) -> list[Event]:
    """Return the events of one run with the ids of this machine's store; `known`: those of a cassette and sample."""
    begun = next((event for event in events if isinstance(event, Started)), None)
    if begun is None or not any(isinstance(event, Step) and event.interactions for event in events):
        return list(events)
    here = known(begun.cassette, begun.sample)
    return [_renumber_step_interactions(event, here) if isinstance(event, Step) else event for event in events]


def _renumber_step_interactions(step: Step, here: Mapping[str, int]) -> Step:
    named = [name for name in step.recordings if name]
    new = {old: here.get(name) for old, name in zip(step.interactions, named, strict=False)}
    numbers = tuple(found for old in step.interactions if (found := new.get(old)) is not None)

    def renumber(where: str) -> str:
        ids = where.interactions if isinstance(where, InteractionIdsLabel) else ()
        return InteractionIdsLabel(*(None if each is None else new.get(each) for each in ids)) if ids else where

    checked = tuple(replace(each, where=renumber(each.where)) for each in step.assertions)
    return replace(step, interactions=numbers, assertions=checked)
