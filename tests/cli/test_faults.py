"""``llmproxy faults``, and the page that tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import PRESETS, read_faults, read_preset_text, yaml_to_plain_values
from tests.support.doc_tables import kinds_table

ROOT = Path(__file__).resolve().parents[2]


def test_every_kind_and_preset_is_listed_with_an_example_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is a rule of a file."""
    assert main(["faults"]) == 0
    said = capsys.readouterr().out
    examples = [line.partition("example")[2].strip() for line in said.splitlines() if line.startswith("  example")]
    rules = [read_faults(yaml_to_plain_values(text, "x")).rules[0] for text in examples]
    assert [rule.kind.name for rule in rules] == list(KINDS)
    assert all(name in said for name in PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_printed_as_its_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed can be kept and changed."""
    assert main(["faults", name]) == 0
    assert capsys.readouterr().out == read_preset_text(name)


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
