"""Rules that matter are tests: floors, late imports, mirror, docstrings, documented commands, version."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from typer.main import get_command

import llmproxy
from llmproxy.cli import build_app
from tests.docs.test_words import ruled_out

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "llmproxy"
ROOMS = sorted({path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"})
TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "envs" not in path.parts)

NO_MIRROR = {"data": "files that are read, and a script that mitmproxy loads"}
"""Folders without tests of their own, each with its reason."""

HEAVY = ("mitmproxy", "litellm", "openai", "httpx", "vcr", "pydantic", "sqlite_utils", "rich", "ray")


def imported(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after running some code."""
    probe = f"{code}\nimport sys\nprint('MODULES', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_imports_keep_to_the_floors() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:]


def test_help_imports_nothing_heavy() -> None:
    """`llmproxy --help` answers at once."""
    assert not imported("from llmproxy.cli import main\nmain(['--help'])") & set(HEAVY)


UNTIL_IT_SERVES = """
import asyncio, os, signal
from llmproxy.cli import main
from llmproxy.report.proxy_console import ProxyConsole
_ = ProxyConsole.on_start  # said once it serves
ProxyConsole.on_start = lambda *_: asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
main(["start", "--mode", "replay", "--port", "0", "--quiet"])
"""
SHIM = """
import sys
from llmproxy.__main__ import run_llmproxy_cli
sys.argv = ["llmproxy", "mcp", "--mode", "replay", "--", sys.executable, "-c", "import sys; sys.stdin.read()"]
run_llmproxy_cli()
"""
STARTS = {
    "start": (UNTIL_IT_SERVES, {"unittest", "argparse"}),
    "run": ("from llmproxy.cli import main\nmain(['run', '--', 'true'])", {"mitmproxy", "cryptography"}),
    "mcp": (SHIM, {"typer", "mitmproxy", "asyncio", "http", "email", "zipfile", "html"}),
    "plugin": ("import llmproxy.pytest.plugin", {"typer", "mitmproxy", "http", "asyncio", "ssl"}),
}
"""What somebody waits for: how it is done, and what it must not import beside the heavy ones, each some milliseconds."""
MAY = {"start": {"mitmproxy"}}
"""Heavy ones that are needed."""


@pytest.mark.parametrize("name", STARTS)
def test_a_start_imports_nothing_that_it_does_not_need(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hit needs no table of prices, a shim no event loop (docs/speed.md)."""
    monkeypatch.chdir(tmp_path)
    how, more = STARTS[name]
    assert imported(how) & (more | set(HEAVY)) <= MAY.get(name, set())


@pytest.mark.parametrize("module", [
    "engine.engine",
    "providers.routing",
    "store.store",
    "cassettes.folder_sync",
    "cassettes.formats",
    "misses.explain",
])  # fmt: skip
def test_the_core_runs_without_the_extras(module: str) -> None:
    """Whatever runs in the user's own environment must not need mitmproxy or litellm."""
    assert not imported(f"import llmproxy.core.{module}") & {"mitmproxy", "litellm", "openai"}


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_every_room_has_its_tests(room: Path) -> None:
    """What lies in llmproxy/core/keys/ is tested in tests/core/keys/."""
    if room.as_posix() in NO_MIRROR:
        return
    tests = list((ROOT / "tests" / room).glob("test_*.py"))
    assert tests, f"llmproxy/{room} needs tests in tests/{room}, or a reason in NO_MIRROR"


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_every_room_has_a_face(room: Path) -> None:
    """A docstring says what a folder is for, before one opens its files."""
    face = PACKAGE / room / "__init__.py"
    assert room.as_posix() == "data" or ast.get_docstring(ast.parse(face.read_text(encoding="utf-8")))


def test_the_map_names_what_is_there() -> None:
    """Every file and room that docs/architecture.md and CONTRIBUTING.md name exists."""
    for page in ("docs/architecture.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = re.findall(
            r"`((?:cli|client|core|mitm|pytest|report|scenario|suite|trace)/[a-z0-9_/]*(?:\.py)?)`", text
        )
        assert len(named) > 10, page
        assert [name for name in named if not (PACKAGE / name).exists()] == []


OTHERS = ("compare.body_to_bytes", "call.answer.held", "chat.completions", "store.entities")
"""Names in docstrings whose first word is a module of ours by chance."""


def test_docstrings_point_to_what_is_there() -> None:
    """A module or a name in a module, as in `core.engine.fast_path` or `misses.nearest_recording`: it is found under this name."""
    words: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for start in range(len(parts)):
            words.setdefault(".".join(parts[start:]), set()).update(re.findall(r"\w+", path.read_text("utf-8")))

    def find_lost(text: str) -> list[str]:
        return [
            name
            for name in re.findall(r"(?<!`)`([a-z_]+(?:\.[a-z_]+)+)`(?!`)", text)
            if name not in words and name not in OTHERS
            for room, _, last in [name.rpartition(".")]
            if room.rpartition(".")[2] in words and last not in words.get(room, ())
        ]

    lost = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if find_lost(text := path.read_text("utf-8"))  # else parsing it takes longer than all the rest
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for name in find_lost(node.value.value)
    }
    assert lost == set()


