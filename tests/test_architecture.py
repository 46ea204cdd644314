"""Rules that matter are tests: floors, late imports, mirror, docstrings, documented commands, version."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import llmproxy
from llmproxy.cli import build

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "llmproxy"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "envs" not in path.parts)

NO_MIRROR = {
    "__main__.py": "two lines; every test that starts a process runs them",
    "errors.py": "a table; what raises an error tests it",
    "protocol.py": "a table of names",
    "report/events.py": "values without behaviour",
    "core/interaction.py": "values without behaviour",
    "cli/demo_agent.py": "what tests/cli/test_demo.py runs",
    "core/answers.py": "a part of conversation.py, tested through it over every dialect",
    "core/eventstream.py": "a part of sse.py, tested through it",
    "core/messages.py": "a part of conversation.py, tested through it over every dialect",
    "core/provider_hosts.py": "a part of providers.py, tested through route_host",
    "core/provider_paths.py": "a part of providers.py, tested through route",
    "core/providers_table.py": "a table; tests/core/test_providers.py goes through it row by row",
}
"""Modules without a test file of their own, each with its reason."""

HEAVY = ("mitmproxy", "litellm", "openai", "httpx", "vcr", "pydantic", "sqlite_utils", "rich")


def imported(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after running some code."""
    probe = f"{code}\nimport sys\nprint('MODULES', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_imports_keep_to_the_floors() -> None:
    """The contracts in pyproject.toml hold."""
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:]


def test_help_imports_nothing_heavy() -> None:
    """`llmproxy --help` answers at once."""
    assert not imported("from llmproxy.cli import main\nmain(['--help'])") & set(HEAVY)


@pytest.mark.parametrize("module", ["engine", "providers", "store", "cassette", "explain"])
def test_the_core_runs_without_the_extras(module: str) -> None:
    """Whatever runs in the user's own environment must not need mitmproxy or litellm."""
    if not (PACKAGE / "core" / f"{module}.py").exists():
        pytest.fail(f"llmproxy/core/{module}.py is missing")
    assert not imported(f"import llmproxy.core.{module}") & {"mitmproxy", "litellm", "openai"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_its_test_file(module: Path) -> None:
    """llmproxy/core/key.py is tested by tests/core/test_key.py."""
    if module.as_posix() in NO_MIRROR or module.parts[0] == "data":
        return
    mirror = ROOT / "tests" / module.parent / f"test_{module.name}"
    assert mirror.is_file(), f"llmproxy/{module} needs {mirror.relative_to(ROOT)}, or a reason in NO_MIRROR"


def test_exceptions_to_the_mirror_rule_are_still_needed() -> None:
    """A list of exceptions only shrinks if somebody looks."""
    for name in NO_MIRROR:
        assert (PACKAGE / name).is_file(), name


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_test_states_a_behaviour(path: Path) -> None:
    """A test without a docstring leaves the reader to guess what broke."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    assert [test.name for test in tests if not ast.get_docstring(test)] == []


def test_every_command_is_in_the_readme() -> None:
    """What is not documented does not exist."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = getattr(get_command(build()), "commands")  # noqa: B009 (typer's group has no public type)
    assert [name for name in commands if f"llmproxy {name}" not in readme] == []


def test_there_is_one_version() -> None:
    """Package, project and the top of the changelog agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest
    assert (llmproxy.__version__, newest[1]) == (project, project)
