"""Names of recordings and ids: what must be the same tomorrow is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmproxy.scenario.values.naming import batch_run_id, cassette_of, run_id, thread_id


@pytest.mark.parametrize(
    ("name", "set_id", "want"),
    [
        ("refund", None, "refund"),
        ("refund", "default", "refund"),
        ("refund", "shop", "shop--refund"),
        ("Refund a lamp!", None, "refund-a-lamp-f9af2838"),
        ("客户退款", None, "scenario-"),
        ("a" * 300, None, "a" * 80 + "-"),
    ],
)
def test_a_cassette_is_named_after_its_scenario(name: str, set_id: str | None, want: str) -> None:
    """ASCII that a header and a file name take; a digest follows where something was lost."""
    found = cassette_of(name, set_id)
    assert found.startswith(want)
    assert found.isascii()
    assert len(found) < 100


def test_different_names_are_different_cassettes() -> None:
    """Also where their slugs are equal, and where set and name meet elsewhere."""
    pairs = [
        ("a b", None),
        ("a-b", None),
        ("A b", None),
        ("a!b", None),
        ("b", "a "),
        ("b", "a"),
        ("退款", None),
        ("退货", None),
        ("", None),
    ]
    found = {cassette_of(*pair) for pair in pairs}
    assert len(found) == len(pairs)


def test_thread_ids_of_a_recording_are_the_same_tomorrow() -> None:
    """In another process, too; another sample has another one."""
    code = "from llmproxy.scenario.values.naming import thread_id; print(thread_id('c', 1, 'n'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.strip() == thread_id("c", 1, "n")
    assert len({thread_id("c", 1, "n"), thread_id("c", 2, "n"), thread_id("d", 1, "n"), thread_id("c", 1, "m")}) == 4


def test_without_a_recording_ids_are_random() -> None:
    """Never twice the same."""
    assert len({thread_id() for _ in range(100)} | {run_id() for _ in range(100)}) == 200
    assert thread_id().startswith("thread_")


def test_a_batch_is_the_process_and_its_children() -> None:
    """The environment carries it."""
    assert batch_run_id() == batch_run_id() == os.environ["SCENARIO_BATCH_RUN_ID"]
