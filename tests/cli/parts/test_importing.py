"""Which file goes into which cassette, and cassettes by name or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli.parts.import_files import (
    RecordingFileToImport,
    group_files_by_cassette,
    load_stored_or_file_cassette,
    read_exchanges_from_import_files,
)
from llmproxy.core.cassettes.formats import get_format
from llmproxy.core.keys.user_rules import Rules
from llmproxy.errors import CassetteNotFound, SettingsError
from tests.support.recordings import filled, interaction, reopened

FORMATS = Path(__file__).resolve().parents[3] / "fixtures/formats"


def test_a_file_of_ours_says_its_name(tmp_path: Path) -> None:
    """The name inside a file for review counts as it is, alone and in a folder; vcrpy's are named like the file."""
    (tmp_path / "a.yaml").write_text("llmproxy-cassette: 1\ncassette: tests/test_a.py::test_b\ninteractions: []\n...\n")
    (tmp_path / "b.yaml").write_text("interactions: []\nversion: 1\n")
    alone, together = group_files_by_cassette([tmp_path / "a.yaml"], None), group_files_by_cassette([tmp_path], None)
    (name,) = alone
    assert name == "tests/test_a.py::test_b"
    assert list(together) == [name, "b"]
    assert list(group_files_by_cassette([tmp_path], "all")) == ["all"]


def test_a_file_for_each_exchange() -> None:
    """Where every exchange has its own file the folder is the cassette, whatever lies below it."""
    work = group_files_by_cassette([FORMATS / "ddapm", FORMATS / "aimock"], None)
    assert {name: len(pieces) for name, pieces in work.items()} == {"ddapm": 6, "aimock": 6}
    assert len(read_exchanges_from_import_files(work["aimock"])) == 12


def test_a_forced_format_is_that_of_every_file(tmp_path: Path) -> None:
    """Nothing is looked at, and nothing passed over, where the format was named."""
    (tmp_path / "x.json").write_text("{}")
    (piece,) = group_files_by_cassette([tmp_path], None, get_format("har"))["x"]
    assert piece == RecordingFileToImport(tmp_path / "x.json", get_format("har"))


def test_one_name_for_two_files(tmp_path: Path) -> None:
    """Two files that would be one cassette are refused."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.yaml").write_text("interactions: []\nversion: 1\n")
    with pytest.raises(SettingsError, match="would both become cassette x") as caught:
        group_files_by_cassette([tmp_path / "a", tmp_path / "b"], None)
    assert caught.value.hint.startswith("Import the folder that holds both")
    for name in ("y", "z"):
        (tmp_path / "a" / f"{name}.yaml").write_text("llmproxy-cassette: 1\ncassette: s\ninteractions: []\n...\n")
    with pytest.raises(SettingsError, match="would both become cassette s") as caught:
        group_files_by_cassette([tmp_path / "a"], None)
    assert caught.value.hint.startswith("Change the line `cassette:` of one")


def test_cassettes_by_name_and_by_file(tmp_path: Path) -> None:
    """`diff` takes a file, a cassette of the store, or one sample of it."""
    filled(tmp_path / "a.db", 2)
    with reopened(tmp_path / "a.db", writable=True) as store:
        store.add_interaction(interaction(9, sample=2), supersede=False)

        def found(what: str) -> int:
            return len(load_stored_or_file_cassette(what, store, Rules(), {}))

        assert (found("default"), found("default~2"), found("default~1")) == (3, 1, 2)
        assert found(str(FORMATS / "mitmproxy.flows")) == 7
        with pytest.raises(CassetteNotFound, match="there is no cassette other"):
            found("other")
