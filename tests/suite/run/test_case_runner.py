"""One run: from its beginning to its clean-up, whatever happens in between; every kind of step."""

from __future__ import annotations

import time
from pathlib import Path

from llmproxy.report.events import Started, Status
from tests.suite.run.test_runner import SETUP, run


def test_a_run_says_how_to_run_it_again(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", command="llmproxy test a.yaml")
    started = next(each for each in found.told.events if isinstance(each, Started))
    assert (started.rerun, started.cassette, started.suite) == ("llmproxy test a.yaml --id one", "t/one", "t")


def test_it_can_end_at_a_step(tmp_path: Path) -> None:
    """What comes after it is not told at all."""
    found = run(tmp_path, "{chat: x, label: first}", "{chat: y}", label="first")
    assert [step.label for step in found.told.steps] == ["first"]


def test_setup_that_fails_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", scenario=SETUP.replace("title:", "titel:"))
    assert (found.statuses, found.told.said) == (["environment_error"], [])
    assert [step.status for step in found.told.steps] == [Status.SKIPPED]
    assert "titel" in found.told.finished[0].error


def test_usage_of_the_whole_scenario_needs_traffic(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: x}", scenario="    usage: {totalTokens: {lt: 5}}\n")
    assert (found.statuses, found.told.steps[-1].kind) == (["environment_error"], "usage")


def test_reasons_are_told_with_their_step(tmp_path: Path) -> None:
    """A reader of one line knows where to look."""
    found = run(tmp_path, "{chat: x, label: greet, response: {contains: hello}}")
    assert found.told.finished[0].reasoning.startswith("step 1 (greet): response.contains: ")


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


LOSING = """
from llmproxy.suite.stores import StoreLost
from llmproxy.suite.stores.config import MemoryEntityStore
from llmproxy.suite.stores.protocol import DeclaredEntityColumns

class Losing(MemoryEntityStore):
    lost = False
    def list(self, *given, **more):
        if self.lost:
            raise StoreLost("the connection to the store is gone")
        return super().list(*given, **more)
    def delete(self, *given):
        if self.lost:
            raise StoreLost("the connection to the store is gone")
        return super().delete(*given)

made = Losing({"tasks": DeclaredEntityColumns()})

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
