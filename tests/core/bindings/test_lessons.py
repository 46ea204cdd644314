"""What two runs teach, and what they never teach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.bindings import (
    SYSTEM,
    Bindings,
    Fit,
    MisfitReason,
    Mismatch,
    RunVariable,
    VolatileField,
    build_run_variable,
    match_requests_with_bindings,
    parse_volatile_field,
)
from llmproxy.core.bindings.volatile_learning import (
    LearnedField,
    RecordedRequestWithPresentValues,
    choose_volatile_field_name,
    find_differing_volatile_value,
    infer_volatile_fields_from_pair,
    infer_volatile_value_kind,
    is_tool_call_to_remote_host,
    rewrite_recorded_request_for_miss,
    widen_volatile_fields_to_any_args,
)
from llmproxy.core.traffic.json_diff import list_differences
from tests.support.messages import used, user
from tests.support.narrowing import narrow


def run_variables(cwd: str, **more: str) -> list[Any]:
    return [build_run_variable(name, value) for name, value in {"cwd": cwd, **more}.items()]


A, B = (
    run_variables("/tmp/a/project", git_branch="main", user="ann"),
    run_variables("/srv/of-today", git_branch="trunk", user="kim"),
)


def asked(
    *results: str, cwd: str = "/tmp/a/project", question: str = "What now?", commands: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a request whose conversation holds these results of a tool, one call each."""
    said = [user(question)]
    for number, result in enumerate(results):
        command = commands[number] if number < len(commands) else f"ls {cwd}"
        said += used("sh", {"cmd": command}, result, f"@{number}")
    return {"model": "m", "messages": said}


def learn(recorded: dict[str, Any], present: dict[str, Any]) -> tuple[LearnedField, ...] | Mismatch:
    """Return what the pair teaches, under the run variables of A and B."""
    return infer_volatile_fields_from_pair(Bindings(A, B), recorded, present)


def taught(recorded: dict[str, Any], present: dict[str, Any]) -> tuple[LearnedField, ...]:
    """Return what a pair teaches that fits but for volatile fields."""
    found: tuple[LearnedField, ...] = narrow(tuple, learn(recorded, present))
    return found


@pytest.mark.parametrize(("recorded", "present", "kind", "before", "accepted"), [
    ("Chunk ID: 98e1ef", "Chunk ID: b0c4d2", "hex", "Chunk ID: ", True),
    ("Chunk ID: 984125", "Chunk ID: b0c4d2", "hex", "Chunk ID: ", True),
    ("Chunk ID: 984125", "Chunk ID: 110293", "integer", "Chunk ID: ", False),
    ("updated at 1795000000", "updated at 1795000321", "time", "updated at ", True),
    ("order 1795000000", "order 1795000321", "integer", "order ", False),
    ("Wall time: 0.0510 seconds", "Wall time: 1.2 seconds", "duration", "Wall time: ", True),
    ("real 0m1.234s\nuser 0m0.1s", "real 0m1.234s\nuser 0m0.2s", "duration", "user 0m", True),
    ("duration_ms: 2666", "duration_ms: 310", "duration", "duration_ms: ", True),
    ("<elapsedMs>2666</elapsedMs>", "<elapsedMs>31</elapsedMs>", "duration", "<elapsedMs>", True),
    ("timeout_ms: 5000", "timeout_ms: 100", "integer", "timeout_ms: ", False),
    ("items: 2666", "items: 310", "integer", "items: ", False),
    ("Process Group PGID: 3222", "Process Group PGID: 87", "pid", "Process Group PGID: ", False),
    ("listening on http://localhost:40121/", "listening on http://localhost:39999/", "port", "listening on http://localhost:", False),
    ("total 24", "total 8", "count", "total ", False),
    ("-rw-r--r-- 1 ann ann 9 Nov 22 10:33 n.txt", "-rw-r--r-- 1 ann ann 9 Nov  3 23:05 n.txt", "time", "-rw-r--r-- 1 {user} {user} 9 ", True),
    ("at 2026-11-22T10:33:12.123Z", "at 2027-01-02T00:00:00.001Z", "time", "at ", True),
    ("Date:   Sun Nov 22 11:21:41 2026 +0000", "Date:   Mon Nov 23 01:21:53 2026 +1400", "time", "Date:   ", True),
    ("0a1b2c3d-0000-4000-8000-0123456789ab", "11111111-2222-4333-8444-555555555555", "uuid", "", True),
    ("/tmp/tmp.H29hLbmDCU", "/tmp/tmp.Me3TmYvQAs", "name", "/tmp/", False),
    ("deployed main", "deployed trunk", "name", "deployed ", False),
    ("task 17 made", "task 4 made", "integer", "task ", False),
])  # fmt: skip
def test_a_value_that_a_tool_made_is_learned_where_it_stands(
    recorded: str, present: str, kind: str, before: str, accepted: bool
) -> None:
    """One volatile field, of the kind that it looks like, behind the text before it; with it the recording fits."""
    old, new = asked(recorded), asked(present, cwd="/srv/of-today")
    found = taught(old, new)
    assert [(each.field.kind, each.field.before, each.is_bulk_acceptable) for each in found] == [
        (kind, before, accepted)
    ]
    assert found[0].field.tool == "sh"
    assert found[0].field.arguments == '{"cmd":"ls {cwd}"}'
    assert isinstance(match_requests_with_bindings(Bindings(A, B, [found[0].field]), old, new), Fit)


