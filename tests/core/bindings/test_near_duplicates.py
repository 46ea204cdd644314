"""Requests that ask something else in a value that looks as if it merely varied: none is ever served."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    Mismatch,
    RunVariable,
    VolatileField,
    match_requests_with_bindings,
)
from tests.support.messages import asks, call, used
from tests.support.narrowing import narrow

Json = Any
COMMIT = "1f3a9c0de4b5a69788776655443322110ffeeddc"
RECORDED = (
    RunVariable("cwd", "/tmp/a/project"), RunVariable("home", "/home/kim"), RunVariable("user", "kim"),
    RunVariable("host", "box"), RunVariable("date", "2026-11-22"), RunVariable("git_branch", "main"),
    RunVariable("task.id", "7"),
)  # fmt: skip
PRESENT = (
    RunVariable("cwd", "/srv/ci/w-1"), RunVariable("home", "/users/ann"), RunVariable("user", "ann"),
    RunVariable("host", "ci"), RunVariable("date", "2026-11-23"), RunVariable("git_branch", "release"),
    RunVariable("task.id", "1007"),
)  # fmt: skip
SLOTS = (
    VolatileField("chunk", "hex", "exec", before="Chunk ID: "),
    VolatileField("commit", "hex", "commit", at="$.sha"),
    VolatileField("wall", "duration", "exec", before="Wall time: "),
    VolatileField("pid", "pid", "exec", before="PID: "),
    VolatileField("task", "integer", "create_task", at="$.id"),
)


def _body(cwd: str, home: str, day: str, branch: str, chunk: str, commit: str, task: int, pid: int) -> Json:
    question = (
        "Cancel the invoices due 2026-11-30 of kim and the app, seats 7, amount 12.50, commit 98e1ef2 before 10:30, "
        "2 days, order 7, from /etc/hosts and ./src, branch main."
    )
    listed = f"Chunk ID: {chunk}\nWall time: 0.51 seconds\nPID: {pid}\ntotal 24\nOct  3 10:00 {cwd}"
    committed = {"sha": commit, "author": "kim", "count": 7, "date": "2026-11-22"}
    created = {"id": task, "seats": 7, "owner_id": 7}
    return {
        "model": "gpt-5",
        "temperature": 0.5,
        "messages": [
            {"role": "system", "content": f"You work in {cwd} of {home}.\nToday is {day}.\nCurrent branch: {branch}\n"},
            {"role": "user", "content": question},
            *used("exec", {"command": f"ls {cwd}", "seats": 7, "user": "kim"}, listed, "call#1"),
            *used("commit", {"message": "fix 2026-11-22", "chunk": chunk}, json.dumps(committed), "call#2"),
            *used("create_task", {"title": "buy", "seats": 7}, json.dumps(created), "call#3"),
            *used("close_task", {"id": task, "seats": 7, "sha": commit[:10]}, f"closed {commit}", "call#4"),
        ],
    }


def _recorded() -> Json:
    return _body("/tmp/a/project", "/home/kim", "2026-11-22", "main", "98e1ef", COMMIT, 7, 3222)


def _present() -> Json:
    return _body("/srv/ci/w-1", "/users/ann", "2026-11-23", "release", "aa01bc", "0" * 8 + COMMIT[:32], 1007, 99)


def _fit(present: Json) -> Fit | Mismatch:
    return match_requests_with_bindings(Bindings(RECORDED, PRESENT, SLOTS), _recorded(), present)


def test_the_same_run_elsewhere_fits() -> None:
    """Folder, home, day, branch, ids, a captured number, times and pids differ, and nothing else."""
    fit = narrow(Fit, _fit(_present()))
    assert set(fit.names) == {"chunk", "commit", "cwd", "date", "git_branch", "home", "pid", "task"}


def test_a_day_that_was_today_is_another_question() -> None:
    """The user spoke of the day that was today when it was recorded; in a tool's result it is data."""
    bodies = [_recorded(), _present()]
    for body in bodies:
        body["messages"][1]["content"] = "This invoice was due on 2026-11-22. Is it overdue?"
    found = match_requests_with_bindings(Bindings(RECORDED, PRESENT, SLOTS), *bodies)
    assert (narrow(Mismatch, found).why, narrow(Mismatch, found).name) == ("uneven", "date")
    for body in bodies:
        body["messages"][1]["content"] += " <system-reminder>Nothing.</system-reminder>"
    assert isinstance(match_requests_with_bindings(Bindings(RECORDED, PRESENT, SLOTS), *bodies), Mismatch)


