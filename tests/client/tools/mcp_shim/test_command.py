"""The words of `llmproxy mcp`, read without the command line's library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.cli import load_command
from llmproxy.client.tools.mcp_shim.command import ShimOptions, choose_server_name, parse_shim_words
from tests.support.process import clean_env
from tests.test_architecture import HEAVY, imported


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("-- npx -y x", ShimOptions(("npx", "-y", "x"))),
        ("--mode record --store=a.db -- x -- y", ShimOptions(("x", "--", "y"), mode="record", store="a.db")),
        (
            "--proxy http://x:1 --session s --name n --cassette c -- x",
            ShimOptions(("x",), "n", "http://x:1", "s", None, "c"),
        ),
        ("--store=-a -- x", ShimOptions(("x",), store="-a")),
    ],
)
def test_plain_words_are_read(words: str, asked: ShimOptions) -> None:
    """Options with a value, two dashes, the server's command."""
    assert parse_shim_words(words.split()) == asked


@pytest.mark.parametrize(
    "words", ["", "--", "x", "--help", "--moed record -- x", "--mode -- x", "--mode", "serve", "--mode --store -- x"]
)
def test_what_is_not_plain_is_the_command_line_s(words: str) -> None:
    """It has the help, and says what is wrong."""
    assert parse_shim_words(words.split()) is None


def test_both_readers_know_the_same_options() -> None:
    """What the command line offers is read here too."""
    options = {each for one in load_command("mcp").params for each in getattr(one, "opts", ())} - {"--help"}
    assert options == {f"--{name}" for name in ShimOptions._fields[1:]}


def test_nothing_heavy_is_imported_before_a_proxy() -> None:
    """The client waits for the start of each of its servers."""
    code = (
        "import sys; sys.argv = ['llmproxy', 'mcp', '--proxy', 'http://127.0.0.1:9', '--', 'x'];"
        "sys.stdin = open('/dev/null'); from llmproxy.__main__ import run; run()"
    )
    assert not imported(code) & {*HEAVY, "typer", "asyncio", "sqlite3"}


def test_mistakes_are_said_without_a_traceback(tmp_path: Path) -> None:
    """By the short way too: a mode that is none, and options that are the proxy's."""
    for words, said in (
        (["--mode", "recrod", "--", "x"], "recrod"),
        (["--proxy", "http://127.0.0.1:9", "--mode", "record", "--", "x"], "options of its own"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "llmproxy", "mcp", *words], cwd=tmp_path, env=clean_env(), text=True,
            capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


PLACES = {"cwd": "/home/kim/a", "home": "/home/kim", "tmp": "/tmp"}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem .", "server-filesystem"),
        ("npx -y @modelcontextprotocol/server-filesystem@2026.1.1 .", "server-filesystem"),
        ("uvx mcp-server-git --repository .", "mcp-server-git"),
        ("/usr/bin/python3 tools/server.py", "server.py"),
        ("node /opt/x/index.js", "index.js"),
        ("uv run server", "server"),
        ("C:\\x\\server.exe", "server"),
    ],
)
def test_a_server_is_called_after_its_program(command: str, name: str) -> None:
    assert choose_server_name(command.split(), PLACES).rpartition("-")[0] == name


def test_a_server_has_one_name_in_every_folder() -> None:
    """The run's own folders are no difference, other arguments are."""
    here = choose_server_name(["npx", "files", "/home/kim/a/docs"], PLACES)
    assert here == choose_server_name(
        ["npx", "files", "/srv/ci/docs"], {"cwd": "/srv/ci", "home": "/root", "tmp": "/tmp"}
    )
    assert choose_server_name(["npx", "files", "/home/kim/a/other"], PLACES) != here
    assert choose_server_name(["npx", "files", "/home/kim/a/docs"], {"cwd": "/x"}) != here