def test_a_bare_id_is_learned_on_a_line_below_a_bare_date() -> None:
    """What `date; uuidgen` wrote: two volatile fields that differ in their kind alone, and a recording that fits."""
    old, new = (
        asked("2026-11-28\nb96f0784-fe5a-40aa-aa88-70835aa5c1de"),
        asked("2026-11-29\n1fb41f2f-cb3a-42c4-ab1e-607c925c4475", cwd="/srv/of-today"),
    )
    found = taught(old, new)
    assert [(each.field.kind, each.field.before) for each in found] == [("time", ""), ("uuid", "")]
    assert isinstance(match_requests_with_bindings(Bindings(A, B, [each.field for each in found]), old, new), Fit)


def test_json_is_learned_by_its_path() -> None:
    """Whatever the order of keys; equal members of a list share a volatile field."""
    old = asked('{"id": 7, "items": [{"id": "a1b2c3d4"}, {"id": "ffffffff"}], "title": "milk"}')
    new = asked('{"title": "milk", "items": [{"id": "b1b2c3d4"}, {"id": "eeeeeeee"}], "id": 9}', cwd="/srv/of-today")
    found = taught(old, new)
    assert [(each.field.at, each.field.kind) for each in found] == [("$.id", "integer"), ("$.items[*].id", "hex")]


def test_what_one_result_made_is_known_in_the_next() -> None:
    """An id that comes back is no second volatile field; the model's own words hold this run's id, as the rewritten answer did."""
    ids = ("0a1b2c3d-0000-4000-8000-0123456789ab", "11111111-2222-4333-8444-555555555555")
    old, new = (
        asked(each, f"{each}.txt", cwd=cwd, commands=("uuidgen", f"touch {each}.txt; ls"))
        for each, cwd in zip(ids, ("/tmp/a/project", "/srv/of-today"), strict=True)
    )
    found = taught(old, new)
    assert [each.field.kind for each in found] == ["uuid"]


@pytest.mark.parametrize(("recorded", "present"), [
    ("buy milk", "buy bread"), ("for ann", "for bob"), ("app is up", "ann is up"), ("main.py", "util.py"),
    ("status: ok", "status: failed"), ("a\nb\nc", "c\na\nb"), ("notes.txt", "notes.txt\nleft-here.txt"),
    ("true", "false"),
])  # fmt: skip
def test_words_are_never_learned(recorded: str, present: str) -> None:
    """Another result is another question, whatever surrounds it."""
    assert narrow(Mismatch, learn(asked(recorded), asked(present, cwd="/srv/of-today"))).why is MisfitReason.DIFFERENT


@pytest.mark.parametrize(("recorded", "present"), [
    ("Cancel invoice 17", "Cancel invoice 71"),
    ("Revert 98e1ef4", "Revert b0c4d2a"),
    ("What is due on 2026-11-22?", "What is due on 2026-11-23?"),
    ("Look at 0a1b2c3d-0000-4000-8000-0123456789ab", "Look at 11111111-2222-4333-8444-555555555555"),
    ("Wait 5 s", "Wait 50 s"),
])  # fmt: skip
def test_the_question_is_never_learned(recorded: str, present: str) -> None:
    """What a user typed, and what a tool was asked, is what it is, also where it looks like an id or a date."""
    assert isinstance(learn(asked(question=recorded), asked(question=present)), Mismatch)
    old, new = asked("ok", commands=(f"echo '{recorded}'",)), asked("ok", commands=(f"echo '{present}'",))
    assert isinstance(learn(old, new), Mismatch)


