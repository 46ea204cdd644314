"""``llmproxy test --on ray``: what is sent to the nodes, and what comes home from them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import llmproxy
from llmproxy.cli.parts.suites import CASSETTES
from llmproxy.store_server import server_of

if TYPE_CHECKING:
    from llmproxy.settings import Loaded
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.world import World


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
    from llmproxy.scenario.cluster.parcel import cassette_files, pack_files, sent_files, variables as named
    from llmproxy.suite.choose.cassettes import cassette_name
    from llmproxy.suite.reading.load import load
    from llmproxy.suite.run.cluster.baggage import Baggage, agent_files, named_variables

    root = Path.cwd()
    suites = load(paths).files
    agents = agent_files(cases, [(world.agent, root), (world.defaults.get("agent"), world.defaults_folder)])
    project = [root / "pyproject.toml"] if (root / "pyproject.toml").is_file() else []
    packed = pack_files([*suites, *agents, *project, *_snapshots(cases), *sent_files(files, root)], root)
    live = settings.settings.mode.policy.reaches_network
    said = named(variables, env, live=live, flag="--send-env")
    server = server_of(settings.settings.store)
    wanted = {cassette_name(case.suite.name, case.id) for case in cases}
    return Baggage(
        batch=uuid.uuid4().hex[:12], version=llmproxy.__version__, files=packed,
        cassettes={} if server else cassette_files(folder_of(settings), wanted), server=server.url if server else "",
        paths=[_relative(path, root) for path in paths], options=replace(world.options, shard=None), proxy=proxy,
        env={**said, **named_variables(packed.values(), env), **{name: env[name] for name in variables}},
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


def folder_of(settings: Loaded) -> Path:
    """Return where the files of cassettes are, and come home to."""
    said = settings.settings.cassette_dir if settings.sources["cassette_dir"] != "default" else None
    return Path.cwd() / CASSETTES if said is None else Path(said)
