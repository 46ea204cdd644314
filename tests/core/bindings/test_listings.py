"""Rows of ``ls -l``: padding, the parent's row and the user's name are no difference; everything else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.bindings import Bindings, Fit, Mismatch, check_run_variable, fit_request, read_volatile_field
from tests.support.narrowing import narrow

RECORDED = """total 20
drwxr-xr-x 3 ann ann 4096 Nov 22 13:52 .
drwxr-xr-x 5 ann ann 4096 Nov 22 13:52 ..
-rw-r--r-- 1 ann ann    9 Nov 22 13:52 notes.txt"""
ELSEWHERE = """total 20
drwxr-xr-x  3 ann  ann  4096 Nov 22 13:52 .
drwxrwxrwt 22 root root  160 Jan  1  2025 ..
-rw-r--r--  1 ann  ann     9 Nov 22 13:52 notes.txt"""


def fit(recorded: str, present: str, *, user: str = "ann", folder: str = "/wk", **slot: str) -> Fit | Mismatch:
    """Hold two results of ``ls -la`` against each other."""
    bindings = Bindings(
        [check_run_variable("cwd", "/tmp/a/project"), check_run_variable("user", "ann")],
        [check_run_variable("cwd", folder), check_run_variable("user", user)],
        [read_volatile_field(slot)] if slot else [],
    )
    return fit_request(bindings, _asked(recorded, "/tmp/a/project"), _asked(present, folder))


def _asked(result: str, cwd: str) -> dict[str, Any]:
    call = {"id": "@1", "function": {"name": "sh", "arguments": json.dumps({"cmd": f"ls -la {cwd}"})}}
    return {
        "messages": [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "@1", "content": result},
        ]
    }


def test_a_parent_elsewhere_moves_all_columns_and_is_no_difference() -> None:
    """`/wk` has the root of the file system as its parent: more links, another owner, and wider columns for all."""
    assert narrow(Fit, fit(RECORDED, ELSEWHERE)).names == ("cwd", "listing")


def test_a_link_is_as_long_as_what_it_leads_to() -> None:
    """Of a link to the folder the size is that of the path; of one that leads elsewhere the target itself differs."""
    row = "lrwxrwxrwx 1 ann ann {} Nov 22 13:52 here -> {}"
    assert isinstance(fit(row.format(14, "/tmp/a/project"), row.format(" 3", "/wk")), Fit)
    assert isinstance(fit(row.format(14, "/tmp/a/project"), row.format(14, "/etc/of-others")), Mismatch)


def test_files_of_the_user_are_of_this_user() -> None:
    """The owner's column names who runs the agent; who owned a file before still does."""
    kims = RECORDED.replace("ann ann", "kimberly kimberly")
    assert "user" in narrow(Fit, fit(RECORDED, kims, user="kimberly")).names
    assert isinstance(fit(RECORDED, kims.replace("kimberly kimberly    9", "lee lee    9"), user="kimberly"), Mismatch)
    assert isinstance(fit(RECORDED, kims), Mismatch), "who was declared to be ann owns nothing of kimberly's"


@pytest.mark.parametrize(("before", "now"), [
    ("   9 Nov", "  10 Nov"),
    ("-rw-r--r--", "-rwxr--r--"),
    ("-rw-r--r--  1", "-rw-r--r--  2"),
    ("notes.txt", "notes.md"),
    ("notes.txt", " notes.txt"),
    ("4096 Nov 22 13:52 .\n", "4096 Nov 22 13:53 .\n"),
    ("total 20", "total 24"),
    ("ann     9", "root    9"),
])  # fmt: skip
def test_what_is_listed_stays_the_question(before: str, now: str) -> None:
    """Sizes, permissions, links, owners, times and names of files are what was asked for."""
    assert before in ELSEWHERE
    narrow(Mismatch, fit(RECORDED, ELSEWHERE.replace(before, now)))