def test_system_text_is_learned_only_where_that_is_asked_for() -> None:
    """For volatile fields that ship with an agent; `--accept` never takes one."""
    old, new = ({"model": "m", "system": f"Git user: {name}\nBe brief."} for name in ("ann", "kim"))
    assert isinstance(learn(old, new), Mismatch)
    found = infer_volatile_fields_from_pair(Bindings(A, B), old, new, outside=True)
    assert isinstance(found, tuple)
    (one,) = found
    assert (one.field.tool, one.field.before, one.is_bulk_acceptable) == ("<system>", "Git user: ", False)


def test_a_slot_of_system_text_is_never_in_what_a_user_typed() -> None:
    """The same words in a question, or in the model's own, are what they are."""
    slot = parse_volatile_field({"name": "git_user", "kind": "name", "tool": "<system>", "before": "Git user: "})
    table = Bindings(A, B, [slot])

    def fits(role: str, *texts: str) -> bool:
        old, new = ({"messages": [{"role": role, "content": text}]} for text in texts)
        return isinstance(match_requests_with_bindings(table, old, new), Fit)

    assert fits("system", "Git user: ann", "Git user: bob")
    assert not fits("user", "Git user: ann", "Git user: bob")
    assert not fits("assistant", "Git user: ann", "Git user: bob")


def test_a_commit_without_a_letter_is_a_commit() -> None:
    """It is exchanged in the prose that names it, as any other; taken by name, since it may be a number."""
    old, new = ([f"[main {commit}] Add", f"as {commit} says"] for commit in ("9266194", "8480380"))
    found = taught(asked(*old), asked(*new, cwd="/srv/of-today"))
    assert [(each.field.name, each.field.kind, each.is_bulk_acceptable) for each in found] == [("commit", "hex", False)]
    counted = taught(asked("[total 9266194 bytes]"), asked("[total 8480380 bytes]", cwd="/srv/of-today"))
    assert [each.field.kind for each in counted] != ["hex"]


def test_a_number_that_does_not_map_one_to_one_is_a_count() -> None:
    """Links of a folder: 3 stays 3 on one line and 5 becomes 3 on the next; taken for ids they would fit nothing."""
    old = asked("drwxr-xr-x 3 x .\ndrwxr-xr-x 5 x ..\n")
    found = taught(old, asked("drwxr-xr-x 3 x .\ndrwxr-xr-x 3 x ..\n", cwd="/srv/of-today"))
    assert [(each.field.kind, each.is_bulk_acceptable) for each in found] == [("count", False)]


@pytest.mark.parametrize(("recorded", "present", "kind"), [
    ("a1b2c3d4", "ffeeddcc", "hex"), ("7", "12", "integer"), ("2026-11-22", "2026-11-23", "time"), ("ann", "bob", None),
    ("7", "seven", None),
])  # fmt: skip
def test_kinds_of_whole_values(recorded: str, present: str, kind: str | None) -> None:
    """What a leaf of JSON may be; two of different kinds, or two words, are none; equal requests teach nothing."""
    assert infer_volatile_value_kind(recorded, present) == kind
    assert learn(asked("ok"), asked("ok", cwd="/srv/of-today")) == ()


def test_a_difference_at_the_end_of_a_text_is_found() -> None:
    """A value that is longer now than it was."""
    found = find_differing_volatile_value("took 5 ms", 6, "took 51 ms", 6)
    assert found is not None
    assert (found.kind, found.recorded, found.present) == ("duration", "5 ms", "51 ms")
    assert find_differing_volatile_value("abc", 3, "abcd", 3) is None


def test_slots_that_stand_behind_every_command_become_one() -> None:
    """Three commands with the same anchor: whatever the arguments; two stay two."""
    results = [f"Chunk ID: {n}{n}{n}aaa" for n in range(1, 5)]
    others = [f"Chunk ID: {n}{n}{n}bbb" for n in range(1, 5)]
    commands = tuple(f"echo {n}" for n in range(1, 5))
    found = taught(asked(*results, commands=commands), asked(*others, commands=commands))
    assert len(found) == 4
    assert [(each.field.name, each.field.arguments) for each in widen_volatile_fields_to_any_args(found)] == [
        ("chunk_id", "")
    ]
    assert widen_volatile_fields_to_any_args(found[:2]) == found[:2]


