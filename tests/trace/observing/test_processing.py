"""What an agent did to its history: told with its evidence, and never guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmproxy.core.traffic.interaction import Chunk
from llmproxy.trace.observing.history_edits import (
    HistoryEditFindings,
    HistoryProcessing,
    explain_unobservable_history,
    find_history_cuts,
    read_provider_edits_from_answer,
)
from tests.support.messages import asks, call, result, said, user
from tests.support.narrowing import known
from tests.trace.observing.chats import Chats
from tests.trace.runs import decoded

SYSTEM = {"role": "system", "content": "You manage tasks."}
CREATE = call("createTask", {"title": "Buy milk"})
TURN_1 = [SYSTEM, user("Buy milk, please"), said("I created the task Buy milk.")]
TURN_2 = [*TURN_1, user("And bread, please"), said("I created the task Buy bread.")]


def two_turns() -> Chats:
    """Two turns of an agent that sends its whole history."""
    chats = Chats()
    chats.chat(TURN_1[:-1], TURN_1[-1])
    chats.chat(TURN_2[:-1], TURN_2[-1])
    return chats


def third(chats: Chats, *messages: dict[str, Any], spoken: Sequence[str] = (), **more: Any) -> HistoryEditFindings:
    """Return what the next turn shows, in which these messages are sent."""
    chats.chat(list(messages), said("Both are on your list."), **more)
    wire = chats.wire
    step = wire.build_step(len(chats.calls) - 1)
    return find_history_cuts(step, wire.calls[:-1], continues=True, spoken=spoken)


def verdict(finding: HistoryProcessing) -> tuple[bool | None, str]:
    return finding.activated, finding.evidence


NOW = user("What is on my list?")


LONG = "Here are the documents that may help you, retrieved for this question, at "


def test_a_whole_history_shows_that_nothing_happened() -> None:
    """Every message is there, in every request; text that is rendered anew with each (a clock) is an edit, and no loss."""
    clock = Chats()
    clock.chat([SYSTEM, user(LONG + "10:31")], said("Created."))
    rendered = third(clock, SYSTEM, user(LONG + "10:32"), said("Created."), NOW)
    for found in (third(two_turns(), *TURN_2, NOW), rendered):
        assert {verdict(each) for each in (found.condenser, found.pruner, found.tokenLimiter)} == {(False, "proven")}


def test_a_summary_that_a_call_wrote_is_a_proven_condenser() -> None:
    """Messages are missing, and what stands in their place is the output of an earlier call that was told them."""
    chats = two_turns()
    summary = "The user had two tasks created: Buy milk and Buy bread."
    asked = "Summarize:\nuser: Buy milk, please\nassistant: I created the task Buy milk.\nuser: And bread, please"
    chats.chat([user(asked)], said(summary), tools=())
    found = third(chats, SYSTEM, user(f"Here is a summary of the conversation to date:\n\n{summary}"), NOW)
    assert verdict(found.condenser) == (True, "proven")
    assert found.condenser.values == {"condensedMessages": 4, "recentMessages": 0, "totalMessages": 5}
    assert found.condenser.summaries is not None
    assert summary in found.condenser.summaries[0]


@pytest.mark.parametrize("where", ["message", "system"])
def test_recent_messages_are_those_behind_the_gap(where: str) -> None:
    """Some of four are condensed, the rest is kept; some write the summary into the system prompt."""
    chats, summary = two_turns(), "Milk was added to the list."
    chats.chat([user("Summarize: Buy milk, please ...")], said(summary), tools=())
    system = {"role": "system", "content": f"You manage tasks.\nSo far: {summary}"}
    before = [SYSTEM, user(f"Summary: {summary}")] if where == "message" else [system]
    found = third(chats, *before, TURN_2[3], TURN_2[4], NOW)
    assert verdict(found.condenser) == (True, "proven")
    assert found.condenser.values == {"condensedMessages": 2, "recentMessages": 2, "totalMessages": 5}


def test_a_summary_that_nobody_wrote_is_inferred() -> None:
    """It may be built without a model; that is less than a proof."""
    found = third(two_turns(), SYSTEM, user("Entities: Buy milk"), TURN_2[3], TURN_2[4], NOW)
    assert verdict(found.condenser) == (True, "inferred")
    assert verdict(found.pruner) == (False, "proven") or found.pruner.activated is False


def tool_turn() -> tuple[Chats, list[dict[str, Any]]]:
    """A turn with a tool call, and the history after it."""
    chats = Chats()
    chats.chat([SYSTEM, user("Buy milk, please")], asks(CREATE))
    history = [SYSTEM, user("Buy milk, please"), asks(CREATE), result("a long result of a tool, 200 words")]
    chats.chat(history, said("Created."))
    return chats, [*history, said("Created.")]


def test_tool_messages_that_are_gone_or_shorter_are_pruned() -> None:
    """The conversation stays, its tool calls and results do not; or a placeholder stands for a result."""
    chats, history = tool_turn()
    found = third(chats, SYSTEM, history[1], history[4], NOW)
    assert (verdict(found.pruner), found.pruner.values) == ((True, "proven"), {"partsRemoved": 2})
    assert verdict(found.condenser) == (False, "proven")
    chats, history = tool_turn()
    found = third(chats, *history[:3], result("[cleared]"), history[4], NOW)
    assert (verdict(found.pruner), found.pruner.values) == ((True, "proven"), {"partsRemoved": 1})


def test_a_missing_head_is_a_token_limiter() -> None:
    """One that sent its whole history before sends its end only; of one that never sent a history nothing can be told."""
    found = third(two_turns(), SYSTEM, TURN_2[3], TURN_2[4], NOW)
    assert verdict(found.tokenLimiter) == (True, "proven")
    assert found.tokenLimiter.values == {"droppedMessages": 2}
    chats = Chats()
    chats.chat([SYSTEM, user("Buy milk, please")], said("Created."))
    found = third(chats, SYSTEM, NOW)
    assert {verdict(each) for each in (found.condenser, found.pruner, found.tokenLimiter)} == {(None, "unobservable")}
    assert "shares no message" in found.condenser.reason


def test_a_sub_agent_has_a_history_of_its_own() -> None:
    """Other tools, another prompt: its first request loses nothing."""
    chats = two_turns()
    chats.chat([*TURN_2, NOW], asks(call("research", {"q": "x"})))
    chats.chat([{"role": "system", "content": "Research."}, user("x")], said("found"), tools=("search",))
    wire = chats.wire
    found = find_history_cuts(wire.build_step(2), wire.calls[:2], continues=True)
    assert verdict(found.condenser) == (False, "proven")


def test_history_that_the_provider_keeps_is_unobservable() -> None:
    """What is not in the request, began elsewhere or passed through cannot be looked at, and that is not a pass."""
    chats = Chats()
    output = {"object": "response", "id": "resp_1", "output": []}
    chats.add("openai", "responses", "/v1/responses", {"input": "x", "previous_response_id": "resp_0"}, output)
    found = find_history_cuts(chats.wire.build_step(0))
    assert verdict(found.condenser) == (None, "unobservable")
    assert "previous_response_id" in found.condenser.reason
    for each in (([*TURN_1, NOW], True), ([NOW], False), None):
        chats = Chats()
        if each is not None:
            chats.chat(each[0], said("ok"), recorded=each[1])
        found = find_history_cuts(chats.wire.build_step(0))
        assert verdict(found.condenser) == verdict(found.pruner) == (None, "unobservable")


@pytest.mark.parametrize("kind", ["clear_tool_uses_20250919", "clear_thinking_20251015"])
def test_a_provider_that_clears_says_so(kind: str) -> None:
    """Anthropic's context editing is declared in the answer."""
    chats = Chats()
    member = "cleared_tool_uses" if "tool" in kind else "cleared_thinking_turns"
    edits = {"applied_edits": [{"type": kind, member: 3, "cleared_input_tokens": 900}]}
    answer = {
        "type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}], "context_management": edits,
    }  # fmt: skip
    chats.add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, answer)
    found = find_history_cuts(chats.wire.build_step(0))
    assert (verdict(found.pruner), found.pruner.values) == ((True, "declared"), {"partsRemoved": 3})


