"""Names of servers by their commands."""

from __future__ import annotations

import pytest

from llmproxy.client.tools.naming import server_name

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
    """What only starts it says nothing."""
    assert server_name(command.split(), PLACES).rpartition("-")[0] == name


def test_a_server_has_one_name_in_every_folder() -> None:
    """The run's own folders are no difference, other arguments are."""
    here = server_name(["npx", "files", "/home/kim/a/docs"], PLACES)
    there = server_name(["npx", "files", "/srv/ci/docs"], {"cwd": "/srv/ci", "home": "/root", "tmp": "/tmp"})
    assert here == there
    assert server_name(["npx", "files", "/home/kim/a/other"], PLACES) != here
    assert server_name(["npx", "files", "/home/kim/a/docs"], {"cwd": "/x"}) != here