def test_times_of_a_listing_are_one_slot() -> None:
    """Whatever the rows are; a row alone keeps its own anchor."""
    row = "-rw-r--r-- 1 root root {} {} {}"
    old = "\n".join(row.format(n, "Nov 22 10:33", f"{n}.txt") for n in range(3))
    new = "\n".join(row.format(n, f"Nov 23 11:0{n}", f"{n}.txt") for n in range(3))
    before, now = asked(old), asked(new, cwd="/srv/of-today")
    found = taught(before, now)
    merged = widen_volatile_fields_to_any_args(found)
    assert [(each.field.name, each.field.before, each.is_bulk_acceptable) for each in merged] == [
        ("file_time", "{:row} ", True)
    ]
    assert isinstance(match_requests_with_bindings(Bindings(A, B, [merged[0].field]), before, now), Fit)
    assert parse_volatile_field(merged[0].field.to_dict()) == merged[0].field
    assert [each.field.before for each in widen_volatile_fields_to_any_args(found[:1])] == ["-rw-r--r-- 1 root root 0 "]


def test_a_slot_behind_the_branch_is_found_on_another_branch() -> None:
    """Learned where the branch was the same in both runs: its name stands in the anchor, not its value."""
    here = run_variables("/srv/of-today", git_branch="main", user="ann")
    old, new = asked("[main 1f3a9c0] Add"), asked("[main 0c0ffee] Add", cwd="/srv/of-today")
    found = infer_volatile_fields_from_pair(Bindings(A, here), old, new)
    assert isinstance(found, tuple), found
    assert [(each.field.name, each.field.before) for each in found] == [("commit", "[{git_branch} ")]
    there = asked("[trunk abcdef1] Add", cwd="/srv/of-today")
    fitted = narrow(Fit, match_requests_with_bindings(Bindings(A, B, [found[0].field]), old, there))
    assert [each.present for each in fitted.identities] == ["abcdef1"]


def test_an_agents_own_word_for_gits_user_is_learned_for_whoever_ships_slots() -> None:
    """The name without the address, of any letters, in system text only; a trial never learns there."""
    who = {"git_user": "Ann Smith <ann@example.com>"}, {"git_user": "Kim García Ek <kim@example.com>"}
    bindings = Bindings(run_variables("/a/b", **who[0]), run_variables("/c/d", **who[1]))
    old, new = (
        {"model": "m", "messages": [{"role": "system", "content": f"Status:\nGit user: {name}\nBranch"}]}
        for name in ("Ann Smith", "Kim García Ek")
    )
    found = infer_volatile_fields_from_pair(bindings, old, new, outside=True)
    assert isinstance(found, tuple), found
    (slot,) = (each.field for each in found)
    assert (slot.name, slot.kind, slot.tool, slot.before) == ("git_user", "person", SYSTEM, "Git user: ")
    assert isinstance(infer_volatile_fields_from_pair(bindings, old, new), Mismatch)


@pytest.mark.parametrize(("before", "called", "kind", "tool", "name"), [
    ("-rw-r--r-- 1 ann ann 9 ", "", "time", "make_task", "file_time"),
    ("drwxr-xr-x ", "", "integer", "make_task", "file_links"),
    ("drwxr-xr-x 3 ", "", "name", "make_task", "file_owner"),
    ("drwxr-xr-x 3 {user} {user} ", "", "count", "make_task", "file_size"),
    ("-rw-r--r-- 1 {user} {user} 9 {:time} ", "", "uuid", "make_task", "file_name"),
    ("[main ", "", "hex", "make_task", "commit"),
    ("[{git_branch} (root-commit) ", "", "hex", "make_task", "commit"),
    ("[", "", "name", "make_task", "branch"),
    ("Author: ", "", "name", "make_task", "author"),
    ("Author: {:name} <", "", "name", "make_task", "author_email"),
    ("Process Group PGID: ", "", "pid", "make_task", "group_pgid"),
    ("{tmp}/", "", "name", "make_task", "tmp_name"),
    ("", "", "uuid", "make_task", "uuid"),
    ("total 24\nmade ", "", "uuid", "make_task", "made"),
    ("written: {tmp}/", "", "name", "make_task", "tmp_name"),
    ("serving on http://127.0.0.1:", "", "port", "make_task", "port"),
    ("", "id", "integer", "make_task", "task_id"),
    ("", "taskId", "integer", "make_task", "taskid"),
    ("key=", "", "hex", "make_task", "task_key"),
    *(("", "id", "integer", tool, name) for tool, name in (
        ("createIssue", "issue_id"), ("mcp__github__create_issue", "issue_id"), ("create", "create_id"), ("orders", "orders_id"))),
])  # fmt: skip
def test_a_slot_is_called_after_what_stands_before_it(
    before: str, called: str, kind: str, tool: str, name: str
) -> None:
    """Columns of listings by their meaning, everything else by its words; a bare `id` by what its tool makes. Equal names are numbered."""
    assert choose_volatile_field_name(before, called, kind, tool, ()) == name
    assert choose_volatile_field_name(before, called, kind, tool, {name, f"{name}_2"}) == f"{name}_3"


