"""Which fault strikes: rules in order, words, numbers, chance that depends on the call alone."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.engine.fault_injection import explain_unused_fault_rules
from llmproxy.core.faults.kinds import KINDS, split_after_nth_chunk, split_answer_into_timed_pieces, split_events
from llmproxy.core.faults.parsing import PRESETS, BadFaults, load_faults, read_faults
from llmproxy.core.faults.rules import FaultInjector, choose_faults_for_call, draw_seeded_random_number
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.core.faults.cases import answer, call


def first(rules: object, **given: Any) -> str:
    """Return the kind that strikes a call first; empty if none does."""
    found = next(choose_faults_for_call(read_faults(rules), call(**given), injected=0, numbers={}), None)
    return "" if found is None else found.kind.name


MCP = {"channel": "mcp", "operation": "mcp:tools/call send", "tools": lambda: ("send",)}


def test_texts_of_every_kind_are_whole() -> None:
    """They stand in sentences of ours: none ends in a blank, a comma or a word that asks for another."""
    texts = [text for kind in KINDS.values() for text in (kind.about, kind.sound, *(each.about for each in kind.takes))]
    assert [each for each in texts if not each or each.split()[-1] in {"a", "the"}] == []
    assert [each for each in texts if not (each[-1].isalnum() or each[-1] in ")_`")] == []


@pytest.mark.parametrize(("words", "met", "spared"), [
    ({"provider": "openai"}, {}, {"provider": "anthropic"}),
    ({"model": "gpt-4o*"}, {"model": "gpt-4o-mini"}, {"model": "o3"}),
    ({"model": ["o3", "o4-mini"]}, {"model": "o3"}, {"model": "o4"}),
    ({"operation": "chat.*"}, {}, {"operation": "embeddings"}),
    ({"party": "judge*"}, {"party": "judge.2"}, {}),
    ({}, {}, {"party": "user"}),
    ({"party": "*"}, {"party": "user"}, MCP),
    ({"channel": "mcp"}, MCP, {}),
    ({"channel": "mcp"}, MCP, MCP | {"operation": "mcp:tools/list"}),
    ({"channel": "mcp", "operation": "mcp:tools/list"}, MCP | {"operation": "mcp:tools/list"}, MCP),
    ({"channel": "mcp", "tool": "se*"}, MCP, MCP | {"tools": lambda: ("find",)}),
    ({"channel": "mcp"}, MCP, MCP | {"transport": "stdio"}),
    ({"channel": "http"}, {"channel": "http"}, {}),
    ({"transport": "websocket"}, {"transport": "websocket"}, {}),
    ({"recording": [7, 8]}, {"recording": 8}, {"recording": None}),
    ({"tool": "get_*"}, {"tools": lambda: ("get_weather",)}, {"tools": lambda: ("send",)}),
])  # fmt: skip
def test_a_rule_chooses_by_its_words(
    words: dict[str, object], met: dict[str, object], spared: dict[str, object]
) -> None:
    """Each word lets through what it means, and nothing else; without a word it is the agent, no tool's server, and of MCP a call of a tool."""
    assert first([{"kind": "reset", **words}], **met) == "reset"
    assert first([{"kind": "reset", **words}], **spared) == ""


def test_the_first_rule_that_strikes_counts() -> None:
    assert first(["http-500", {"kind": "reset"}]) == "http-500"
    assert first([{"kind": "http-500", "probability": 0}, "reset"]) == "reset"
    assert first([{"kind": "http-500", "model": "o3"}, {"kind": "reset"}]) == "reset"


def drawn(seed: int, session: str = "default") -> list[bool]:
    """Return which of a hundred calls meet a fault of probability one half."""
    walk = FaultInjector(read_faults({"seed": seed, "faults": [{"kind": "reset", "probability": 0.5}]}))
    return [walk.inject_fault(call(key=f"v2:{n}", session=session)) is not None for n in range(100)]


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    """Chance comes from seed, session, key and occurrence; about half of the calls are struck."""
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != drawn(1, "other")
    assert 30 < sum(drawn(1)) < 70


