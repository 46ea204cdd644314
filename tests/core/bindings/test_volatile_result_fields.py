"""Volatile fields: how they are written, and what they take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.bindings import (
    KINDS,
    BadVolatileField,
    Bindings,
    Fit,
    Mismatch,
    RunVariable,
    VolatileField,
    match_requests_with_bindings,
    matches_field_kind,
    parse_volatile_field,
)
from llmproxy.core.bindings.volatile_result_fields import find_volatile_values_after_anchor
from tests.support.messages import used

Json = Any


def _body(result: str, arguments: Json | None = None, tool: str = "exec") -> Json:
    return {"messages": used(tool, arguments or {}, result)}


def _fit(slot: VolatileField, before: Json, now: Json) -> Fit | Mismatch:
    return match_requests_with_bindings(
        Bindings([RunVariable("cwd", "/a")], [RunVariable("cwd", "/b")], [slot]), before, now
    )


@pytest.mark.parametrize(("kind", "values", "others"), [
    ("uuid", ["3f2b9c1e-0000-4000-8000-00000000000a"], ["3f2b9c1e", "3f2b9c1e-0000-4000-8000-00000000000g"]),
    ("hex", ["98e1ef", "abcd", "0" * 40], ["98e1eg", "abc", ""]),
    ("integer", ["7", "-12", "0"], ["7.5", "x", "1e5"]),
    ("time",
     ["10:30", "10:30:01.5", "2026-11-22T10:30:00Z", "2026-11-22", "Nov 22 10:00", "Nov  3  2025", "1795000000"],
     ["10", "later"]),
    ("duration", ["0.51 seconds", "12ms", "3 min", "0.1", "2 h"], ["long", "5 apples"]),
    ("name", ["tmp.Xy12", "build-7"], ["a b", "/x"]),
    ("port", ["8080", "49152"], ["x", "123456"]),
    ("pid", ["1", "3222"], ["-1", "x"]),
    ("word", ["kim", "a/b"], ["a b", ""]),
])  # fmt: skip
def test_a_slot_takes_values_of_its_kind(kind: str, values: list[str], others: list[str]) -> None:
    assert all(matches_field_kind(kind, value) for value in values)
    assert not any(matches_field_kind(kind, value) for value in others)


def test_only_what_cannot_be_a_question_is_accepted_without_asking() -> None:
    """Integers, decimals and words are accepted each by name."""
    assert {name for name, kind in KINDS.items() if kind.accepted} == {"uuid", "hex", "time", "duration"}


@pytest.mark.parametrize(("slot", "before", "now"), [
    (VolatileField("c", "hex", "exec", before="Chunk ID: "), "Chunk ID: 98e1ef\nx", "Chunk ID: facade\nx"),
    (VolatileField("u", "uuid", "exec"), "3f2b9c1e-0000-4000-8000-00000000000a\n",
     "77777777-1111-4111-8111-00000000000b\n"),
    (VolatileField("w", "duration", "exec", "text", "took "), "it took 0.5 seconds.", "it took 11 seconds."),
    (VolatileField("f", "hex", "exec", before="{cwd}/run-"), "/a/run-98e1ef/log", "/b/run-aa01bc/log"),
    (VolatileField("t", "time", "exec", before="-rw-r--r-- 1 {:word} {:word} 12 "),
     "-rw-r--r-- 1 kim staff 12 Nov 22 10:00 a", "-rw-r--r-- 1 kim staff 12 Nov 23 11:01 a"),
    (VolatileField("id", "integer", "exec", "$.items[*].id"), '{"items": [{"id": 1}, {"id": 2}]}',
     '{"items": [{"id": 8}, {"id": 9}]}'),
    (VolatileField("at", "time", "exec", "$.at"), '{"at": "10:30", "x": 1}', '{"x": 1, "at": "11:31"}'),
    (VolatileField("c", "hex", "exec", "$.id"), 'Output:\n{"id": "98e1ef"}\n', 'Output:\n{"id": "aa01bc"}\n'),
])  # fmt: skip
def test_a_slot_is_found_by_its_anchor(slot: VolatileField, before: str, now: str) -> None:
    """The beginning of a line, any text before it, a JSON path; with names for what is bound."""
    assert isinstance(fit := _fit(slot, _body(before), _body(now)), Fit), str(fit)
    assert slot.name in fit.names
    assert isinstance(_fit(slot, _body(before, tool="other"), _body(now, tool="other")), Mismatch)
    elsewhere = VolatileField("x", slot.kind, "exec", before="nothing: ")
    assert isinstance(_fit(elsewhere, _body(before), _body(now)), Mismatch)


def test_a_slot_of_certain_arguments_is_of_no_other_call() -> None:
    """``uuidgen`` prints an id; what ``cat`` prints is asked about."""
    slot = VolatileField("u", "hex", "exec", arguments='{"command":"mint {cwd}"}')
    for program, kind in (("mint", Fit), ("cat", Mismatch)):
        bodies = [_body(value, {"command": f"{program} {cwd}"}) for value, cwd in (("98e1ef", "/a"), ("aa01bc", "/b"))]
        assert isinstance(_fit(slot, *bodies), kind)


def test_a_slot_may_be_of_tools_whose_names_begin_alike_and_end_before_a_text() -> None:
    """What Codex writes before what any server of tools says; not what a tool says itself, nor another agent's tool."""
    slot = VolatileField("wall", "duration", "mcp__*", before="Wall time: ", after="\nOutput:")
    codex = [_body(f"Wall time: 0.{n} seconds\nOutput:\nhi", tool="mcp__tools__echo") for n in (1, 25)]
    assert isinstance(fit := _fit(slot, *codex), Fit)
    assert fit.names == ("wall",)
    others = ("mcp__tools__echo", "Wall time: {} seconds\nAll passed."), ("exec", "Wall time: {} s\nOutput:\nhi")
    for tool, text in others:
        assert isinstance(_fit(slot, *(_body(text.format(n), tool=tool) for n in (1, 25))), Mismatch)