def test_exceptions_to_the_mirror_rule_are_still_needed() -> None:
    """A list of exceptions only shrinks if somebody looks."""
    for name in NO_MIRROR:
        assert (PACKAGE / name).is_dir(), name


def test_a_docstring_of_a_test_says_what_its_name_does_not() -> None:
    """A few words that name no value, case or thing only go on where the name ends; then the name has to be better."""
    tests = [
        (node.name, ast.get_docstring(node) or "names nothing, `at all`")
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    assert len(tests) > 4000
    names = re.compile(r"[0-9`'\"(){}%/_<>\[\]*=]|\w: |(?<=\w )[A-Z]|; ")
    assert [name for name, text in tests if len(text.split()) <= 7 and not names.search(text)] == []


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = getattr(get_command(build_app()), "commands")  # noqa: B009 (typer's group has no public type)
    assert [name for name in commands if f"llmproxy {name}" not in readme] == []


def test_there_is_one_version() -> None:
    """Package, project and the top of the changelog agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest
    assert (llmproxy.__version__, newest[1]) == (project, project)


def test_ray_is_imported_in_one_place() -> None:
    """Whoever runs nothing on a cluster never loads it, nor needs it installed."""
    wanted = re.compile(r"^\s*(?:import|from) ray\b|import_module\(.ray", re.MULTILINE)
    found = [path for path in PACKAGE.rglob("*.py") if wanted.search(path.read_text(encoding="utf-8"))]
    assert found == [PACKAGE / "scenario/cluster/remote_runner.py"]


def calls(room: str) -> dict[str, set[str]]:
    """Return what is called in a room, with the files that call it; ``a.b.open()`` is ``b.open``."""
    found: dict[str, set[str]] = {}
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ".".join(ast.unparse(node.func).split(".")[-2:])
                found.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


def test_one_engine_plays_scripts_and_suites() -> None:
    """A run is begun, limited, called for, ended and told in one place each, whatever is played; a second driver would do so again."""
    running = "scenario/running"
    scenario, suite = calls("scenario"), calls("suite")
    every = {name: scenario.get(name, set()) | suite.get(name, set()) for name in (*scenario, *suite)}
    assert every["RunLifecycle"] == {f"{running}/executor.py", "suite/run/case_runner.py"}
    assert every["kind.open"] == {f"{running}/run_lifecycle.py"}
    assert "RunSession.open" not in every
    assert "RejudgingSession.open" not in every
    assert every["name_late_calls"] == every["session.close"] == {f"{running}/run_lifecycle.py"}
    assert every["Finished"] == {f"{running}/run_lifecycle.py"}
    assert every["Started"] == {f"{running}/executor.py", "suite/run/case_runner.py"}  # what is known before
    assert every["AgentCaller"] == {f"{running}/run_lifecycle.py"}
    assert every["AgentInput"] == {
        f"{running}/conversation.py",
        "scenario/agents/http.py",
    }  # the latter asks who is there
    assert every["ConversationRunner"] == {f"{running}/executor.py", "suite/run/step_context.py"}


def test_functions_are_verbs() -> None:
    """`describe_miss`, not `told`: a bare participle can be neither guessed nor searched for. Properties may be one."""
    layout = runpy.run_path(str(ROOT / "scripts/measure-layout"))
    assert layout["participles"]() == ["mitm/addon.py:done"]  # a hook, which mitmproxy names


NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


FIRST_WORDS = r"(Say|Hear|Give|Tell|Know)s?\b|(What|Who|Whom|Which|Where|Whose|How|Why)(ever)?\b"
"""A docstring begins with a verb of the field, or names the thing: no "What is told of a call"."""


def test_names_have_no_word_that_the_glossary_rules_out() -> None:
    """`CONTRIBUTING.md` lists words that are not used in names of files, classes, functions, and docstrings' first words."""
    words = ruled_out()
    assert len(words) > 20
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        named = [node for node in ast.walk(tree) if isinstance(node, NAMED)]
        said = (ast.get_docstring(node) or "" for node in (tree, *named))
        found |= {f"{place}: {each[:60]}" for each in said if re.match(FIRST_WORDS, each)}
        for name in {*(node.name for node in named), path.stem}:
            snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            if any(f"_{word}_" in f"_{snake}_" for word in words):
                found.add(f"{place}:{name}")
    assert found == set()


def test_nothing_imports_in_a_circle() -> None:
    """No file imports another that imports it, at whatever depth: imports for types, and late ones, are no exception."""
    graph = grimp.build_graph("llmproxy", cache_dir=None)
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
