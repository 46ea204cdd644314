"""Does a suite use the proxy?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from llmproxy.pytest.plugin import (
    _SUITE_NAMES,
    SUITE_KEYS,
    does_test_file_use_llmproxy,
    has_suite_file_content,
    is_suite_file_name,
    list_files_pytest_imports,
)
from llmproxy.suite.reading.shared_parts import SUITES

FILES, NORECURSE = ("test_*.py", "*_test.py"), (".*", "node_modules")


def mentions_plugin_below(places: Iterable[Path], root: Path) -> bool:
    return any(map(does_test_file_use_llmproxy, list_files_pytest_imports(places, root, FILES, NORECURSE)))


@pytest.mark.parametrize(("text", "uses"), [
    ("def test_a(llmproxy):", True),
    ("def test_a(tmp_path, llmproxy: Walk) -> None:", True),
    ("def test_a(\n    llmproxy,\n):", True),
    ("@pytest.mark.llmproxy(mode='auto')", True),
    ('pytestmark = pytest.mark.usefixtures("llmproxy")', True),
    ("import llmproxy\nfrom llmproxy.core.keys import key", False),
    ("# llmproxy is great", False),
])  # fmt: skip
def test_a_use_is_a_parameter_a_marker_or_a_name(tmp_path: Path, text: str, uses: bool) -> None:
    """To import our package is not to ask for the fixture."""
    (tmp_path / "test_a.py").write_text(text)
    assert mentions_plugin_below([tmp_path], tmp_path) is uses


def test_only_what_pytest_would_import_is_read(tmp_path: Path) -> None:
    """Environments and packages of others can be huge."""
    for name in (
        "a/test_x.py",
        "a/conftest.py",
        "a/other.py",
        "node_modules/test_y.py",
        ".venv/test_z.py",
        "env/test_e.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    found = {
        path.relative_to(tmp_path).as_posix()
        for path in list_files_pytest_imports([tmp_path], tmp_path, FILES, NORECURSE)
    }
    assert found == {"conftest.py", "a/test_x.py", "a/conftest.py"}


def test_a_named_file_brings_the_conftests_above_it(tmp_path: Path) -> None:
    """They may hold the fixture that asks for us."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "conftest.py").write_text("def pytest_thing(): ...\ndef agent(llmproxy): ...")
    (tmp_path / "a" / "b" / "test_x.py").write_text("")
    assert mentions_plugin_below([tmp_path / "a" / "b" / "test_x.py"], tmp_path)
    assert not mentions_plugin_below([tmp_path / "a" / "b" / "test_x.py"], tmp_path / "a")


@pytest.mark.parametrize(("text", "ours"), [
    ("name: t\nscenarios: []\n", True),
    ("id: one\nsteps:\n  - chat: hi\n", True),
    ("name: t\nagnet: x\nscenarios: []\n", True),
    ("name: t\nscenarios:\n\t- broken\n", True),
    ('{"name": "t",\n"scenarios": []}\n', True),
    ("# yaml-language-server: $schema=x/suite.schema.json\na: 1\nb: 2\nscenarios: []\n", True),
    ("config: {target: x}\nscenarios:\n  - flow: []\n", False),
    ("on: push\njobs: {}\n", False),
    ("trigger: x\npool: y\nsteps: []\n", False),
    ("", False),
])  # fmt: skip
def test_a_suite_of_ours_is_told_by_its_keys(tmp_path: Path, text: str, ours: bool) -> None:
    """Also one that is broken: its error must be seen; not one of another tool."""
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    assert has_suite_file_content(path) is ours
    assert has_suite_file_content(tmp_path / "nowhere.yaml") is False


def test_the_keys_of_a_suite_are_those_of_the_format() -> None:
    """The list is written down, for the schema costs an import of pydantic in every pytest run."""
    from llmproxy.suite.schema.suite import Scenario, Suite

    known = {field.alias or name for model in (Suite, Scenario) for name, field in model.model_fields.items()}
    assert known == SUITE_KEYS


def test_suites_are_called_as_the_command_finds_them() -> None:
    assert tuple(_SUITE_NAMES) == tuple(SUITES)
    assert is_suite_file_name("agent.suite.yaml")
    assert not is_suite_file_name("suites.yaml")