def test_compaction_is_declared_and_its_summary_read_where_it_can_be() -> None:
    """Anthropic's is text; OpenAI's is encrypted, so what it says is unobservable."""
    anthropic, openai = Chats(), Chats()
    block = {"type": "compaction", "content": "Tasks were created."}
    answer = {"type": "message", "role": "assistant", "content": [block, {"type": "text", "text": "x"}]}
    anthropic.add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, answer)
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
    openai.add("openai", "responses", "/v1/responses", {"input": "x"}, {"object": "response", "output": [item]})
    first, second = (
        find_history_cuts(anthropic.wire.build_step(0)).condenser,
        find_history_cuts(openai.wire.build_step(0)).condenser,
    )
    assert (verdict(first), first.summaries) == ((True, "declared"), ["Tasks were created."])
    assert (verdict(second), second.summaries) == ((True, "declared"), None)
    assert json.dumps(first.values) == '{"condensedMessages": null, "recentMessages": null, "totalMessages": null}'


def test_the_same_words_in_a_new_conversation_are_no_loss() -> None:
    """Seen in recorded traffic: a conversation that begins as an earlier one carries nothing of it, and drops nothing."""
    chats = two_turns()
    chats.chat(TURN_1[:-1], TURN_1[-1])
    wire = chats.wire
    found = find_history_cuts(wire.build_step(2), wire.calls[:2])
    assert {verdict(each) for each in (found.condenser, found.pruner, found.tokenLimiter)} == {(False, "proven")}
    going_on = find_history_cuts(wire.build_step(2), wire.calls[:2], continues=True)
    assert verdict(going_on.tokenLimiter) == (True, "proven")


