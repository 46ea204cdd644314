"""Whether a tool's result came from the agent's machine."""

from __future__ import annotations

import pytest

from llmproxy.core.bindings import VolatileField
from llmproxy.core.bindings.lessons import Lesson, is_foreign


@pytest.mark.parametrize(("tool", "arguments"), [
    ("web_search", ""),
    ("WebFetch", '{"url":"https://example.org"}'),
    ("mcp__github__list_issues", "{}"),
    ("http_get", ""),
    ("exec_command", '{"cmd":"curl -s https://example.org/x"}'),
    ("Bash", '{"command":"cd {cwd} && git pull --rebase"}'),
    ("Bash", '{"command":"gh pr list"}'),
    ("Bash", '{"command":"ssh box uptime"}'),
    ("Bash", '{"command":"psql -c \\"select 1\\""}'),
    ("Bash", '{"command":"curl localhost:80 && curl example.org"}'),
])  # fmt: skip
def test_what_asks_others_is_foreign(tool: str, arguments: str) -> None:
    """By the tool's name, or by the program that a command runs."""
    assert is_foreign(tool, arguments)


@pytest.mark.parametrize(("tool", "arguments"), [
    ("exec_command", '{"cmd":"git commit -m x && uuidgen"}'),
    ("Bash", '{"command":"curl -s http://localhost:3000/tasks"}'),
    ("Bash", '{"command":"curl -s 127.0.0.1:8080"}'),
    ("create_task", '{"title":"buy milk"}'),
    ("Read", '{"path":"{cwd}/highlights.md"}'),
    ("run", ""),
])  # fmt: skip
def test_what_this_machine_does_is_not(tool: str, arguments: str) -> None:
    """Its own servers among it."""
    assert not is_foreign(tool, arguments)


def test_a_foreign_value_is_accepted_by_name_only() -> None:
    """A uuid is plain where a tool of this machine made it."""
    here, elsewhere = (Lesson(VolatileField("id", "uuid", tool), "a", "b", "$") for tool in ("make_task", "web_search"))
    assert (here.accepted, elsewhere.accepted) == (True, False)
