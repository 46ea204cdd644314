"""What git says of this run's user and branch is this run's; what it says of others is theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.bindings import Bindings, Fit, Mismatch, RunVariable, fit_request

ANN, KIM = "Ann Smith <ann@example.com>", "Kim <kim@example.com>"
LOG = "commit 1f3a9c0\nAuthor: {}\n\n    Mine\n\ncommit 0c0ffee\nAuthor: {}\n\n    Theirs"


def fit(recorded: str, present: str, *, kept: bool = True) -> Fit | Mismatch:
    """Hold two results against each other; `kept`: it is known who recorded."""
    mine = {"cwd": "/a", "git_branch": "main"} | ({"git_user": ANN} if kept else {})
    now = {"cwd": "/b", "git_branch": "topic/x", "git_user": KIM}
    recorded_by, present_by = ([RunVariable(*each) for each in run.items()] for run in (mine, now))
    return fit_request(Bindings(recorded_by, present_by), _asked(recorded), _asked(present))


def _asked(result: str) -> dict[str, Any]:
    call = {"id": "@1", "function": {"name": "sh", "arguments": json.dumps({"cmd": "git log"})}}
    return {
        "messages": [
            {"role": "user", "content": "Who is Ann Smith <ann@example.com> on main?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "@1", "content": result},
        ]
    }


@pytest.mark.parametrize(("recorded", "present", "fits"), [
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, "Bob <b@x>"), True),
    (LOG.format(ANN, ANN), LOG.format(KIM, ANN), True),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(ANN, "Bob <b@x>"), True),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, "Eve <e@x>"), False),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, KIM), False),
    (f"owner: {ANN}", f"owner: {KIM}", False),
    ("[main 1f3a9c0] Add", "[topic/x 1f3a9c0] Add", True),
    ("[main (root-commit) 1f3a9c0] Add", "[topic/x (root-commit) 1f3a9c0] Add", True),
    ("On branch main\nnothing to commit", "On branch topic/x\nnothing to commit", True),
    ("* main\n  other", "* topic/x\n  other", True),
    ("1f3a9c0 (HEAD -> main, origin/x) Add", "1f3a9c0 (HEAD -> topic/x, origin/x) Add", True),
    ("Switched to a new branch 'main'", "Switched to a new branch 'topic/x'", True),
    ("the main thing", "the topic/x thing", False),
    ("[main] x", "[topic/x] x", False),
    ("On branch mainline", "On branch topic/xline", False),
])  # fmt: skip
def test_only_lines_that_git_writes_count(recorded: str, present: str, fits: bool) -> None:
    """A colleague's commit is the colleague's, on whichever branch; other authors, and other lines, are the question."""
    found = fit(recorded, present)
    assert isinstance(found, Fit) is fits, found


def test_a_recording_that_names_nobody_fits_whoever_replays() -> None:
    """A file for pull requests has no git_user: any author may be this run's user now, and nobody else."""
    assert isinstance(fit(LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, "Bob <b@x>"), kept=False), Fit)
    assert isinstance(fit(LOG.format(ANN, "Bob <b@x>"), LOG.format("Eve <e@x>", "Bob <b@x>"), kept=False), Mismatch)