DEMAND = "Summarize all of this for yourself."


@pytest.mark.parametrize(("kept", "spoken", "evidence"), [
    (2, [], "proven"),
    (0, [], "inferred"),
    (0, ["Buy milk, please", "And bread, please", "What is on my list?"], "proven"),
    (0, ["Buy milk, please", f"Please! {DEMAND}"], "inferred"),
])  # fmt: skip
def test_a_summary_call_that_looks_like_the_rest_is_no_turn(kept: int, spoken: list[str], evidence: str) -> None:
    """An agent that asks for the summary in the conversation itself: neither the demand nor the summary was condensed.

    Where nothing is kept, it may have been the user who asked for it and went on with it: that is proven only where it
    is known that no user said so.
    """
    chats = two_turns()
    summary = "Milk was added to the list."
    chats.chat([*TURN_2, user(DEMAND)], said(summary))
    found = third(chats, SYSTEM, user(f"Summary: {summary}"), *(TURN_2[-kept:] if kept else ()), NOW, spoken=spoken)
    assert verdict(found.condenser) == (True, evidence)
    assert found.condenser.values == {"condensedMessages": 4 - kept, "recentMessages": kept, "totalMessages": 5}


def test_of_several_conversations_the_one_that_was_summarized_lost_its_messages() -> None:
    """Nothing is kept of it; the summary's own request tells which it was."""
    chats = two_turns()
    other = [SYSTEM, user("Something else entirely, please")]
    chats.chat(other, said("Certainly not, never."))
    history = "\n".join(str(each["content"]) for each in TURN_2[1:])
    chats.chat([user(f"Summarize: {history}")], said("Milk was added to the list."), tools=())
    found = third(chats, SYSTEM, user("Summary: Milk was added to the list."), NOW)
    assert verdict(found.condenser) == (True, "proven")
    assert found.condenser.values["condensedMessages"] == 4


def test_in_a_conversation_that_repeats_itself_it_is_not_known_what_was_kept() -> None:
    """Two messages are gone; whether the first two or the next two, the same are left."""
    chats = Chats()
    again = [user("go on"), said("ok")]
    history = [SYSTEM, *again, *again]
    chats.chat([SYSTEM, again[0]], again[1])
    chats.chat(history[:-1], history[-1])
    chats.chat([user("Summarize: go on, ok")], said("They went on."), tools=())
    found = third(chats, {**SYSTEM, "content": "You manage tasks.\n\nThey went on."}, *again, again[0])
    assert verdict(found.condenser) == (True, "proven")
    assert found.condenser.values == {"condensedMessages": 2, "recentMessages": None, "totalMessages": 5}
    assert "which of them stayed is not known" in found.condenser.reason


