"""Names of volatile fields say to a person what varies."""

from __future__ import annotations

import pytest

from llmproxy.core.bindings.lessons import name_volatile_field


@pytest.mark.parametrize(("before", "called", "kind", "name"), [
    ("-rw-r--r-- 1 ann ann 9 ", "", "time", "file_time"),
    ("drwxr-xr-x ", "", "integer", "file_links"),
    ("drwxr-xr-x 3 ", "", "name", "file_owner"),
    ("drwxr-xr-x 3 {user} {user} ", "", "count", "file_size"),
    ("-rw-r--r-- 1 {user} {user} 9 {:time} ", "", "uuid", "file_name"),
    ("[main ", "", "hex", "commit"),
    ("[{git_branch} (root-commit) ", "", "hex", "commit"),
    ("[", "", "name", "branch"),
    ("Author: ", "", "name", "author"),
    ("Author: {:name} <", "", "name", "author_email"),
    ("Process Group PGID: ", "", "pid", "group_pgid"),
    ("{tmp}/", "", "name", "tmp_name"),
    ("", "", "uuid", "uuid"),
    ("total 24\nmade ", "", "uuid", "made"),
    ("written: {tmp}/", "", "name", "tmp_name"),
    ("serving on http://127.0.0.1:", "", "port", "port"),
    ("", "id", "integer", "task_id"),
    ("", "taskId", "integer", "taskid"),
    ("key=", "", "hex", "task_key"),
])  # fmt: skip
def test_a_slot_is_called_after_what_stands_before_it(before: str, called: str, kind: str, name: str) -> None:
    """Columns of listings by their meaning, everything else by its words; a bare `id` by its tool."""
    assert name_volatile_field(before, called, kind, "make_task", ()) == name


@pytest.mark.parametrize(("tool", "name"), [
    ("createIssue", "issue_id"), ("mcp__github__create_issue", "issue_id"), ("create", "create_id"),
    ("orders", "orders_id"),
])  # fmt: skip
def test_a_bare_id_is_that_of_the_thing_that_the_tool_makes(tool: str, name: str) -> None:
    """So that it is found again where another tool is given it by that name."""
    assert name_volatile_field("", "id", "integer", tool, ()) == name


def test_two_slots_have_two_names() -> None:
    """Numbered, in the order in which they were learned."""
    assert name_volatile_field("made ", "", "hex", "t", {"made", "made_2"}) == "made_3"
