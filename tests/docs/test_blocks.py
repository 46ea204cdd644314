"""Every block of the documentation is run, or read by whom it is for: nobody copies what does not work.

A block is known by its page and by what stands behind its fence. `RUN` says which test runs it, `READ` what reads it here, and
`NOT_RUN` why neither can be; a block that is in none of them fails.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from llmproxy.core.bindings.volatile_result_fields import parse_volatile_field
from llmproxy.core.faults.parsing import load_faults
from llmproxy.settings import load
from llmproxy.suite.reading.project_settings import read_suite_pyproject_table
from tests.docs.test_commands import PAGES
from tests.suite.fragment import load_fragment
from tests.support.process import ROOT

_FENCE = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [(f"{page.name} {info}", body) for page in PAGES for info, body in _FENCE.findall(page.read_text("utf-8"))]
RUN = {
    r"(agents|cache|judge|repeats|scenario|tools|trace)\.md python": "docs/test_page_programs.py",
    r"judge\.md yaml persona|repeats\.md json labels": "docs/test_page_programs.py",
    r"\w+(-\w+)*\.md \w+ example [\w.]+": "docs/test_example_files.py",
    r"clients\.md (python|js|java|sh|go)": "clients/test_clients.py",
    r"[a-z-]+\.md \w+ (newest|previous|node)": "sdk/test_frameworks.py",
    r"(node|README)\.md js suite [\w.]+": "sdk/test_node_package.py",
    r"agents\.md yaml": "scenario/agents/test_config.py",
    r"(ci|drift)\.md yaml (github|gitlab|compose|pre-commit)": "package/test_files.py",
    r"suites\.md yaml \w+": "suite/test_documentation.py",
}
"""Block -> the test that runs it, or has its reader read it."""
NOT_RUN = {
    "scale.md python ray": "needs a cluster; cluster/test_ray.py has a program of this form",
    "crewai.md python crewai": "150 packages; run by hand with each change of the page, as it says",
}


def fragment(kind: str) -> Callable[[str, Path], object]:
    return lambda text, _folder: load_fragment(kind, text)


def parts_of_a_suite(text: str, folder: Path) -> object:
    """Read what pages show of scenarios without the suite around them."""
    return [load_fragment("scenario", yaml.safe_dump(each)) for each in _read(text)["scenarios"]] and folder


def faults(text: str, folder: Path) -> object:
    """Read rules; scenarios that have some are parts of a suite."""
    if "scenarios" in _read(text):
        return parts_of_a_suite(text, folder)
    (folder / "faults.yaml").write_text(text)
    return load_faults("faults.yaml", folder)


def slots(text: str, _folder: Path) -> object:
    """Read what stands at the head of a cassette's file."""
    return [parse_volatile_field(each) for each in _read(text)["volatile"]]


def options(text: str, folder: Path) -> object:
    (folder / "pyproject.toml").write_text(text)
    return load({}, {}, folder).settings.normalize != load({}, {}, Path(os.devnull).parent).settings.normalize


def suite_options(text: str, folder: Path) -> object:
    (folder / "pyproject.toml").write_text(text)
    return read_suite_pyproject_table(folder)[0] == tomllib.loads(text)["tool"]["llmproxy"]["suite"]


def _read(text: str) -> dict[str, list[dict[str, object]]]:
    read: dict[str, list[dict[str, object]]] = yaml.safe_load(text)
    return read


READ: dict[str, Callable[[str, Path], object]] = {
    "coding-agents.md yaml": slots, "faults.md yaml": faults, "options.md toml": options,
    "scale.md yaml": parts_of_a_suite, "testing.md toml": suite_options, "tools.md yaml step": fragment("step"),
}  # fmt: skip
"""Block -> what reads it here; false for what it does not take."""


@pytest.mark.parametrize(("block", "text"), BLOCKS, ids=[block for block, _ in BLOCKS])
def test_every_block_is_run_or_read(block: str, text: str, tmp_path: Path) -> None:
    """By a test that exists and looks at its page, here, or for a reason not at all."""
    files = [file for pattern, file in RUN.items() if re.fullmatch(pattern, block)]
    assert len(files) + (block in READ) + (block in NOT_RUN) == 1
    if files:
        looks = (ROOT / "tests" / files[0]).read_text("utf-8")
        assert (
            f'"{block.split(maxsplit=1)[0]}"' in looks
            or f'docs/{block.split(maxsplit=1)[0]}"' in looks
            or '"*.md"' in looks
        )
    elif block in READ:
        assert READ[block](text, tmp_path)


def test_no_row_is_left_over() -> None:
    names = {block for block, _ in BLOCKS}
    assert {*READ, *NOT_RUN} <= names
    assert [pattern for pattern in RUN if not any(re.fullmatch(pattern, name) for name in names)] == []
