"""The example files of docs/scenario-examples.md run as they stand: recorded once, replayed with the provider gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider, Step, step
from tests.scenario.parties import finish
from tests.support.process import ROOT
from tests.support.pytest_run import run, write

PAGE = ROOT / "docs" / "scenario-examples.md"
FILES = dict(re.findall(r"^```python example (\w+)\.py\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def steps() -> list[Step]:
    """Return what models say: judges that are content, tools called once, a user of few words."""
    met = '["it greets", "it offers help"]'
    return [
        finish("passed", "passed", contains='"c2"', times=None),
        finish("passed", contains="finish_test", times=None),
        step(say=met, contains="Which are met?", times=None),
        step(say="It was sent yesterday.", tool_result='{"status": "sent"}', times=None),
        step(say="Please ask later.", tool_result="error: no answer", times=None),
        step(call=[{"name": "find_order", "arguments": {"number": "A-1"}}], contains="order A-1", times=None),
        step(call=[{"name": "find_order", "arguments": {"number": "A-2"}}], contains="order A-2", times=None),
        step(model="gpt-4o-mini", say="Fry the rice. Along the river, then left.", times=None),
        step(model="gpt-4.1-mini", say="and then?", times=None),
    ]


def test_every_file_runs_and_replays(tmp_path: Path) -> None:
    """With nothing but pytest and an SDK."""
    assert set(FILES) == {"test_recipe", "test_orders", "test_own_judge", "test_at_once"}
    write(tmp_path, **FILES)
    with Provider(steps(), ordered=False) as provider:
        env: dict[str, Any] = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "sk-mine"}
        recorded = run(tmp_path, "--llmproxy-mode", "record", **env)
        recorded.assert_outcomes(passed=5)
        assert provider.requests
    replayed = run(tmp_path, "--llmproxy-mode", "replay")
    replayed.assert_outcomes(passed=5)
    replayed.stdout.fnmatch_lines(["5 tests: * hits, 0 misses, 0 recorded*"])


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_only_the_import_tells_them_from_the_originals(text: str) -> None:
    """One line names us."""
    assert [line for line in text.splitlines() if "llmproxy" in line] == ["from llmproxy import scenario"]