def test_who_wrote_the_last_summary_is_no_turn_of_the_conversation() -> None:
    """A second summary, in a conversation of equal words: it stands for what came since the first, not for what that stood for."""
    chats = Chats()
    go, ok, demand = user("go on"), said("ok"), user("Summarize all of this.")
    first, second = "They went on once.", "They went on twice, and it was fine."
    chats.chat([SYSTEM, go], ok)
    chats.chat([SYSTEM, go, ok, go], ok)
    chats.chat([SYSTEM, go, ok, go, ok, demand], said(first))
    chats.chat([SYSTEM, user(f"Summary: {first}"), go], ok)
    chats.chat([SYSTEM, user(f"Summary: {first}"), go, ok, demand], said(second))
    found = third(chats, SYSTEM, user(f"Summary: {second}"), go)
    assert found.condenser.activated is True
    assert found.condenser.values == {"condensedMessages": 3, "recentMessages": 0, "totalMessages": 4}


def test_a_request_goes_on_from_one_with_the_same_summary() -> None:
    """Not from an older one in the same words, from which messages would seem to be missing."""
    chats = Chats()
    go, ok, summary = user("go on"), said("ok"), "They went on for long."
    long = [go, said("let me see"), user("what?"), said("it is so"), go, ok]
    later = {**SYSTEM, "content": f"You manage tasks. It is 9 o'clock.\n\n{summary}"}
    chats.chat([SYSTEM, *long[:-1]], ok)
    chats.chat([SYSTEM, *long, user("Summarize all of this.")], said(summary))
    chats.chat([{**SYSTEM, "content": f"You manage tasks.\n\n{summary}"}, go], ok)
    found = third(chats, later, go, ok, go)
    assert verdict(found.condenser) == (False, "proven")


@pytest.mark.parametrize(("once", "twice"), [("once", "twice"), ("in 2 messages", "in 12 messages")])
def test_a_summary_that_is_much_like_the_one_before_is_no_edit_of_it(once: str, twice: str) -> None:
    """What followed the old one is gone with it: nobody dropped that."""
    chats = Chats()
    long = "They spoke of bread and butter and milk and honey and apples and of the price of salt in the town of Ulm"
    old, new = f"{long}, {once}.", f"{long}, {twice}."
    history = [SYSTEM, user(f"Earlier: {old}"), user("Buy milk"), said("Milk is bought."), user("And bread")]
    chats.chat([SYSTEM, user("Buy salt")], said("Salt is bought."))
    chats.chat([user("Summarize: Buy salt\nSalt is bought.")], said(old), tools=())
    chats.chat(history, said("Bread is bought."))
    chats.chat([user(f"Summarize: {old}\nBuy milk\nMilk is bought.")], said(new), tools=())
    found = third(chats, SYSTEM, user(f"Earlier: {new}"), user("And bread"), said("Bread is bought."), NOW)
    assert verdict(found.condenser) == (True, "proven")
    assert verdict(found.tokenLimiter) == (False, "proven")
    assert found.condenser.values == {"condensedMessages": 3, "recentMessages": 2, "totalMessages": 6}


def test_a_streamed_edit_is_found() -> None:
    """Anthropic tells it in the last events of a stream."""
    made = known(Chats().add("anthropic", "messages", "/v1/messages", {"messages": [user("x")]}, {})[1])
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "So far: milk."}},
        {"type": "message_delta", "delta": {}, "context_management": {"applied_edits": [edit]}},
    ]
    data = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events).encode()
    headers = (("content-type", "text/event-stream"),)
    streamed = replace(made, response=replace(made.response, headers=headers, chunks=(Chunk(0, data),)))
    found = {each.processor: each for each in read_provider_edits_from_answer(decoded(streamed))}
    assert found["pruner"].values == {"partsRemoved": 2}
    assert found["condenser"].summaries == ["So far: milk."]


def test_histories_that_the_provider_keeps() -> None:
    """An earlier answer named by its id, or a conversation; silence is no declaration."""
    for member in ({"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}, {"truncation": "auto"}):
        _, made = Chats().add("openai", "responses", "/v1/responses", {"input": "x"} | member, {"output": []})
        assert explain_unobservable_history(decoded(made)), member
    _, made = Chats().add(
        "openai", "responses", "/v1/responses", {"input": "x", "truncation": "disabled"}, {"output": []}
    )
    assert explain_unobservable_history(decoded(made)) == ""
    _, made = Chats().chat([user("x")], {"role": "assistant", "content": "y"})
    assert list(read_provider_edits_from_answer(decoded(made))) == []
