"""What tools and agents print of this run and vary: listings, lines of git, the volatile fields that ship."""

from __future__ import annotations

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    Mismatch,
    RunVariable,
    build_run_variable,
    match_requests_with_bindings,
    parse_volatile_field,
)
from llmproxy.core.bindings.volatile_result_fields import OUTSIDE, SYSTEM, load_builtin_volatile_fields
from tests.support.messages import used, user
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
        [build_run_variable("cwd", "/tmp/a/project"), build_run_variable("user", "ann")],
        [build_run_variable("cwd", folder), build_run_variable("user", user)],
        [parse_volatile_field(slot)] if slot else [],
    )
    before, now = (
        {"messages": used("sh", {"cmd": f"ls -la {cwd}"}, listed)}
        for listed, cwd in ((recorded, "/tmp/a/project"), (present, folder))
    )
    return match_requests_with_bindings(bindings, before, now)


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
    both = RECORDED.replace("ann ann    9", "ann kimberly    9")
    assert isinstance(fit(both, kims, user="kimberly"), Mismatch), "two users became one"
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
    before, now = ([build_run_variable("git_status", each)] for each in declared)
    mine, theirs = ({"system": f"Status:\n{each}\n\nRecent commits:\n1a2b3c4 Begin"} for each in (recorded, present))
    return match_requests_with_bindings(Bindings(before, now), mine, theirs)


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


ANN, KIM = "Ann Smith <ann@example.com>", "Kim <kim@example.com>"
LOG = "commit 1f3a9c0\nAuthor: {}\n\n    Mine\n\ncommit 0c0ffee\nAuthor: {}\n\n    Theirs"


def fit_git_lines(recorded: str, present: str, *, kept: bool = True) -> Fit | Mismatch:
    """Hold two results against each other; `kept`: it is known who recorded."""
    mine = {"cwd": "/a", "git_branch": "main"} | ({"git_user": ANN} if kept else {})
    now = {"cwd": "/b", "git_branch": "topic/x", "git_user": KIM}
    recorded_by, present_by = ([RunVariable(*each) for each in run.items()] for run in (mine, now))
    asked = user("Who is Ann Smith <ann@example.com> on main?")
    before, after = ({"messages": [asked, *used("sh", {"cmd": "git log"}, log)]} for log in (recorded, present))
    return match_requests_with_bindings(Bindings(recorded_by, present_by), before, after)


@pytest.mark.parametrize(("recorded", "present", "fits"), [
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, "Bob <b@x>"), True),
    (LOG.format(ANN, ANN), LOG.format(KIM, ANN), True),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(ANN, "Bob <b@x>"), True),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, "Eve <e@x>"), False),
    (LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, KIM), False),
    (LOG.format(ANN, KIM), LOG.format(KIM, KIM), False),
    (LOG.format(KIM, "Bob <b@x>"), LOG.format(KIM, "Bob <b@x>"), True),
    ("On branch main\nAlready on 'topic/x'", "On branch topic/x\nAlready on 'topic/x'", False),
    ("On branch main\nAlready on 'main'", "On branch topic/x\nAlready on 'main'", True),
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
    found = fit_git_lines(recorded, present)
    assert isinstance(found, Fit) is fits, found


def test_a_recording_that_names_nobody_fits_whoever_replays() -> None:
    """A file for pull requests has no git_user: any author may be this run's user now, and nobody else."""
    for author, kind in ((KIM, Fit), ("Eve <e@x>", Mismatch)):
        found = fit_git_lines(LOG.format(ANN, "Bob <b@x>"), LOG.format(author, "Bob <b@x>"), kept=False)
        assert isinstance(found, kind), author
    assert isinstance(fit_git_lines(LOG.format(ANN, "Bob <b@x>"), LOG.format(KIM, KIM), kept=False), Mismatch)


NOTICE = """<system-reminder>
<task-notification>
<task-id>{id}</task-id>
<result>{said}</result>
<usage><subagent_tokens>{tokens}</subagent_tokens><tool_uses>{uses}</tool_uses><duration_ms>{ms}</duration_ms></usage>
</task-notification>
</system-reminder>"""
QWEN_NOTICE = """<task-notification>
<result>{said}</result>
<usage>
<total_tokens>30</total_tokens>
<tool_uses>{uses}</tool_uses>
<duration_ms>{ms}</duration_ms>
</usage>
</task-notification>"""
LAUNCHED = """Async agent launched successfully.
agentId: {id} (internal ID - do not mention to user.)
output_file: /tmp/claude-0/-work/{session}/tasks/{id}.output"""
HEARD = (
    "milk\nagentId: {id} (use SendMessage with to: '{id}')\n<usage>subagent_tokens: {tokens}\nduration_ms: {ms}</usage>"
)
THEN = {"id": "afc1dec468ae4304c", "tokens": "30", "uses": "1", "ms": "358", "said": "milk",
        "session": "8da5fde3-07c8-4337-baf3-8237183a13fd"}  # fmt: skip
NOW = {"id": "ae9a6b5372240d050", "tokens": "31", "uses": "1", "ms": "2666", "said": "milk",
       "session": "d619ba93-0f58-4173-bc9b-691bf5b00000"}  # fmt: skip


