"""Every command that the documentation shows is one that llmproxy understands, and every block of code is code."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from llmproxy.cli import build_app
from tests.support.forked import program
from tests.support.process import ROOT
from tests.support.pytest_run import PLUGIN

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"])
_FENCE = re.compile(r"^```([\w-]*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    (?! )([a-zA-Z].*)$", re.MULTILINE)
_INLINE = re.compile(r"`(llmproxy [a-z][^`\n]*)`")
_ELSE = ("|", "&&", ";", ">", "2>", "<", "&", "||")
"""Where a shell's command ends."""


def commands(text: str) -> Iterator[str]:
    """Yield each call of llmproxy in a page: lines of blocks, and what stands between backquotes."""
    fenced = [body for kind, _, body in _FENCE.findall(text) if kind in ("sh", "console", "bash", "")]
    lines = [line.lstrip("$ ") for body in fenced for line in body.splitlines()]
    lines += _INDENTED.findall(_FENCE.sub("", text))
    lines = [each for line in lines for each in re.split(r"\s{2,}(?=llmproxy )", line)]  # several on a line
    for line in lines:
        inner = re.search(r'eval "\$\((llmproxy [^)]*)\)"', line)
        plain = re.sub(r"^(?:[A-Z_]+=\S+ +)*(?:uv run |uvx --from \S+ )?", "", line)
        if inner or plain.startswith("llmproxy "):
            yield inner[1] if inner else plain
    yield from _INLINE.findall(_FENCE.sub("", text))


def words_of(command: str) -> list[str]:
    """Return a command's words up to the shell's next one, without its comment; what cannot be split is no command."""
    command = re.sub(r"\s#(\s.*)?$", "", command).replace("...", "x").replace("$PWD", "x").replace("|", " | ", 1)
    words = shlex.split(command, comments=True)
    cut = next((at for at, word in enumerate(words) if word in _ELSE or word.startswith(("&&", ";"))), len(words))
    return words[1:cut]


def understood(words: list[str]) -> str:
    """Return why llmproxy's parser does not take these words; empty if it does. Nothing is run."""
    group = get_command(build_app())
    context = group.make_context("llmproxy", [], resilient_parsing=True)
    name, *rest = words
    command = group.get_command(context, name)  # type: ignore[attr-defined]
    if command is None:
        return f"no command {name}"
    while rest and hasattr(command, "get_command") and not rest[0].startswith("-"):
        inner = command.get_command(context, rest[0])
        if inner is None:
            return f"no command {name} {rest[0]}"
        command, rest = inner, rest[1:]
    typed = rest[: rest.index("--")] if "--" in rest else rest
    known = {
        option for parameter in command.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)
    }
    used = [word.partition("=")[0] for word in typed if word.startswith("-") and not re.fullmatch(r"-\d*", word)]
    wrong = [word for word in used if word not in known | {"--help", "-h"}]
    return f"{' '.join(words)}: no option {', '.join(wrong)}" if wrong else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_llmproxy_understands_what_the_page_types(page: Path) -> None:
    found = []
    for command in dict.fromkeys(commands(page.read_text("utf-8"))):
        try:
            words = words_of(command)
        except ValueError:  # half a quotation: a line that goes on
            continue
        if words and re.fullmatch(r"[a-z]+", words[0]):
            found.append(understood(words))
    assert [each for each in found if each] == []


def test_what_is_wrong_is_seen() -> None:
    assert (
        understood(["run", "--fail-on-mis", "--", "npm", "test", "--x"])
        == "run --fail-on-mis -- npm test --x: no option --fail-on-mis"
    )
    assert understood(["strat"]) == "no command strat"
    assert understood(["suite", "from-sesion", "x"]) == "no command suite from-sesion"
    text = (
        'x `llmproxy ls`\n\n    llmproxy why  # c\n    eval "$(llmproxy env)"\n\n```sh\n$ A=1 llmproxy ls | cat\n```\n'
    )
    assert list(commands(text)) == ["llmproxy ls | cat", "llmproxy why  # c", "llmproxy env", "llmproxy ls"]
    assert words_of("llmproxy ls --json | jq .") == ["ls", "--json"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_blocks_are_what_they_say(page: Path) -> None:
    """Python compiles and names what llmproxy has; YAML, JSON and TOML can be read; shell has no half quotation."""
    for kind, info, body in _FENCE.findall(page.read_text("utf-8")):
        if kind == "python":
            _check_python(body)
        elif kind == "yaml":
            list(yaml.safe_load_all(body))
        elif kind == "json":
            json.loads(body)
        elif kind == "toml":
            tomllib.loads(body)
        elif kind in ("sh", "bash"):
            assert subprocess.run(["sh", "-n"], input=body, text=True, check=False).returncode == 0, (info, body)


def _check_python(body: str) -> None:
    tree = compile(body, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "llmproxy":
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.slow
def test_what_is_said_of_pytest_s_options_is_true(tmp_path: Path) -> None:
    """Every --llmproxy-*, --scenario-* that a page names is in `pytest --help`."""
    words = [*program("pytest"), "--help", *PLUGIN, "-p", "no:cacheprovider"]
    known = set(
        re.findall(
            r"--(?:llmproxy|scenario)-[a-z-]+",
            subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout,
        )
    )
    used = {name for page in PAGES for name in re.findall(r"--(?:llmproxy|scenario)-[a-z-]+", page.read_text("utf-8"))}
    assert used <= known, used - known