def test_the_order_of_arrival_does_not_matter_to_chance() -> None:
    """In parallel the same calls are struck as one after the other."""
    walk = FaultInjector(read_faults({"faults": [{"kind": "reset", "probability": 0.5}]}))
    with ThreadPoolExecutor(8) as pool:
        injected = list(pool.map(lambda n: walk.inject_fault(call(key=f"v2:{n}")) is not None, reversed(range(100))))
    assert injected[::-1] == drawn(0)


def test_another_process_draws_the_same() -> None:
    """Nothing of this process is in it: no hash of strings, no random state, no clock. So it was drawn by another one."""
    assert draw_seeded_random_number(7, call(), 3, 1) == 0.05009967311282586


@pytest.mark.parametrize(("rules", "came", "struck"), [
    pytest.param(["reset@2"], "a a b b c", {2: "reset"}, id="a retry is the call that it retries"),
    pytest.param(["reset@1", "http-500@2"], "a a b c", {0: "reset", 2: "http-500"}, id="a call has its number whatever other rules do"),
    pytest.param([{"kind": "reset", "times": 2}, {"kind": "http-500", "times": 2}], "a a a a a2", {0: "reset", 1: "reset", 4: "reset"},
                 id="times is of all rules together, and of one request"),
    pytest.param([{"kind": "reset", "times": "always"}], "a " * 50, dict.fromkeys(range(50), "reset"), id="always"),
    pytest.param([{"kind": "reset", "call": 1, "provider": "gpu-box"}], "a", {}, id="a provider of the user's own may be named"),
])  # fmt: skip
def test_rules_strike_requests_and_let_retries_through(rules: object, came: str, struck: dict[int, str]) -> None:
    """Which of the calls that came meets which kind; a2 is the second occurrence of a."""
    walk = FaultInjector(read_faults(rules))
    found = [walk.inject_fault(call(key=each[0], nth=int(each[1:] or 1))) for each in came.split()]
    assert {n: each.fault.kind.name for n, each in enumerate(found) if each} == struck


def test_a_restart_meets_the_same_faults_again() -> None:
    """The second run of the same agent against one proxy has the same day."""
    walk = FaultInjector(read_faults({"seed": 3, "faults": [{"kind": "reset", "probability": 0.5}]}))
    first_run = [walk.inject_fault(call(key=str(n))) is not None for n in range(40)]
    walk.restart()
    assert [walk.inject_fault(call(key=str(n))) is not None for n in range(40)] == first_run
    assert walk.injected[1] == 2 * sum(first_run)


RECORDED = [
    call(key="a", recording=1, answer=lambda: answer(b"{}"), tools=lambda: ("get_weather",)),
    call(key="b", recording=2, model="o3", answer=lambda: answer(b"{}")),
]


@pytest.mark.parametrize(("rule", "said"), [
    ({"model": "gpt-5"}, "no recording has model gpt-5; there is gpt-4o, o3"),
    ({"tool": "send"}, "no recording has tool send; there is get_weather"),
    ({"provider": "anthropic"}, "no recording has provider anthropic; there is openai"),
    ({"transport": "websocket"}, "no recording has transport websocket; there is http"),
    ({"channel": "http"}, "no recording has channel http; there is llm"),
    ({"recording": 9}, "there is no recording #9 in this cassette"),
    ({"model": "o3", "tool": "get_weather"}, "no recording is chosen by all of its words together"),
    ({"call": 7}, "no call came that is its number 7"),
    ({"probability": 0.1}, "a probability of 0.1 spared every call that came"),
    ({}, "none of the calls that it chooses came"),
])  # fmt: skip
def test_why_it_struck_nothing(rule: dict[str, Any], said: str) -> None:
    """The first word that chooses nothing is named, with what there is."""
    text = explain_unused_fault_rules(read_faults([{"kind": "reset", **rule}]), {}, RECORDED, came=2)[1]
    assert text.startswith("fault reset (rule 1) met no call: ")
    assert said in text


def test_what_struck_is_not_told() -> None:
    """Only rules that did nothing are; without a call, or a recording, that is why."""
    faults = read_faults(["reset", "http-500"])
    assert len(explain_unused_fault_rules(faults, {1: 3}, RECORDED, came=3)) == 1
    assert "no call came" in explain_unused_fault_rules(faults, {}, RECORDED, came=0)[1]
    nothing = "nothing is recorded to compare it with; hosts that are no model provider's"
    assert nothing in explain_unused_fault_rules(faults, {}, [], came=1)[1]


