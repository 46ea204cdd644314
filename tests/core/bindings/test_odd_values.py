"""Run variables of any value: quotes, patterns, braces, escapes, common words, prefixes of each other. Nothing breaks, and what is another thing stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.bindings import (
    Bindings,
    Fit,
    IdPair,
    Mismatch,
    MismatchKind,
    RunVariable,
    ValueKind,
    VolatileField,
    fit_request,
    parse_run_variable,
    rewrite_answer,
)
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.support.messages import used, user
from tests.support.narrowing import narrow

VALUES = (
    "7", "app", "the", "a", "é", "日本", "it's", 'say "hi"', "$HOME", "`id`", "a b", "back\\slash", "*", "[ab]", "?", "(x)", "a|b", "{x}", "{{",
    "}", "\\1", "a\nb", "/tmp/a", "/tmp/ab", "/tmp/a b", "/tmp/[x]", "/é/ü", "/tmp/a'b", "C:\\Users\\a b", "~/x", "order-123456", "order-1234567",
    "tok$9ab;ls1", "[REDACTED]", "2026-11-22", "null", "true", "-1", "0", "007", "\ud83d", "x" * 5000, ".", "--help", "\t", "%2Ftmp", "&amp;",
)  # fmt: skip
NAMES = (
    "cwd", "tmp", "user", "date", "os_version", "git_user", "git_branch", "git_status", "task.id", "token", "a.b.c",
)  # fmt: skip
OTHERS = "17 apps, thesis, 77 seats, order-123456789, /var/tmp/abc, http://x/tmp/abc, $HOMEDIR, said, 0071, it's-a-b"
"""Holds most of these values, and means none of them."""


def answer(text: str) -> Response:
    """Return an answer that says a text, and runs it."""
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": text, "seats": 7}}
    body = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}, call]}
    return Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, json.dumps(body).encode()),))


def asked(text: str) -> dict[str, Any]:
    """Return a request that holds a text wherever one may stand."""
    told = json.dumps({"user": text, "id": 7}) + f"\nAuthor: {text}\n-rw-r--r-- 1 {text} ann 9 Nov 22 10:33 n.txt"
    messages = [{"role": "system", "content": text}, user(text), *used("sh", {"cmd": text, "id": 7}, told)]
    return {"model": "m", "messages": messages}


@pytest.mark.parametrize("name", NAMES)
def test_no_value_breaks_anything_or_changes_what_is_another_thing(name: str) -> None:
    """Each value against the next ones: an equal request fits, an answer without the value stays, and a short one is changed in no text."""
    for number, value in enumerate(VALUES):
        for other in (VALUES[number - 1], VALUES[number - 7]):
            sides = [parse_run_variable(name, value)], [parse_run_variable(name, other)]
            bindings = Bindings(*sides)
            text = f"in {value} and {value}/x, {OTHERS}"
            fit = fit_request(bindings, asked(text), asked(text))
            assert isinstance(fit, Fit), fit
            rewrite_answer(bindings, fit, answer(text))
            without = answer(OTHERS)
            assert rewrite_answer(bindings, Fit((), ()), without) is without, (value, other)
            if all(side[0].kind is ValueKind.SHORT for side in sides):
                same = answer(text)
                got = rewrite_answer(bindings, Fit((), ()), same)
                assert got is same or (isinstance(got, Mismatch) and got.why is MismatchKind.SHORT), (value, other)


def test_one_that_is_a_prefix_of_another_is_not_taken_for_it() -> None:
    """Folders and ids: the longer one counts where it stands, each becomes its own."""
    old = [RunVariable("cwd", "/tmp/a/b"), RunVariable("home", "/tmp/a"), RunVariable("o.id", "order-123456")]
    new = [RunVariable("cwd", "/srv/x"), RunVariable("home", "/home/k"), RunVariable("o.id", "order-999999")]
    said = answer("/tmp/a/b/c /tmp/a/bc /tmp/a order-123456 order-1234567")
    got = narrow(Response, rewrite_answer(Bindings(old, new), Fit((), ()), said))
    assert json.loads(got.body)["content"][0]["text"] == "/srv/x/c /home/k/bc /home/k order-999999 order-1234567"


def test_a_variable_that_is_the_folder_s_name_may_stand_in_a_member_and_in_a_path() -> None:
    """What a member is called by says which value it is; the folder's name in a path is no second meaning of the same text."""
    recorded, present = ([RunVariable("cwd", f"/tmp/{it}"), RunVariable("project", it)] for it in ("alpha", "beta"))
    before, now = (
        {"messages": [*used("open", {"project": it}), *used("ls", {"path": f"../{it}/x"})]} for it in ("alpha", "beta")
    )
    assert isinstance(fit_request(Bindings(recorded, present), before, now), Fit)


def test_a_number_of_a_volatile_field_is_no_short_id_of_another_one() -> None:
    """The field at the place itself is the more exact one; as a text it stays a miss."""
    made = VolatileField("task.id", "integer", "make_task", at="$.id")
    bindings = Bindings([], [], [made, VolatileField("task", "count", "get", at="$.task_id")])

    def calls(id_: object, told: object) -> Any:
        return {
            "messages": [
                *used("make_task", {}, json.dumps({"id": id_})),
                *used("get", {}, json.dumps({"task_id": told})),
            ]
        }

    assert isinstance(fit_request(bindings, calls(7, 7), calls(9, 7)), Fit)
    assert narrow(Mismatch, fit_request(bindings, calls("7", "7"), calls("9", "7"))).why is MismatchKind.LEAKED


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_an_id_is_not_left_behind_an_escape_of_argument_text(blank: str) -> None:
    """In the JSON text a line break before it ends in a letter, which would glue it to a word."""
    old, new = "1f3a9c0de4b5a69788776655443322110ffeeddc", "2222222de4b5a69788776655443322110ffeeddc"
    call = {"id": "x", "function": {"name": "write", "arguments": json.dumps({"note": f"see{blank}1f3a9 for it"})}}
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}}]}
    response = Response(200, "OK", (("content-type", "application/json"),), (Chunk(0, json.dumps(body).encode()),))
    fit = Fit((), (IdPair("commit", "hex", old, new),))
    assert narrow(Mismatch, rewrite_answer(Bindings([], []), fit, response)).why is MismatchKind.LEAKED
