"""``llmproxy test --on ray``: what is sent to the nodes, and what comes home from them."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import llmproxy
from llmproxy.cli.parts.suites import CASSETTES
from llmproxy.errors import SettingsError
from llmproxy.store_server import server_of, without_secrets

if TYPE_CHECKING:
    from llmproxy.settings import Loaded
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.world import World

__all__ = ["bring_home", "describe_baggage", "pack"]

_LISTED = 6
_NO_KEY = "none"
"""What stands in a variable for a key in replay, where nobody is asked: SDKs want one to be set."""


def pack(
    world: World,
    cases: Sequence[SuiteCase],
    paths: Sequence[str],
    settings: Loaded,
    proxy: Sequence[str],
    *,
    files: Sequence[str],
    variables: Sequence[str],
    env: Mapping[str, str],
) -> Baggage:
    """Gather what the runs of these cases need.

    Raises:
        SuiteError: a file lies outside of this folder, or is not there.
        SettingsError: a variable that was named is not set.

    """
    from llmproxy.suite.reading.load import load
    from llmproxy.suite.run.cluster.baggage import Baggage, agent_files, named_variables, pack_files, sent_files

    root = Path.cwd()
    suites = load(paths).files
    agents = agent_files(cases, [(world.agent, root), (world.defaults.get("agent"), world.defaults_folder)])
    project = [root / "pyproject.toml"] if (root / "pyproject.toml").is_file() else []
    packed = pack_files([*suites, *agents, *project, *_snapshots(cases), *sent_files(files, root)], root)
    for name in variables:
        if name not in env:
            raise SettingsError(f"--send-env {name}: it is not set.")
    live = settings.settings.mode.policy.reaches_network
    sent = {} if live else dict.fromkeys(_key_variables(env), _NO_KEY)
    sent |= named_variables(packed.values(), env) | {name: env[name] for name in variables}
    folder = (
        root / CASSETTES
        if settings.sources["cassette_dir"] == "default"
        else Path(settings.settings.cassette_dir or CASSETTES)
    )
    server = server_of(settings.settings.store)
    return Baggage(
        batch=uuid.uuid4().hex[:12], version=llmproxy.__version__, files=packed,
        cassettes={} if server else _cassettes(folder, cases), server=server.url if server else "",
        paths=[_relative(path, root) for path in paths], options=replace(world.options, shard=None), proxy=proxy, env=sent,
        rates=settings.settings.rate if live else {},
        agent=world.agent, store=world.store, defaults=world.defaults, defaults_folder=_relative(world.defaults_folder, root),
    )  # fmt: skip


def _relative(path: str | Path, root: Path) -> str:
    found = Path(path)
    return found.relative_to(root).as_posix() if found.is_absolute() and found.is_relative_to(root) else str(path)


def _snapshots(cases: Sequence[SuiteCase]) -> Iterator[Path]:
    for path in dict.fromkeys(case.path for case in cases):
        beside = path.with_name(f"{path.name.removesuffix('.yaml').removesuffix('.suite')}.snapshots.json")
        if beside.is_file():
            yield beside


def _key_variables(env: Mapping[str, str]) -> list[str]:
    from llmproxy.core.providers.table import PROVIDERS

    return [key.name for row in PROVIDERS.values() for key in row.keys if key.name in env]


def _cassettes(folder: Path, cases: Sequence[SuiteCase]) -> dict[str, bytes]:
    """Return the cassette files of these cases, and no other ones."""
    from llmproxy.core.cassettes.folder import CassetteDir
    from llmproxy.suite.choose.cassettes import cassette_name

    wanted = {cassette_name(case.suite.name, case.id) for case in cases}
    files = CassetteDir(folder, now=time.time).files() if folder.is_dir() else {}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for name, path in files.items() if name in wanted}


def describe_baggage(baggage: Baggage, where: str) -> str:
    """Say what travels, by name."""
    names = list(baggage.files)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    variables = f"; variables: {', '.join(sorted(baggage.env))}" if baggage.env else "; no variable"
    cassettes = f"{len(baggage.cassettes)} cassette{'' if len(baggage.cassettes) == 1 else 's'}"
    held = f"where the store is ({without_secrets(baggage.server)})" if baggage.server else cassettes
    return f"to {where}: {', '.join(names[:_LISTED])}{more}, {held}{variables}  (--send FILE adds files)"


def bring_home(recorded: Sequence[Mapping[str, bytes]], settings: Loaded) -> str:
    """Merge what was recorded on the nodes into the folder of cassettes; returns what was done, in words. Raises MergeConflict."""
    from llmproxy.core.cassettes.uniting import unite_folders

    if not recorded:
        return ""
    target = (
        Path.cwd() / CASSETTES
        if settings.sources["cassette_dir"] == "default"
        else Path(settings.settings.cassette_dir or CASSETTES)
    )
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmproxy-home-") as folder:
        for number, files in enumerate(recorded):
            for name, data in files.items():
                path = Path(folder) / str(number) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        done = unite_folders(sorted(Path(folder).iterdir()), target, time.time)
    return f"{len(done.written)} cassette files came home to {target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}"