@pytest.mark.parametrize(("tool", "arguments", "foreign"), [
    ("web_search", "", True),
    ("WebFetch", '{"url":"https://example.org"}', True),
    ("mcp__github__list_issues", "{}", True),
    ("http_get", "", True),
    ("exec_command", '{"cmd":"curl -s https://example.org/x"}', True),
    ("Bash", '{"command":"cd {cwd} && git pull --rebase"}', True),
    ("Bash", '{"command":"gh pr list"}', True),
    ("Bash", '{"command":"ssh box uptime"}', True),
    ("Bash", '{"command":"psql -c \\"select 1\\""}', True),
    ("Bash", '{"command":"curl localhost:80 && curl example.org"}', True),
    ("exec_command", '{"cmd":"git commit -m x && uuidgen"}', False),
    ("Bash", '{"command":"curl -s http://localhost:3000/tasks"}', False),
    ("Bash", '{"command":"curl -s 127.0.0.1:8080"}', False),
    ("create_task", '{"title":"buy milk"}', False),
    ("Read", '{"path":"{cwd}/highlights.md"}', False),
    ("run", "", False),
])  # fmt: skip
def test_what_asks_others_is_foreign_and_what_this_machine_does_is_not(
    tool: str, arguments: str, *, foreign: bool
) -> None:
    """By the tool's name, or by the program that a command runs."""
    assert is_tool_call_to_remote_host(tool, arguments) is foreign


def test_a_foreign_value_is_accepted_by_name_only() -> None:
    """A uuid is plain where a tool of this machine made it."""
    here, elsewhere = (
        LearnedField(VolatileField("id", "uuid", tool), "a", "b", "$") for tool in ("make_task", "web_search")
    )
    assert (here.is_bulk_acceptable, elsewhere.is_bulk_acceptable) == (True, False)


ONE, TWO = "19f646e8-3665-45bf-a023-f9a014bbc34a", "7617ef61-e131-4c27-aa35-7b0ab89eaae9"


@pytest.mark.parametrize("kind", ["label", "member"])
@pytest.mark.parametrize(("recorded", "present", "fits"), [
    ('{"a": 1, "b": ["x", "y"]}', '{"b": ["x", "y"], "a": 1}', True),
    ('{"a": 1, "b": ["x", "y"]}', '{"b": ["y", "x"], "a": 1}', False),
    ('{"a": 1, "b": true}', '{"b": 1, "a": 1}', False),
    (ONE, TWO, True),
    ("seven", "eight", False),
    (f'{ONE}\n{{"a": 1, "id": "{ONE}"}}', f'{TWO}\n{{"id": "{TWO}", "a": 1}}', True),
])  # fmt: skip
def test_what_a_command_wrote_is_read_behind_a_label_and_inside_of_a_member(
    kind: str, recorded: str, present: str, fits: bool
) -> None:
    """Gemini CLI writes ``Output: `` before it, mini-swe-agent wraps it into JSON: its lines teach, and order of members does not count."""

    def wrap(text: str) -> str:
        text = f"{text}\nand a line"
        return f"Output: {text}" if kind == "label" else json.dumps({"returncode": 0, "output": text})

    assert isinstance(learn(asked(wrap(recorded)), asked(wrap(present), cwd="/srv/of-today")), tuple) is fits