def test_of_a_preset_only_what_the_recording_could_have_met_is_told() -> None:
    """Nobody chose its rule for servers of tools, where none is recorded."""
    faults = load_faults("flaky-network", Path())
    told = explain_unused_fault_rules(faults, {}, RECORDED, came=2)
    assert len(told) == len(faults.rules) - 1
    assert not [line for line in told.values() if "mcp" in line]


SSE = b"data: 1\n\ndata: 2\r\n\r\ndata: [DONE]\n\n"
FRAME = struct.pack(">III", 20, 0, 0) + b"abcd" + b"\0\0\0\0"


@pytest.mark.parametrize(("kind", "body", "parts"), [
    ("text/event-stream", SSE, [b"data: 1\n\n", b"data: 2\r\n\r\n", b"data: [DONE]\n\n"]),
    ("text/event-stream", b"data: 1\n\ndata: unfin", [b"data: 1\n\n", b"data: unfin"]),
    ("application/x-ndjson", b"{}\n[]\n", [b"{}\n", b"[]\n"]),
    ("application/vnd.amazon.eventstream", FRAME + FRAME, [FRAME, FRAME]),
    ("application/vnd.amazon.eventstream", b"\0" * 30, [b"\0" * 30]),
    ("application/json", b'{"a": 1}', [b'{"a": 1}']),
    ("application/json", b"", []),
])  # fmt: skip
def test_pieces_joined_are_the_body(kind: str, body: bytes, parts: list[bytes]) -> None:
    """Events with their framing; of anything else the whole."""
    assert split_events(kind, body) == parts
    assert b"".join(split_events(kind, body)) == body


def test_a_piece_is_due_when_its_last_byte_came() -> None:
    """Whatever borders the network put; at speed 0 at once."""
    chunks = (Chunk(10, SSE[:4]), Chunk(20, SSE[4:12]), Chunk(40, SSE[12:]))
    response = Response(200, "OK", (("content-type", "text/event-stream"),), chunks)
    assert [each.offset for each in split_answer_into_timed_pieces(response, 1)] == [20, 40, 40]
    assert [each.offset for each in split_answer_into_timed_pieces(response, 2)] == [10, 20, 20]
    assert [each.offset for each in split_answer_into_timed_pieces(response, 0)] == [0, 0, 0]


def test_what_comes_before_a_break_is_never_the_whole() -> None:
    """With too few pieces the last one is cut in two."""
    pieces = split_answer_into_timed_pieces(answer(SSE, "text/event-stream"), 0)
    assert [len(part) for part in split_after_nth_chunk(pieces, 1)] == [1, 2]
    sent, left = split_after_nth_chunk(pieces, 9)
    assert b"".join(each.data for each in (*sent, *left)) == SSE
    assert left[-1].data
    assert split_after_nth_chunk([], 1) == ([], [])


@pytest.mark.parametrize("name", [*KINDS, *PRESETS])
def test_every_kind_and_preset_goes_by_its_name(name: str, tmp_path: Path) -> None:
    """And comes back the same from what it says of itself; in short with a call."""
    found = load_faults(name, tmp_path)
    assert found.rules
    assert read_faults(found.to_json()).rules == found.rules
    if name in KINDS:
        assert load_faults(f"{name}@3", tmp_path).rules == read_faults([{"kind": name, "call": 3}]).rules


def test_a_file_in_every_form(tmp_path: Path) -> None:
    """A mapping, a list, one rule; YAML or JSON; the seed of the flag counts above the file's."""
    path = tmp_path / "f.yaml"
    for text in ("seed: 7\nfaults: [{kind: reset}]", "[{kind: reset}]", "kind: reset", '{"faults": ["reset"]}'):
        path.write_text(text)
        assert [rule.kind.name for rule in load_faults("f.yaml", tmp_path).rules] == ["reset"]
    path.write_text("seed: 7\nfaults: [reset]")
    assert load_faults("f.yaml", tmp_path).seed == 7
    assert load_faults("f.yaml", tmp_path, seed=8).seed == 8


