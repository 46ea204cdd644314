"""What `llmproxy test --on ray` sends to nodes, and what it brings home."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli.parts.options import load_settings
from llmproxy.errors import SettingsError
from llmproxy.scenario.cluster.transfer_files import (
    describe_files_sent_to_cluster,
    get_ray_driver_cassette_dir,
    merge_cluster_node_cassettes,
)
from llmproxy.suite.reading.load import load_suites
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.run_on_cluster import SuiteParcel, pack_suites_for_cluster

SUITE = """
name: t
agent: {python: "agent.py:answer"}
scenarios:
  - {id: a, steps: [{chat: "hi ${env:PLACE}"}]}
  - {id: b, steps: [{chat: hi}]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with more in it than should travel."""
    monkeypatch.chdir(tmp_path)
    files = {
        "agent.py": "", "t.suite.yaml": SUITE, "t.suite.snapshots.json": "{}", ".env": "KEY=1", "notes.txt": "", "lib/x.py": "", ".llmproxy/llmproxy.db": "",
        "tests/cassettes/t/a.yaml": "llmproxy-cassette: 1\ncassette: t/a\n", "tests/cassettes/t/b.yaml": "llmproxy-cassette: 1\ncassette: t/b\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def packed(mode: str, files: tuple[str, ...] = (), variables: tuple[str, ...] = (), **env: str) -> SuiteParcel:
    cases = [case for case in load_suites(["."]).scenarios if case.id == "a"]
    world = SuiteRunContext(options=SuiteCommandOptions(mode=mode), proxy=None)
    return pack_suites_for_cluster(
        world, cases, ["."], load_settings({"mode": mode}), [], files=files, variables=variables, env=env
    )


def test_only_what_is_named_travels(project: Path) -> None:
    """The suite, its snapshots, the agent's file, the selected scenario's cassette; of the environment what the suite names, and no key."""
    made = packed("replay", PLACE="Oslo", OPENAI_API_KEY="sk-secret", HOME="/home")
    assert list(made.files) == ["agent.py", "t.suite.snapshots.json", "t.suite.yaml"]
    assert list(made.cassettes) == ["t/a.yaml"]
    assert made.env == {"OPENAI_API_KEY": "none", "PLACE": "Oslo"}
    assert describe_files_sent_to_cluster(made, "ray", "--send FILE").startswith(
        "to ray: agent.py, t.suite.snapshots.json, t.suite.yaml, 1 cassette; variables: OPENAI_API_KEY, PLACE "
    )
    live = packed("record", ("lib/*.py",), ("OPENAI_API_KEY",), OPENAI_API_KEY="sk-1", ANTHROPIC_API_KEY="sk-2")
    assert list(live.files) == ["agent.py", "lib/x.py", "t.suite.snapshots.json", "t.suite.yaml"]
    assert live.env == {"OPENAI_API_KEY": "sk-1"}
    with pytest.raises(SettingsError, match="--send-env NONE: it is not set"):
        packed("replay", variables=("NONE",))


def test_recordings_are_brought_into_the_folder(project: Path) -> None:
    folder = get_ray_driver_cassette_dir(load_settings({}))
    assert merge_cluster_node_cassettes([], folder) == ""
    assert "0 cassette files came home to tests/cassettes" in merge_cluster_node_cassettes(
        [{"t/a.yaml": (project / "tests/cassettes/t/a.yaml").read_bytes()}], folder
    )