def test_a_tool_in_a_namespace_has_slots_of_its_own() -> None:
    """As Codex calls the tools of a server: by the namespace's name and its own."""

    def body(made: str) -> dict[str, Any]:
        call = {"type": "function_call", "call_id": "c", "namespace": "mcp__a", "name": "mint", "arguments": "{}"}
        return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": made}]}

    assert isinstance(_fit(VolatileField("u", "hex", "mcp__a__mint"), body("98e1ef"), body("aa01bc")), Fit)
    assert isinstance(_fit(VolatileField("u", "hex", "mint"), body("98e1ef"), body("aa01bc")), Mismatch)


def test_keys_of_json_in_a_result_come_in_any_order() -> None:
    """Alone, behind words, over lines of their own; a list's order counts."""
    for around in ("{}", "Output:\n{}\nend", "Chunk\n{}"):
        one, other = (
            around.format(json.dumps(value, indent=indent))
            for value, indent in (({"a": 1, "b": [1, 2]}, 2), ({"b": [1, 2], "a": 1}, None))
        )
        slot = VolatileField("x", "hex", "none")
        assert isinstance(_fit(slot, _body(one), _body(other)), Fit), around
        for changed in (other.replace("[1, 2]", "[2, 1]"), other.replace('"a": 1', '"a": true')):
            assert isinstance(_fit(slot, _body(one), _body(changed)), Mismatch), around


def test_a_slot_outside_of_results_is_found_by_what_stands_before_it() -> None:
    """Only one that says so: a tool's volatile field is never looked for in a question."""
    bodies = [{"messages": [{"role": "user", "content": f"run {run} now"}]} for run in ("98e1ef", "aa01bc")]
    assert isinstance(_fit(VolatileField("run", "hex", "", "text", "run "), bodies[0], bodies[1]), Fit)
    assert isinstance(_fit(VolatileField("run", "hex", "exec", "text", "run "), bodies[0], bodies[1]), Mismatch)


@pytest.mark.parametrize("slot", [
    VolatileField("chunk", "hex", "exec_command", before="Chunk ID: "),
    VolatileField("id", "integer", "t", "$.id", arguments="{}", noise=True),
    VolatileField("t", "time", "", "text", "at "),
    VolatileField("w", "duration", "mcp__*", before="Wall time: ", after="\nOutput:"),
])  # fmt: skip
def test_slots_are_written_and_read(slot: VolatileField) -> None:
    """As plain values, for YAML and the store."""
    assert parse_volatile_field(slot.to_dict()) == slot


@pytest.mark.parametrize("value", [
    None, [], "x", {}, {"name": "a"}, {"name": "a", "kind": "nope", "tool": "t"}, {"name": "a b", "kind": "hex", "tool": "t"},
    {"name": "a", "kind": "hex", "tool": "t", "at": "here"}, {"name": "a", "kind": "hex", "tool": "t", "at": "text"},
    {"name": "a", "kind": "hex", "tool": 1}, {"name": "a", "kind": "hex", "tool": "t", "noise": "yes"},
    {"name": "a", "kind": "hex", "tool": "t", "pattern": ".*"}, {"name": "a", "kind": "hex", "tool": "t*", "at": "$.a"},
    {"name": "a", "kind": "hex", "tool": "t", "at": "$.a", "after": "x"}, {"name": "a", "kind": "hex", "tool": "t", "after": 1},
])  # fmt: skip
def test_a_slot_that_cannot_be_is_an_error(value: object) -> None:
    """A typo in a cassette is said, not ignored."""
    with pytest.raises(BadVolatileField):
        parse_volatile_field(value)


@pytest.mark.parametrize(("before", "text", "found"), [
    ("saved {:name}.txt as ", "saved a.b.txt as x9", ["x9"]),
    ("{:word} {:word} to ", "one two to three", ["three"]),
    ("Author: {:person} of ", "Author: Ann Smith of Rome", ["Rome"]),
    ("{:name}" * 40 + "!", ("a" * 400 + "\n") * 100 + "!", []),
])  # fmt: skip
def test_what_varies_before_a_value_gives_back_once(before: str, text: str, found: list[str]) -> None:
    """A name may end before a text that could be its own; forty one after another, in a stranger's cassette, would search for ever."""
    slot = parse_volatile_field({"name": "x", "kind": "word", "tool": "t", "before": before})
    assert [each.value for each in find_volatile_values_after_anchor(slot, text, ())] == found