DUPLICATES = {
    "another due day": ((1,), "2026-11-30", "2026-12-01"),
    "another user": ((1,), "kim", "ann"),
    "another app": ((1,), "the app", "the ann"),
    "seats 12 for 7": ((1,), "seats 7", "seats 12"),
    "seats as the task's number": ((1,), "seats 7", "seats 1007"),
    "an amount": ((1,), "12.50", "12.60"),
    "a commit that was typed": ((1,), "98e1ef2", "aa01bc2"),
    "the chunk's id where another commit was typed": ((1,), "98e1ef2", "aa01bc"),
    "a time": ((1,), "10:30", "10:31"),
    "a duration": ((1,), "2 days", "3 days"),
    "an order's number": ((1,), "order 7", "order 1007"),
    "another file": ((1,), "/etc/hosts", "/etc/passwd"),
    "a file in the folder": ((1,), "/etc/hosts", "/srv/ci/w-1/hosts"),
    "another branch that was typed": ((1,), "branch main", "branch release"),
    "a relative path": ((1,), "./src", "./lib"),
    "a folder beside": ((0,), "/srv/ci/w-1 of", "/srv/ci/w-12 of"),
    "the recorded folder's sibling": ((0,), "/srv/ci/w-1 of", "/tmp/a/project.bak of"),
    "a folder above": ((0,), "/srv/ci/w-1 of", "/srv/ci of"),
    "cwd and home swapped": ((0,), "You work in /srv/ci/w-1 of /users/ann", "You work in /users/ann of /srv/ci/w-1"),
    "another day": ((0,), "2026-11-23", "2026-11-24"),
    "another system text": ((0,), "You work", "You idle"),
    "an argument's number": ((2, "tool_calls", 0, "function", "arguments"), '"seats": 7', '"seats": 8'),
    "the task's number in an argument": ((2, "tool_calls", 0, "function", "arguments"), '"seats": 7', '"seats": 1007'),
    "a user in an argument": ((2, "tool_calls", 0, "function", "arguments"), '"user": "kim"', '"user": "ann"'),
    "a total that no volatile field names": ((3, "content"), "total 24", "total 25"),
    "a day in a listing": ((3, "content"), "Oct  3", "Oct  4"),
    "a volatile field of another kind": ((3, "content"), "Chunk ID: aa01bc", "Chunk ID: zz01bc"),
    "a duration that is none": ((3, "content"), "0.51 seconds", "long"),
    "a pid that is none": ((3, "content"), "PID: 99", "PID: none"),
    "a day in arguments": ((4, "tool_calls", 0, "function", "arguments"), "fix 2026-11-22", "fix 2026-11-23"),
    "an id of this run that is another": ((4, "tool_calls", 0, "function", "arguments"), "aa01bc", "aa01bd"),
    "the recorded id left behind": ((4, "tool_calls", 0, "function", "arguments"), "aa01bc", "98e1ef"),
    "an author": ((5, "content"), "kim", "ann"),
    "a count that is the task's number": ((5, "content"), '"count": 7', '"count": 1007'),
    "a day in a result": ((5, "content"), "2026-11-22", "2026-11-23"),
    "another owner": ((7, "content"), '"owner_id": 7', '"owner_id": 1007'),
    "seats in a result": ((7, "content"), '"seats": 7', '"seats": 1007'),
    "the task of the recorded run": ((8, "tool_calls", 0, "function", "arguments"), '"id": 1007', '"id": 7'),
    "a third task": ((8, "tool_calls", 0, "function", "arguments"), '"id": 1007', '"id": 1008'),
    "a number as text": ((8, "tool_calls", 0, "function", "arguments"), '"id": 1007', '"id": "1007"'),
    "another prefix": ((8, "tool_calls", 0, "function", "arguments"), "000000001f", "000000002f"),
    "a longer prefix": ((8, "tool_calls", 0, "function", "arguments"), "000000001f", "000000001f3"),
    "another commit later": ((9, "content"), "000000001f3a", "000000001f3b"),
}


def plant(name: str) -> Json:
    """Return the present request with one of the duplicates in it."""
    path, old, new = DUPLICATES[name]
    present = copy.deepcopy(_present())
    node: Json = present["messages"][path[0]]
    steps = path[1:] or ("content",)
    for step in steps[:-1]:
        node = node[step]
    assert old in node[steps[-1]], "the duplicate is planted where nothing stands"
    node[steps[-1]] = node[steps[-1]].replace(old, new, 1)
    return present


@pytest.mark.parametrize("name", DUPLICATES)
def test_what_asks_something_else_is_a_miss_that_names_the_place(name: str) -> None:
    """A value that looks volatile, and is part of the question or of no volatile field."""
    path, _, _ = DUPLICATES[name]
    result = _fit(plant(name))
    assert isinstance(result, Mismatch), f"served: {name}"
    assert result.path.startswith(f"$.messages[{path[0]}]"), str(result)
    assert result.recorded or result.present


@pytest.mark.parametrize(
    ("member", "value"),
    [("temperature", 1), ("temperature", True), ("model", "gpt-6"), ("max_tokens", 7), ("stop", ["7"])],
)
def test_parameters_are_never_bound(member: str, value: object) -> None:
    """What is sampled, and by whom, is a part of the question."""
    assert isinstance(_fit(_present() | {member: value}), Mismatch)


