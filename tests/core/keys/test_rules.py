"""The tables of rules: every rule has a reason, every shape belongs to an operation that exists."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from llmproxy.core.keys.built_in_body_rules import (
    CHAT,
    CONVERSE,
    GENERATE,
    MESSAGES,
    NOTHING,
    RESPONSES,
    SHAPES,
    KeyMemberRule,
    KeyObjectRules,
    MemberAction,
)
from llmproxy.core.keys.head_rules import IGNORED, IGNORED_PREFIXES, KEYED, KEYED_PREFIXES
from llmproxy.core.keys.normalize import REFERRING, BodyMemberRuleApplier, IdOrigin, build_key, canonicalize_request
from llmproxy.core.keys.user_rules import (
    Rules,
    TextScrub,
    apply_normalize_rules,
    compile_normalize_rules,
    parse_json_path,
)
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import route
from llmproxy.core.traffic.interaction import Key, Request
from llmproxy.errors import SettingsError
from llmproxy.settings import parse_normalize_rules


def rules(shape: KeyObjectRules, seen: set[int]) -> Iterator[tuple[str, KeyMemberRule]]:
    if id(shape) in seen:
        return
    seen.add(id(shape))
    for name, rule in shape.members.items():
        yield name, rule
        if rule.into is not None:
            yield from rules(rule.into, seen)
    for kind in shape.kinds.values():
        yield from rules(kind, seen)


def every_rule() -> list[tuple[str, KeyMemberRule]]:
    seen: set[int] = set()
    return [found for shape in SHAPES.values() for found in rules(shape, seen)]


def test_every_rule_has_its_reason() -> None:
    """A rule nobody can justify is a false hit waiting."""
    assert [name for name, rule in every_rule() if len(rule.why) < 10] == []
    tables = (KEYED, KEYED_PREFIXES, IGNORED, IGNORED_PREFIXES)
    assert [name for table in tables for name, why in table.items() if len(why) < 4] == []
    assert KEYED.keys().isdisjoint(IGNORED)


def test_members_that_may_name_server_state_are_known() -> None:
    """The ids of a request are looked for where one expression finds such a member, and nowhere else."""
    naming = {
        name for name, rule in every_rule() if rule.do in (MemberAction.REFER, MemberAction.OWN, MemberAction.FILE_URI)
    }
    assert len(naming) > 10
    assert [name for name in sorted(naming) if not REFERRING.search(f'{{"{name}" : 1}}'.encode())] == []
    assert not REFERRING.search(b'{"content": "id", "name": 1}')


def test_nothing_that_shapes_the_answer_is_ignored_and_no_opaque_subtree_entered() -> None:
    """What WIRE.md keeps is never in the table of what is left out; no shape walks into schemas, tool inputs or tool results."""
    ignored = {name for name, rule in every_rule() if rule.do is MemberAction.IGNORE}
    kept = """model messages input contents system instructions tools tool_choice temperature top_p top_k seed stop n
    max_tokens max_completion_tokens max_output_tokens response_format text output_config reasoning reasoning_effort thinking
    include encoding_format dimensions modalities truncation context_management stream_options parallel_tool_calls logprobs
    prompt toolConfig safetySettings generationConfig previous_response_id conversation cachedContent container background
    encrypted_content data thoughtSignature arguments args name role content""".split()  # noqa: SIM905
    assert ignored.isdisjoint(kept)
    walked = {name for name, rule in every_rule() if rule.into is not None}
    opaque = """parameters input_schema parametersJsonSchema parameters_json_schema responseSchema response_schema
    responseJsonSchema schema inputSchema json args response metadata toolChoice tool_choice""".split()  # noqa: SIM905
    assert walked.isdisjoint(opaque)


def test_only_named_empty_members_are_dropped() -> None:
    """{"any": {}} and {"auto": {}} are different things."""
    assert {name for name, rule in every_rule() if rule.do is MemberAction.SPARE} == {
        "tools", "include", "images", "options", "generationConfig", "generation_config", "inferenceConfig", "tool_calls",
    }  # fmt: skip


def test_every_shape_is_of_an_operation_of_the_table() -> None:
    """A renamed operation would silently lose its rules."""
    known = {
        (operation.family or provider.family, operation.name)
        for provider in PROVIDERS.values()
        for operation in provider.operations.values()
    }
    known |= {("gemini", name) for name in PROVIDERS["gemini"].methods} | {("bedrock", "converse")}
    assert set(SHAPES) - known == set()


def test_the_empty_shape_lets_everything_count() -> None:
    assert not NOTHING.members
    assert not NOTHING.nulls
    assert not NOTHING.kinds


def test_rules_cannot_be_changed() -> None:
    """Keys of one process and of the next must agree."""
    rule = KeyMemberRule(MemberAction.IGNORE, "why", KeyObjectRules())
    with pytest.raises(FrozenInstanceError):
        rule.why = "else"  # type: ignore[misc]


ISO = "Now: 2026-07-30T10:00:00Z, released 2024-05-01."


def applied(tree: object, **table: object) -> object:
    return apply_normalize_rules(tree, compile_normalize_rules(Rules.from_settings(parse_normalize_rules(table))))


@pytest.mark.parametrize(("path", "left"), [
    ("$.a", {"l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
    ("$.l[*].b", {"a": {"b": 0}, "l": [{"c": 2}, {}], "x.y": {"b": 4}}),
    ("$.l[-1]", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}], "x.y": {"b": 4}}),
    ("$.l[7].b", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
    ("$..b", {"a": {}, "l": [{"c": 2}, {}], "x.y": {}}),
    ("$['x.y'].b", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {}}),
    ("$.*", {}),
    ("$.a.b.c", {"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}),
])  # fmt: skip
def test_ignored_paths_are_left_out(path: str, left: object) -> None:
    assert applied({"a": {"b": 0}, "l": [{"b": 1, "c": 2}, {"b": 3}], "x.y": {"b": 4}}, ignore=[path]) == left


@pytest.mark.parametrize(("table", "said"), [
    ({"ignore": ["a.b"]}, "'a.b' is not a path"),
    ({"ignore": ["$"]}, "'[$]' is not a path"),
    ({"ignore": ["$.a["]}, "is not a path"),
    ({"packs": ["date"]}, "did you mean 'dates'"),
    ({"scrub": [{"pattern": "a", "placeholder": "\\2"}]}, "invalid group reference"),
])  # fmt: skip
def test_wrong_rules_are_said_with_their_text(table: dict[str, object], said: str) -> None:
    """At the start, not at the first request."""
    with pytest.raises(SettingsError, match=said):
        Rules.from_settings(parse_normalize_rules(table))


def test_rules_have_a_digest() -> None:
    """Equal rules have equal digests, others another one."""
    one = Rules.from_settings(
        parse_normalize_rules({"ignore": ["$.a"], "scrub": [{"pattern": "x", "placeholder": "y"}], "packs": ["dates"]})
    )
    assert one == Rules(("$.a",), (TextScrub("x", "y"),), ("dates",))
    assert one.rules_digest == Rules(("$.a",), (TextScrub("x", "y"),), ("dates",)).rules_digest != Rules().rules_digest
    assert len(one.rules_digest) == 12


def test_system_scrubs_leave_the_user_alone() -> None:
    """A date in what a user says is meaning."""
    tree = {
        "system": [{"type": "text", "text": ISO}],
        "instructions": ISO,
        "systemInstruction": {"parts": [{"text": ISO}]},
        "messages": [{"role": "system", "content": ISO}, {"role": "user", "content": ISO}],
        "input": [{"role": "developer", "content": [{"type": "input_text", "text": ISO}]}],
    }
    scrubbed = "Now: [date-time], released 2024-05-01."
    assert applied(tree, packs=["dates"]) == {
        "system": [{"type": "text", "text": scrubbed}],
        "instructions": scrubbed,
        "systemInstruction": {"parts": [{"text": scrubbed}]},
        "messages": [{"role": "system", "content": scrubbed}, {"role": "user", "content": ISO}],
        "input": [{"role": "developer", "content": [{"type": "input_text", "text": scrubbed}]}],
    }


def test_scrubs_everywhere_reach_every_value_but_no_name() -> None:
    scrub = [{"pattern": r"run-(\w)\d+", "placeholder": r"run-\1"}]
    for tree, scrubbed in (
        ({"run-a1": ["run-a1", {"x": "see run-b22!"}]}, {"run-a1": ["run-a", {"x": "see run-b!"}]}),
        (["run-a1", 3, None], ["run-a", 3, None]),
    ):
        assert applied(tree, scrub=scrub) == scrubbed


@pytest.mark.parametrize(("pack", "text", "scrubbed"), [
    ("uuids", "id 0b5c3f4e-1111-4222-8333-444455556666.", "id [uuid]."),
    ("temp-paths", "in /tmp/tmpab12_cd3/x and /tmp/data", "in [temp-path]/x and /tmp/data"),
    ("temp-paths", "/private/var/folders/zz/abc123/T/tmpx/y", "[temp-path]/y"),
    ("temp-paths", "/tmp/pytest-of-me/pytest-12/test_a0", "/tmp/[temp-path]/test_a0"),
    ("coding-agents", "Working directory: /home/me/p\nx", "Working directory: [cwd]\nx"),
    ("coding-agents", "Today's date: 2026-01-02", "Today's date: [date]"),
    ("dates", "2024-05-01 and 10:00", "2024-05-01 and 10:00"),
    ("days", "2024-05-01 and 10:00; v2024-05-01", "[day] and 10:00; v2024-05-01"),
    ("days", "It is Thursday, January 1, 2026 10:33 PM, or 3 May 2026.", "It is [day], or [day]."),
    ("days", "Wed Mar 4 2026; May 5th; 14:00; March 2026", "[day]; May 5th; 14:00; March 2026"),
])  # fmt: skip
def test_packs_touch_only_what_is_certainly_volatile(pack: str, text: str, scrubbed: str) -> None:
    assert applied({"system": text}, packs=[pack]) == {"system": scrubbed}


def test_codex_environment_is_scrubbed_where_codex_puts_it() -> None:
    """In a user message, but only inside its own tags."""
    text = "<environment_context>\n  <cwd>/a</cwd>\n  <sandbox>on</sandbox>\n  <timezone>CET</timezone></environment_context><cwd>/b</cwd>"
    (turn,) = applied({"input": [{"role": "user", "content": text}]}, packs=["coding-agents"])["input"]  # type: ignore[index]
    assert turn["content"] == text.replace("/a", "[cwd]").replace("CET", "[timezone]")


def test_paths_are_steps() -> None:
    assert parse_json_path("$..a[0].b-c[*]['d e']") == (
        ("deep", "a"), ("index", 0), ("name", "b-c"), ("every", "*"), ("name", "d e"),
    )  # fmt: skip


MADE = {
    "resp_1": IdOrigin(Key("v1:a"), 1, 0), "msg_1": IdOrigin(Key("v1:a"), 1, 1), "call_s": IdOrigin(Key("v1:a"), 1, 2),
    "files/f1": IdOrigin(Key("v1:f"), 2, 0),
}  # fmt: skip


def walked(tree: dict[str, Any], shape: KeyObjectRules) -> tuple[dict[str, Any], list[str]]:
    walk = BodyMemberRuleApplier(MADE.get)
    walk.apply_shape(tree, shape)
    return tree, walk.refs


def made(by: str, ordinal: int, occurrence: int = 1) -> dict[str, object]:
    """Return what stands in the place of an id that an interaction made."""
    return {"made-by": by, "occurrence": occurrence, "ordinal": ordinal}


FILE = "https://generativelanguage.googleapis.com/v1beta/files/f1"
OTHERS = ["gs://bucket/files.pdf", "https://x.org/a/b.pdf"]
DATA: dict[str, Any] = {
    "id": "x",
    "tool_use_id": "x",
    "none": None,
    "cache_control": {},
    "content": [{"cache_control": 1}],
}


@pytest.mark.parametrize(("shape", "tree", "counts", "met"), [
    pytest.param(CHAT, {"messages": [
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"arguments": '{"b": 1.0}'}}, {"id": "y"}]},
        {"role": "tool", "tool_call_id": "y"}, {"role": "tool", "tool_call_id": "x"},
    ]}, {"messages": [
        {"role": "assistant", "tool_calls": [{"id": "call#1", "function": {"arguments": '{"b":1}'}}, {"id": "call#2"}]},
        {"role": "tool", "tool_call_id": "call#2"}, {"role": "tool", "tool_call_id": "call#1"},
    ]}, [], id="calls are renamed by first appearance, and results keep to them"),
    pytest.param(RESPONSES, {"previous_response_id": "resp_1", "input": [
        {"type": "function_call_output", "call_id": "call_s", "output": "1"},
        {"type": "function_call_output", "call_id": "call_unknown", "output": "2"},
    ]}, {"previous_response_id": made("v1:a", 0), "input": [
        {"type": "function_call_output", "call_id": made("v1:a", 2), "output": "1"},
        {"type": "function_call_output", "call_id": "call_unknown", "output": "2"},
    ]}, ["call_s", "call_unknown", "resp_1"], id="results of calls that only the server holds are not swapped unnoticed"),
    pytest.param(RESPONSES, {
        "conversation": {"id": "resp_1"}, "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["a", "b"]}}],
        "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "c"}]}],
    }, {"conversation": {"id": made("v1:a", 0)}}, ["a", "b", "c", "resp_1"], id="conversations, files and containers refer"),
    pytest.param(GENERATE, {"contents": [{"parts": [{"fileData": {"fileUri": uri}} for uri in (FILE, *OTHERS)]}]},
                 {"contents": [{"parts": [{"fileData": {"fileUri": uri}} for uri in (made("v1:f", 0, 2), *OTHERS)]}]}, [FILE],
                 id="an uploaded file's uri refers, others say which bytes are meant"),
    pytest.param(MESSAGES, {"messages": [{"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s1"}, {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "redacted_thinking", "data": "d"}]}]},
        {"messages": [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "*"}, {"type": "thinking", "thinking": "", "signature": "s2"},
            {"type": "redacted_thinking", "data": "d"}]}]}, [], id="a signature goes only where the thinking is there"),
    pytest.param(MESSAGES, {"messages": [{"content": [{"type": "tool_use", "id": "x", "input": DATA}]}]},
                 {"messages": [{"content": [{"type": "tool_use", "id": "call#1", "input": DATA}]}]}, [], id="inputs of anthropic are opaque"),
    pytest.param(CONVERSE, {"messages": [{"content": [{"toolUse": {"toolUseId": "x", "input": DATA}}]}]},
                 {"messages": [{"content": [{"toolUse": {"toolUseId": "call#1", "input": DATA}}]}]}, [], id="inputs of bedrock are opaque"),
    pytest.param(GENERATE, {"contents": [{"parts": [{"functionResponse": {"id": "x", "response": DATA}}]}]},
                 {"contents": [{"parts": [{"functionResponse": {"id": "x", "response": DATA}}]}]}, None, id="results of gemini are opaque"),
])  # fmt: skip
def test_ids_are_named_and_what_the_server_made_refers(
    shape: KeyObjectRules, tree: dict[str, Any], counts: dict[str, Any], met: list[str] | None
) -> None:
    """What is left of these members, and the references met."""
    walk, refs = walked(copy.deepcopy(tree), shape)
    assert {name: walk[name] for name in counts} == counts
    assert met is None or sorted(refs) == met


CALLS = [
    ("/v1/chat/completions", lambda name: {"messages": [{"role": "assistant", "tool_calls": [{"id": name, "function": {"name": "f"}}]}, {"role": "tool", "tool_call_id": name}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "function_call", "call_id": name, "name": "f"}, {"type": "function_call_output", "call_id": name}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "message", "id": name, "content": []}]}),
    ("/v1/responses", lambda name: {"input": [{"type": "reasoning", "id": name, "encrypted_content": "x"}]}),
    ("/v1/messages", lambda name: {"messages": [{"content": [{"type": "tool_use", "id": name, "input": {}}]}, {"content": [{"type": "tool_result", "tool_use_id": name}]}]}),
    ("/v1beta/models/g:generateContent", lambda name: {"contents": [{"parts": [{"functionCall": {"id": name, "name": "f"}}]}, {"parts": [{"functionResponse": {"id": name}}]}]}),
    ("/model/m/converse", lambda name: {"messages": [{"content": [{"toolUse": {"toolUseId": name}}]}, {"content": [{"toolResult": {"toolUseId": name}}]}]}),
]  # fmt: skip
"""A call and its result, in each place that gives an id a name."""


@pytest.mark.parametrize(("target", "body"), CALLS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_cannot_be_an_id_is_no_other_ids_request(target: str, body: Callable[[str], dict[str, Any]]) -> None:
    """Providers refuse an empty id, or one with spaces; so such a request has neither a right one's key nor another such one's."""
    where = route(target, ())

    def key(name: str) -> Key:
        request = Request("POST", where.target, (), json.dumps(body(name)).encode())
        return build_key(canonicalize_request(request, where, Rules(), lambda _: None))

    right = {key(each) for each in ("x", "call_9|fc_1", "functions.f:0", "call#1", "a" * 500)}
    odd = ["", " ", "call_9 ", "a b", "x\n", "ä", "\0", "call#1 "]
    assert len(right) == 1
    assert len(right | {key(each) for each in odd}) == 1 + len(odd)


@pytest.mark.parametrize(("item", "named"), [
    ({"type": "message", "id": "msg_9", "content": []}, "call#1"),
    ({"role": "user", "id": "msg_9"}, "call#1"),
    ({"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}, "call#1"),
    ({"type": "reasoning", "id": "rs_1", "summary": []}, "rs_1"),
    ({"type": "item_reference", "id": "rs_1"}, "rs_1"),
    ({"type": "item_reference", "id": "msg_1"}, {"made-by": "v1:a", "occurrence": 1, "ordinal": 1}),
    ({"id": "rs_1"}, "rs_1"),
    ({"type": None, "id": "rs_1", "status": "completed"}, "rs_1"),
    ({"type": "message", "id": "rs_1"}, "rs_1"),
    ({"type": "image_generation_call", "id": "ig_1"}, "ig_1"),
    ({"type": "image_generation_call", "id": "ig_1", "result": "AAAA"}, "call#1"),
])  # fmt: skip
def test_echoed_items_are_named_and_bare_ones_refer(item: dict[str, Any], named: object) -> None:
    """An item without its content is only a name for the server's copy."""
    tree, refs = walked({"input": [dict(item)]}, RESPONSES)
    assert tree["input"][0]["id"] == named
    assert refs == ([] if named == "call#1" else [item["id"]])


@pytest.mark.parametrize("odd", [None, 1, "text", [], [1, None, "x"], {"type": 5}, [[{"id": "x"}]]])
@pytest.mark.parametrize(
    "shape",
    [CHAT, RESPONSES, MESSAGES, GENERATE, CONVERSE],
    ids=["chat", "responses", "messages", "generate", "converse"],
)
def test_odd_bodies_are_no_error(shape: KeyObjectRules, odd: object) -> None:
    """What does not have the expected form counts as it is."""
    names = set(shape.members) | {"messages"}
    walked(dict.fromkeys(names, odd), shape)
    walked({name: [{"content": odd, "type": odd, "id": odd, "parts": odd, "tool_calls": odd}] for name in names}, shape)
