"""Every kind of step is carried out by the table."""

from __future__ import annotations

import time
from pathlib import Path

from tests.suite.run.test_runner import SETUP, run


def test_rows_can_be_set_up_between_steps(tmp_path: Path) -> None:
    steps = (
        "{setup: [{insert: tasks, data: {title: New}, as: $new}]}",
        "{verify: {entity: tasks, id: $new.id, fields: {title: New}, as: $seen}}",
        '{chat: "$seen.title", response: {contains: New}}',
    )
    found = run(tmp_path, *steps, body="return message")
    assert found.statuses == ["passed"], found.why
    assert [step.kind for step in found.told.steps] == ["setup", "verify", "chat"]


def test_it_waits_for_a_time_or_for_a_row(tmp_path: Path) -> None:
    """A row that never comes is a failure that says what was seen last; fast waits look as often as they can."""
    since = time.monotonic()
    assert run(tmp_path, "{wait: {ms: 120}}").statuses == ["passed"]
    assert time.monotonic() - since >= 0.12
    step = "{wait: {entity: tasks, id: $old.id, until: {status: done}, timeout: 100, pollInterval: 60000}}"
    found = run(tmp_path, step, scenario=SETUP, fast_waits=True)
    assert (found.statuses, "last seen" in found.why) == (["failed"], True)


def test_conversations_go_on(tmp_path: Path) -> None:
    """Named ones, and the last one; a new one has no history."""
    steps = (
        '{chat: a, conversation: x, response: {eq: "1"}}',
        '{chat: b, response: {eq: "1"}}',
        '{chat: c, conversation: x, response: {eq: "3"}}',
        '{chat: d, continueConversation: true, response: {eq: "5"}}',
    )
    found = run(tmp_path, *steps, body="return str(len(messages))")
    assert found.statuses == ["passed"], found.why


def test_what_was_there_before_was_not_created(tmp_path: Path) -> None:
    """`created` is relative to the beginning of its step."""
    found = run(tmp_path, "{chat: x, created: [{entity: tasks, fields: {title: Old}}]}", scenario=SETUP)
    assert (found.statuses, "was there before" in found.why) == (["failed"], True)


LOSING = """
from llmproxy.suite.stores import StoreLost
from llmproxy.suite.stores.memory import EntityShape, MemoryStore

class Losing(MemoryStore):
    lost = False
    def list(self, *given, **more):
        if self.lost:
            raise StoreLost("the connection to the store is gone")
        return super().list(*given, **more)
    def delete(self, *given):
        if self.lost:
            raise StoreLost("the connection to the store is gone")
        return super().delete(*given)

made = Losing({"tasks": EntityShape()})

def lose():
    made.lost = True
    return made
"""


def test_a_store_that_goes_away_is_an_error_and_is_told(tmp_path: Path) -> None:
    """In the middle of a run: nothing can be said about the agent, and what could not be cleaned up is said."""
    (tmp_path / "losing_store.py").write_text(LOSING)
    there, gone = (f"{{verify: {{entity: tasks, filters: {{title: Old}}, count: {n}}}}}" for n in (1, 0))
    body = "import sys; [m for n, m in sys.modules.items() if 'losing_store' in n][-1].lose(); return 'x'"
    store = "{python: 'losing_store.py:made'}"
    found = run(tmp_path, there, "{chat: x}", gone, body=body, store=store, scenario=SETUP)
    assert found.statuses == ["environment_error"], found.why
    assert "connection to the store is gone" in found.why
    assert found.tested.exit_code == 3
    assert any("store" in label or "deleted" in label for label in found.told.finished[0].labels)