def ask(result: str, said: str, values: dict[str, str]) -> dict[str, object]:
    """Return a request after a sub-agent was started, and has spoken."""
    call = {"type": "tool_use", "id": "call#1", "name": "Agent", "input": {"prompt": "Look!"}}
    answer = {"type": "tool_result", "tool_use_id": "call#1", "content": result.format(**values)}
    return {"messages": [
        {"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]},
        {"role": "user", "content": said.format(**values)},
    ]}  # fmt: skip


@pytest.mark.parametrize("result", [LAUNCHED, HEARD])
@pytest.mark.parametrize(("said", "changed", "fits"), [
    (NOTICE, {}, True),
    (NOTICE, {"uses": "2"}, False),
    (NOTICE, {"said": "bread"}, False),
    ("It took <duration_ms>{ms}</duration_ms></usage>. Too long?", {}, False),
    (NOTICE.replace("system-reminder", "user-message"), {}, False),
    (QWEN_NOTICE, {}, True),
    (QWEN_NOTICE, {"uses": "2"}, False),
    (QWEN_NOTICE, {"said": "bread"}, False),
    (QWEN_NOTICE.replace("task-notification", "user-message"), {}, False),
])  # fmt: skip
def test_what_claude_code_and_qwen_code_note_of_their_sub_agents_varies(
    result: str, said: str, changed: dict[str, str], *, fits: bool
) -> None:
    """Ids, tokens and milliseconds, where the agent writes them; nothing that an agent or a user said."""
    found = match_requests_with_bindings(
        Bindings((), (), load_builtin_volatile_fields()), ask(result, said, THEN), ask(result, said, NOW | changed)
    )
    assert isinstance(found, Fit) is fits, found


def test_each_shipped_slot_is_anchored_by_words_of_its_agent() -> None:
    """None may vary something of an agent that nobody looked at: each has a text before it, or stands in its own tool's."""
    slots = load_builtin_volatile_fields()
    assert {slot.name for slot in slots} >= {"chunk_id", "git_user"}
    loose = [slot for slot in slots if len(slot.before) < len("Chunk ID") or slot.arguments]
    assert [slot for slot in loose if slot.tool != "multi_agent_v1__spawn_agent" or not slot.at.startswith("$.")] == []


SPAWNED = '{{"agent_id":"{id}","nickname":"{nick}"}}'
TASK = '<task id="{id}" state="completed">\n<task_result>\n{said}\n</task_result>\n</task>'
CARVER = {"id": THEN["session"], "nick": "Carver", "said": "milk"}
HUME = {"id": NOW["session"], "nick": "Hume", "said": "milk"}


@pytest.mark.parametrize(("tool", "result", "changed", "fits"), [
    ("multi_agent_v1__spawn_agent", SPAWNED, {}, True),
    ("multi_agent_v1__spawn_agent", SPAWNED, {"nick": ""}, False),
    ("find_person", SPAWNED, {}, False),
    ("task", TASK, {}, True),
    ("task", TASK, {"said": "bread"}, False),
    ("read", TASK, {}, False),
])  # fmt: skip
def test_what_codex_and_opencode_note_of_their_sub_agents_varies(
    tool: str, result: str, changed: dict[str, str], *, fits: bool
) -> None:
    """Ids and nicknames that the agent itself gives, in the results of its own tool; nothing that a sub-agent said."""

    def said(values: dict[str, str]) -> dict[str, object]:
        return {"messages": used(tool, "{}", result.format(**values))}

    found = match_requests_with_bindings(
        Bindings((), (), load_builtin_volatile_fields()), said(CARVER), said(HUME | changed)
    )
    assert isinstance(found, Fit) is fits, found


SESSION = "Session folder: {home}/.copilot/session-state/"
COPILOT = (SESSION.replace("{home}", "{0}") + "{1}\n\nContents:", "<current_datetime>{2}</current_datetime>\n\n{3}")


@pytest.mark.parametrize(("now", "fits"), [
    (("/srv/kim", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What?"), True),
    (("/srv/kim", "another", "2027-01-03T11:00:01.464+02:00", "What?"), False),
    (("/srv/lee", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What?"), False),
    (("/srv/kim", NOW["session"], "yesterday", "What?"), False),
    (("/srv/kim", NOW["session"], "2027-01-03T11:00:01.464+02:00", "What else?"), False),
])  # fmt: skip
def test_copilot_s_session_and_clock_vary(now: tuple[str, ...], *, fits: bool) -> None:
    """The session's uuid below this run's home, and the time in the agent's own block; never the question."""
    then = ("/home/ann", THEN["session"], "2026-11-28T03:15:59.464+00:00", "What?")

    def said(values: tuple[str, ...]) -> dict[str, object]:
        system, typed = (text.format(*values) for text in COPILOT)
        return {"messages": [{"role": "system", "content": system}, user(typed)]}

    homes = [RunVariable("home", "/home/ann")], [RunVariable("home", "/srv/kim")]
    found = match_requests_with_bindings(Bindings(*homes, load_builtin_volatile_fields()), said(then), said(now))
    assert isinstance(found, Fit) is fits, found


def test_outside_of_results_ours_are_of_system_text() -> None:
    """Claude Code names git's user there, Copilot its session; nothing else that ships stands outside."""
    assert [slot.before for slot in load_builtin_volatile_fields() if slot.tool in (OUTSIDE, SYSTEM)] == [
        "Git user: ",
        SESSION,
    ]
    assert [slot for slot in load_builtin_volatile_fields() if slot.tool == OUTSIDE] == []