def test_an_id_of_the_recorded_run_in_json_inside_of_a_member_is_no_fit() -> None:
    """What the tool made is another one in the line before it."""
    recorded, present = (json.dumps({"output": f'{made}\n{{"id": "{ONE}"}}'}) for made in (ONE, TWO))
    found = narrow(Mismatch, learn(asked(recorded), asked(present, cwd="/srv/of-today")))
    assert found.why is MisfitReason.LEAKED


A_RESTATING, B_RESTATING = (RunVariable("cwd", "/tmp/a"),), (RunVariable("cwd", "/srv/ci/w"),)
CHUNK = VolatileField("chunk", "hex", "sh", "line", "Chunk ID: ")


def asked_restating(cwd: str, result: str, question: str, command: str = "run") -> Any:
    system = {"role": "system", "content": f"You work in {cwd}."}
    return {"messages": [system, *used("sh", {"cmd": command}, result), user(question)]}


def told(
    old: Any, new: Any, *slots: VolatileField
) -> tuple[RecordedRequestWithPresentValues, list[tuple[str, str, str]]]:
    """Return the recorded one in this run's words, and what is left different."""
    made = rewrite_recorded_request_for_miss(Bindings(A_RESTATING, B_RESTATING, slots), old, new)
    return made, [(each.path, each.old, each.new) for each in list_differences(made.tree, new)]


def test_a_slot_that_fits_is_no_difference() -> None:
    """Neither is a folder; both are named as bound."""
    new = asked_restating("/srv/ci/w", "Chunk ID: aa11bb\nof /srv/ci/w", "delete it")
    made, left = told(asked_restating("/tmp/a", "Chunk ID: 98e1ef\nof /tmp/a", "list it"), new, CHUNK)
    assert left == [("$.messages[3].content", '"list it"', '"delete it"')]
    assert (made.bound, made.varying) == (("chunk", "cwd"), ())


def test_what_differs_behind_a_slot_in_one_text_is_shown_there() -> None:
    """As far as the text fits it stands as it is now; behind that, the folder is this run's."""
    new = asked_restating("/srv/ci/w", "Chunk ID: aa11bb\n8 of /srv/ci/w", "list")
    _, left = told(asked_restating("/tmp/a", "Chunk ID: 98e1ef\n7 of /tmp/a", "list"), new, CHUNK)
    (_, before, after) = left[0]
    assert (before, after) == (r'"Chunk ID: aa11bb\n7 of /srv/ci/w"', r'"Chunk ID: aa11bb\n8 of /srv/ci/w"')


def test_what_could_be_learned_comes_apart_where_something_else_differs() -> None:
    """And stays the difference where it is the only one."""
    old = asked_restating("/tmp/a", "Chunk ID: 98e1ef\n", "list")
    made, left = told(old, asked_restating("/srv/ci/w", "Chunk ID: aa11bb\n", "delete"))
    assert [path for path, _, _ in left] == ["$.messages[3].content"]
    assert [(each.recorded, each.present) for each in made.varying] == [("98e1ef", "aa11bb")]
    made, left = told(old, asked_restating("/srv/ci/w", "Chunk ID: aa11bb\n", "list"))
    assert (len(left), made.varying) == (1, ())
    assert "98e1ef" in left[0][1]


def test_a_value_that_leaked_is_a_difference() -> None:
    minted = VolatileField("made", "uuid", "sh")
    ids = [f"{n}f2b9c1e-0000-4000-8000-00000000000a" for n in range(2)]
    old, new = asked_restating("/tmp/a", ids[0], f"rm {ids[0]}"), asked_restating("/srv/ci/w", ids[1], f"rm {ids[0]}")
    _, left = told(old, new, minted)
    assert left == [("$.messages[3].content", f'"rm {ids[1]}"', f'"rm {ids[0]}"')]


def test_another_shape_is_told_as_it_is() -> None:
    """A message more; and a body that is no object."""
    old = asked_restating("/tmp/a", "Chunk ID: 98e1ef\n", "list")
    new = asked_restating("/srv/ci/w", "Chunk ID: aa11bb\n", "list")
    new["messages"].append({"role": "user", "content": "and then?"})
    _, left = told(old, new, CHUNK)
    assert [path for path, _, _ in left] == ["$.messages[4]"]
    assert told(["a"], ["b"])[0].tree == ["a"]
