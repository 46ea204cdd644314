"""Which file goes into which cassette, and cassettes by name or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.cli.parts.import_files import (
    RecordingFileToImport,
    group_files_by_cassette,
    load_stored_or_file_cassette,
)
from llmproxy.core.cassettes.formats import get_format
from llmproxy.core.keys.user_rules import Rules
from llmproxy.errors import CassetteNotFound
from tests.support.recordings import filled, interaction, reopened

FORMATS = Path(__file__).resolve().parents[3] / "fixtures/formats"


def test_a_forced_format_is_that_of_every_file(tmp_path: Path) -> None:
    """Nothing is looked at, and nothing passed over, where the format was named."""
    (tmp_path / "x.json").write_text("{}")
    (piece,) = group_files_by_cassette([tmp_path], None, get_format("har"))["x"]
    assert piece == RecordingFileToImport(tmp_path / "x.json", get_format("har"))


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