def test_messages_are_not_left_out_or_put_in() -> None:
    """A conversation of another length is another one, whatever it ends with."""
    present = _present()
    *before, last = present["messages"]
    for messages in (before, [*before, last, {"role": "user", "content": "and?"}]):
        assert isinstance(_fit({**present, "messages": messages}), Mismatch)


def test_equality_of_leaves_binds_nothing() -> None:
    """``{"user": "app", "service": "app"}`` is never served for ann's: a short word counts only where it was captured."""
    recorded, present = [RunVariable("user", "app")], [RunVariable("user", "ann")]
    for members in ({"user", "service"}, {"service"}, {"user"}):
        before, now = ({"messages": [asks(call("who", dict.fromkeys(members, name)))]} for name in ("app", "ann"))
        assert isinstance(match_requests_with_bindings(Bindings(recorded, present), before, now), Mismatch), members


def test_a_short_text_that_a_tool_made_is_a_leak_when_it_comes_back() -> None:
    """``abc`` is too short to be looked for anywhere, but not at the member that names it."""
    slots = (VolatileField("nm", "name", "make", at="$.name"),)
    recorded, present, leaky = (
        {"messages": [*used("make", {}, json.dumps({"name": made})), asks(call("use", {"nm": named}))]}
        for made, named in (("abc", "abc"), ("xyz", "xyz"), ("xyz", "abc"))
    )
    assert isinstance(match_requests_with_bindings(Bindings((), (), slots), recorded, present), Fit)
    assert "leaked" in str(narrow(Mismatch, match_requests_with_bindings(Bindings((), (), slots), recorded, leaky)))


def _keyed(files: Json, *, written: bool, cwd: str = "/srv/ci/w-1", commit: str = "0" * 40) -> Json:
    arguments = json.dumps(files) if written else files
    named = {"id": "call#2", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    system, made = {"role": "system", "content": f"in {cwd}"}, used("commit", {}, json.dumps({"sha": commit}))
    return {"messages": [system, *made, {"role": "assistant", "tool_calls": [named]}]}


def _files(cwd: str, commit: str) -> Json:
    return {"changes": {f"{cwd}/x.py": "a", f"{cwd}/y.py": "b", "/etc/hosts": "c"}, "at": {commit: {"sha": commit}}}


KEYED: dict[str, Json] = {
    "another file": {"changes": {"/srv/ci/w-1/x.py": "a", "/srv/ci/w-1/z.py": "b", "/etc/hosts": "c"}},
    "a file elsewhere": {"changes": {"/srv/ci/w-1/x.py": "a", "/srv/ci/w-12/y.py": "b", "/etc/hosts": "c"}},
    "a file that was outside": {
        "changes": {"/srv/ci/w-1/x.py": "a", "/srv/ci/w-1/y.py": "b", "/srv/ci/w-1/hosts": "c"}
    },
    "swapped": {"changes": {"/srv/ci/w-1/x.py": "b", "/srv/ci/w-1/y.py": "a", "/etc/hosts": "c"}},
    "another text": {"changes": {"/srv/ci/w-1/x.py": "c", "/srv/ci/w-1/y.py": "b", "/etc/hosts": "c"}},
    "one more": {"changes": {"/srv/ci/w-1/x.py": "a", "/srv/ci/w-1/y.py": "b", "/etc/hosts": "c", "/z": "d"}},
    "one less": {"changes": {"/srv/ci/w-1/x.py": "a", "/etc/hosts": "c"}},
    "the recorded commit": {"at": {COMMIT: {"sha": "0" * 40}}},
    "another commit": {"at": {"1" * 40: {"sha": "0" * 40}}},
}


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("name", ["", *KEYED])
def test_members_are_compared_as_texts_are(name: str, written: bool) -> None:
    """``{"/tmp/a/x.py": ...}`` of the recorded run is ``{"/srv/w/x.py": ...}`` of this one, and no other file's."""
    recorded = _keyed(_files("/tmp/a/project", COMMIT), written=written, cwd="/tmp/a/project", commit=COMMIT)
    present = _keyed({**_files("/srv/ci/w-1", "0" * 40), **KEYED.get(name, {})}, written=written)
    result = match_requests_with_bindings(Bindings(RECORDED, PRESENT, SLOTS), recorded, present)
    assert isinstance(result, Mismatch if name else Fit), str(result)
    if isinstance(result, Mismatch):
        assert result.path.startswith("$.messages[3].tool_calls[0].function.arguments."), str(result)
        assert ("leaked" in str(result)) == (name == "the recorded commit")
        assert result.path.endswith("./srv/ci/w-1/x.py") == (name in ("swapped", "another text"))
    else:
        assert set(result.names) == {"cwd", "commit"}
        assert result.chosen["/tmp/a/project"] == {"/srv/ci/w-1"}
