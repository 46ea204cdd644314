"""``llmproxy settings``, ``faults`` and ``addon``, and the page that tells of faults."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import PRESETS, parse_faults_yaml_text_to_tree, read_fault_preset_text, read_faults
from llmproxy.settings import list_options_of_settings
from tests.support.doc_tables import kinds_table
from tests.support.forked import program


def settings(folder: Path, *typed: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*program("llmproxy"), "settings", *typed]
    env = {**os.environ, **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_each_option_is_shown_with_its_source(tmp_path: Path) -> None:
    """Where did this value come from? is answered at once."""
    (tmp_path / "pyproject.toml").write_text("[tool.llmproxy]\nport = 9999\n", encoding="utf-8")
    done = settings(tmp_path, "--json", LLMPROXY_MODE="auto", OPENAI_BASE_URL="https://gateway.example/v1")
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)}
    assert list(facts) == [option.key for option in list_options_of_settings()]
    assert (facts["mode"]["value"], facts["mode"]["source"]) == ("auto", "environment LLMPROXY_MODE")
    assert (facts["port"]["value"], facts["host"]["source"]) == (9999, "default")
    assert facts["upstream"]["value"] == {"openai": "https://gateway.example/v1"}
    assert facts["upstream"]["source"] == "environment OPENAI_BASE_URL"


def test_our_own_address_is_not_taken_for_an_upstream(tmp_path: Path) -> None:
    done = settings(tmp_path, "--json", OPENAI_BASE_URL="http://127.0.0.1:8080/v1")
    assert {fact["name"]: fact for fact in json.loads(done.stdout)}["upstream"]["value"] == {}


ROOT = Path(__file__).resolve().parents[2]


def test_every_kind_and_preset_is_listed_with_an_example_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is a rule of a file."""
    assert main(["faults"]) == 0
    said = capsys.readouterr().out
    examples = [line.partition("example")[2].strip() for line in said.splitlines() if line.startswith("  example")]
    rules = [read_faults(parse_faults_yaml_text_to_tree(text, "x")).rules[0] for text in examples]
    assert [rule.kind.name for rule in rules] == list(KINDS)
    assert all(name in said for name in PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_printed_as_its_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed can be kept and changed."""
    assert main(["faults", name]) == 0
    assert capsys.readouterr().out == read_fault_preset_text(name)


def test_one_kind_is_told_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "stall"]) == 0
    assert "seconds of silence" in capsys.readouterr().out


def test_the_page_has_the_table_of_kinds() -> None:
    """docs/fault-kinds.md says of each kind what the code says, docs/faults.md of each preset."""
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert kinds_table() in (ROOT / "docs" / "fault-kinds.md").read_text(encoding="utf-8")
    assert f"[All {len(KINDS)} kinds" in page
    assert f"{len(KINDS)} kinds and {len(PRESETS)} presets" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in PRESETS if f"| `{name}` | {PRESETS[name]} |" not in page] == []


@pytest.mark.parametrize("name", ["record_replay", "inject_faults"])
def test_the_path_of_the_shipped_script_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be handed to mitmdump as it is, and is the one that lies in addons/."""
    assert main(["addon", name]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes() == (ROOT / "addons" / f"{name}.py").read_bytes()