@pytest.mark.parametrize(("asked", "said"), [
    ("http-428", "did you mean 'http-429'"),
    ("rate-limit", "did you mean 'rate-limited'"),
    ("xyzzy", "is no preset, no kind and no file"),
    ("resett@3", "there is no kind 'resett' of fault; did you mean 'reset'"),
    ("sweep", "llmproxy run --faults sweep"),
    ("nowhere.yaml", "cannot read nowhere.yaml: No such file"),
    (".", "is no preset, no kind and no file"),
])  # fmt: skip
def test_what_is_no_fault_is_refused_with_what_is_near(asked: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFaults) as caught:
        load_faults(asked, tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [
    ("faults: [", "f.yaml:2:1: this is no YAML"),
    ("faults:\n\t- a", "f.yaml:2:1: this line is indented with a tab"),
    ("just words", "there is no kind 'just words'"),
    ("", "f.yaml:1:1: the file is empty"),
    ("42", "no list of `faults`, but 42"),
    ("rules: []", "no list of `faults`"),
    ("faults: reset", "`faults` is 'reset'; it is a list"),
    ("faults: [{}]", "names no `kind`"),
    ("faults: []", "holds no rule, so no call would meet a fault"),
    ("[]", "holds no rule"),
    (f"faults: [{'reset, ' * 1001}reset]", "1002 rules; at most 1000 are read"),
    ("faults: [{kind: reset-after, chunk: -1}]", "it is a whole number from 0 to 1048576"),
    ("faults: [{kind: [a]}]", "no kind a list of fault"),
    ("faults: [{kind: reset, cal: 3}]", "unknown member 'cal'; did you mean 'call'"),
    ("faults: [{kind: reset, retry_after: 3}]", "unknown member 'retry_after'"),
    ("faults: [{kind: http-429, retry_after: soon}]", "retry_after is 'soon'; it is a number from 0 to 3600"),
    ("faults: [{kind: http-429, retry_after: .nan}]", "retry_after is nan"),
    ("faults: [{kind: reset, probability: 2}]", "probability is 2"),
    ("faults: [{kind: reset, call: 0}]", "call is 0"),
    ("faults: [{kind: reset, call: true}]", "call is True"),
    ("faults: [{kind: reset, model: 4}]", "model is 4; it is a text"),
    ("faults: [{kind: reset, times: 0}]", "times is 0"),
    ("faults: [{kind: reset, provider: opnai}]", "no provider 'opnai'; did you mean 'openai'"),
    ("faults: [{kind: reset, channel: htpp}]", "no channel 'htpp'; did you mean 'http'"),
    ("faults: [{kind: reset, channel: websocket}]", "no channel 'websocket'; did you mean transport: websocket"),
    ("faults: [{kind: reset, transport: stdoi}]", "no transport 'stdoi'; did you mean 'stdio'"),
    (
        "faults: [{kind: reset, transport: stdio}]",
        "reset meets no call whose transport is stdio, only http and websocket",
    ),
    ("faults: [{kind: mcp-error, channel: llm}]", "mcp-error meets no call whose channel is llm, only mcp"),
    ("faults: [reset]\nsed: 1", "unknown member 'sed'; did you mean 'seed'"),
    ("faults: [reset]\nseed: x", "seed is 'x'; it is a whole number"),
    ("faults: [{kind: reset-after, chunk: 1.5}]", "chunk is 1.5; it is a whole number"),
    ("a: !!python/object:os.system x", "f.yaml:1:4: the tag !!python/object:os.system is not known"),
    ("[" * 5000, "nested more than 64 deep"),
    ("faults: [2024-99-99]", "no kind '2024-99-99'"),
    ("faults: [{kind: reset, call: 1, call: 2}]", "f.yaml:1:33: `call` stands here twice, first at line 1, column 24"),
])  # fmt: skip
def test_a_file_that_cannot_be_meant_says_where_and_why(text: str, said: str, tmp_path: Path) -> None:
    """With the file's name, the rule's number and what would be right."""
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(BadFaults) as caught:
        load_faults("f.yaml", tmp_path)
    assert said in str(caught.value)
    assert "f.yaml" in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"faults: \xff")
    with pytest.raises(BadFaults, match="is no text: byte 8 is not UTF-8"):
        load_faults("f.yaml", tmp_path)
