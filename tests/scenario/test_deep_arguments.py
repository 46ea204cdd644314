"""What a model says is text, however deeply it is nested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmproxy.core.dialects.speak import _parsed
from llmproxy.report.forms.words import _arguments as in_a_report
from llmproxy.scenario.prompts.transcript import _arguments as in_a_transcript
from llmproxy.scenario.values.calls import _value
from llmproxy.suite.reading.files import found_in
from llmproxy.suite.yaml.places import Problems

DEEP = "[" * 100_000
READERS: dict[str, Callable[[str], object]] = {
    "import": _parsed,
    "report": in_a_report,
    "transcript": lambda text: in_a_transcript(text, None),
    "calls": _value,
}


@pytest.mark.parametrize("reader", READERS)
def test_arguments_nested_too_deeply_are_text(reader: str) -> None:
    """No reader of what a model asks a tool for falls over it."""
    assert READERS[reader](DEEP) == DEEP


def test_a_name_that_is_too_long_is_no_file(tmp_path: Path) -> None:
    """It is a problem in words, with its place."""
    problems = Problems()
    assert found_in(tmp_path, "9" * 5_000, None, problems) == []
    assert len(problems) == 1