OURS = """
-rw-r--r-- 1 ann ann 114688 Nov 22 13:52 llmproxy.db
-rw-r--r-- 1 ann ann  32768 Nov 22 13:52 llmproxy.db-shm
-rw-r--r-- 1 ann ann  28672 Nov 22 13:52 llmproxy.db.state.db"""


def test_files_of_ours_are_no_difference() -> None:
    """The store may lie in the folder of one run, and grows while it records; another database is another file."""
    assert isinstance(fit(RECORDED.replace("total 20", "total 324") + OURS, ELSEWHERE), Fit)
    assert isinstance(fit(RECORDED, ELSEWHERE + OURS.replace("114688", "200704")), Fit)
    assert isinstance(fit("notes.txt", "llmproxy.db\nnotes.txt\n?? llmproxy.db-wal\n./llmproxy.db"), Fit)
    assert isinstance(fit("notes.txt", "other.db\nnotes.txt"), Mismatch)
    assert isinstance(fit("notes.txt", "rm llmproxy.db\nnotes.txt"), Mismatch)
    assert isinstance(fit(RECORDED, ELSEWHERE.replace("total 20", "total 24")), Mismatch)


def test_the_parents_row_counts_in_the_same_folder() -> None:
    """Nothing moved, so it says what somebody did."""
    assert isinstance(fit(RECORDED, ELSEWHERE, folder="/tmp/a/project"), Mismatch)


def test_a_slot_in_a_row_is_found_however_the_row_is_padded() -> None:
    """It was learned where the columns were narrower."""
    slot = {"name": "when", "kind": "time", "tool": "sh", "before": "-rw-r--r-- 1 ann ann    9 "}
    found = narrow(Fit, fit(RECORDED, ELSEWHERE.replace("9 Nov 22 13:52", "9 Dec 24 18:00"), **slot))
    assert found.names == ("cwd", "listing", "when")
    made = {"name": "made", "kind": "hex", "tool": "sh", "before": "-rw-r--r-- 1 ann ann    9 Nov 22 13:52 "}
    other = fit(RECORDED.replace("notes.txt", "0a1b2c3d"), ELSEWHERE.replace("notes.txt", "ffeeddcc"), **made)
    assert [each.present for each in narrow(Fit, other).identities] == ["ffeeddcc"]


OUR_STATUS = "?? llmproxy.db\n?? llmproxy.db.state.db"


def _status(recorded: str, present: str, declared: tuple[str, str]) -> Fit | Mismatch:
    """Hold two system texts of Claude Code against each other."""
    before, now = ([check_run_variable("git_status", each)] for each in declared)
    mine, theirs = ({"system": f"Status:\n{each}\n\nRecent commits:\n1a2b3c4 Begin"} for each in (recorded, present))
    return fit_request(Bindings(before, now), mine, theirs)


@pytest.mark.parametrize(("recorded", "present", "declared"), [
    ("(clean)", OUR_STATUS, ("(clean)", "(clean)")),
    (OUR_STATUS, "(clean)", ("(clean)", "(clean)")),
    ("?? notes.txt", f"{OUR_STATUS}\n?? notes.txt", ("?? notes.txt", "?? notes.txt")),
    ("(clean)", f"?? a\n{OUR_STATUS}\n?? z", ("(clean)", "?? a\n?? z")),
    (f"M a.py\n{OUR_STATUS}", "(clean)", (f"M a.py\n{OUR_STATUS}", "(clean)")),
    ("?? b", " M llmproxy.db.state.db\n?? b", ("?? b", " M llmproxy.db.state.db\n?? b")),
    ("(clean)", "?? sub/llmproxy.db\n?? sub/llmproxy.db-wal", ("(clean)", "?? sub/llmproxy.db")),
])  # fmt: skip
def test_our_own_database_is_no_difference_in_gits_status(
    recorded: str, present: str, declared: tuple[str, str]
) -> None:
    """It comes into the folder when a run begins, before or after git was asked."""
    assert isinstance(_status(recorded, present, declared), Fit)
    other = _status(recorded, f"{present}\n?? secrets.txt", declared)
    assert isinstance(other, Mismatch), "another file is another question"
