"""What a model says is text, however deeply it is nested; a file that is nested so is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmproxy.core.dialects.answer_writing import parse_tool_args
from llmproxy.errors import SettingsError
from llmproxy.report.run_tree import _format_args as in_a_report
from llmproxy.report.sharding import read_shard_report, read_test_times_from_report
from llmproxy.scenario.models.errors import extract_proxy_error_text
from llmproxy.scenario.scenario_state import _parse_arguments
from llmproxy.scenario.transcripts import _normalize_arguments as in_a_transcript
from llmproxy.scenario.values.data_files import DataFileError, read_data_file_rows
from llmproxy.suite.matchers.compare import parse_actual_value_as_json
from llmproxy.suite.reading.shared_parts import find_files_of_scenarios_entry
from llmproxy.suite.stores.protocol import ColumnType, to_plain
from llmproxy.yaml_reader import Problems

DEEP = "[" * 100_000
READERS: dict[str, Callable[[str], object]] = {
    "import": parse_tool_args,
    "report": in_a_report,
    "transcript": lambda text: in_a_transcript(text, None),
    "calls": _parse_arguments,
}


@pytest.mark.parametrize("reader", READERS)
def test_arguments_nested_too_deeply_are_text(reader: str) -> None:
    """No reader of what a model asks a tool for falls over it."""
    assert READERS[reader](DEEP) == DEEP


def test_an_answer_nested_too_deeply_is_no_json() -> None:
    """An assertion about JSON does not hold of it; a column of a store has it as text; a provider's error stays what it is."""
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_actual_value_as_json(DEEP)
    assert to_plain(DEEP, ColumnType.JSON, parse_json=True) == DEEP
    assert (
        extract_proxy_error_text(ValueError('{"a":' * 100_000 + "llmproxy: no recorded response"))
        == "llmproxy: no recorded response"
    )


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.json"])
def test_a_file_of_cases_nested_too_deeply_is_refused(name: str, tmp_path: Path) -> None:
    """As any other that is no JSON."""
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(DataFileError, match="nested too deeply"):
        read_data_file_rows(tmp_path / name)


@pytest.mark.parametrize("kind", ["json", "jsonl", "html"])
def test_a_part_s_report_nested_too_deeply_is_refused(kind: str, tmp_path: Path) -> None:
    """`merge` says which file, and `--shard-times` likewise."""
    path = tmp_path / "part"
    path.write_text(DEEP)
    with pytest.raises(SettingsError, match="part"):
        read_shard_report(path, kind)
    with pytest.raises(SettingsError, match="part"):
        read_test_times_from_report(path)


def test_a_name_that_is_too_long_is_no_file(tmp_path: Path) -> None:
    """It is a problem in words, with its place."""
    problems = Problems()
    assert find_files_of_scenarios_entry(tmp_path, "9" * 5_000, None, problems) == []
    assert len(problems) == 1
