"""A result belongs to the call that the request itself says it is for; ids and names alone tell little."""

from __future__ import annotations

from typing import Any

from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.chats import Chats


def outputs(chats: Chats) -> list[tuple[Any, str | None]]:
    """Return each call's argument, and what it returned."""
    return [(tool.arguments.get("n"), tool.output) for tool in chats.wire.build_step(0).tools]


def test_ids_that_come_again_belong_to_the_latest_answer() -> None:
    """A server numbers the calls of each answer anew, and the first was never run."""
    chats = Chats()
    first, second = asks(call("f", {"n": 1}, "c0")), asks(call("f", {"n": 2}, "c0"))
    chats.chat([user("a")], first)
    chats.chat([user("a"), first, user("b")], second)
    chats.chat([user("a"), first, user("b"), second, result("two", "c0")], said("done"))
    assert outputs(chats) == [(1, None), (2, "two")]


def test_a_result_in_the_history_is_not_given_to_a_later_call() -> None:
    """The same call with the same id once more: what is repeated from before is not its result."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    history = [user("a"), ask, result("one", "c0"), said("ok"), user("b"), ask]
    chats.chat(history[:1], ask)
    chats.chat(history[:3], said("ok"))
    chats.chat(history[:5], ask)
    chats.chat([*history, user("never mind")], said("fine"))
    assert outputs(chats) == [(1, "one"), (1, None)]


def test_parallel_calls_of_one_name_without_ids_have_their_own_results() -> None:
    chats = Chats()
    parts = [{"functionCall": {"name": "f", "args": {"n": n}}} for n in (1, 2)]
    answers = [{"functionResponse": {"name": "f", "response": {"said": n}}} for n in (1, 2)]
    asked: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "x"}]}]
    path = "/v1beta/models/m:generateContent"
    value = {"candidates": [{"content": {"role": "model", "parts": parts}}]}
    chats.add("gemini", "generateContent", path, {"contents": asked}, value)
    more = [*asked, {"role": "model", "parts": parts}, {"role": "user", "parts": answers}]
    done = {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}}]}
    chats.add("gemini", "generateContent", path, {"contents": more}, done)
    assert outputs(chats) == [(1, '{"said": 1}'), (2, '{"said": 2}')]


def test_a_request_that_is_sent_again_brings_nothing_new() -> None:
    """Its results were heard the first time; another call like theirs still waits."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    chats.chat([user("a")], ask)
    chats.chat([user("a"), ask, result("one", "c0")], ask)
    chats.chat([user("a"), ask, result("one", "c0")], said("ok"))
    assert outputs(chats) == [(1, "one"), (1, None)]


def test_each_call_may_be_a_message_of_its_own() -> None:
    """As OpenAI's responses have it: the results of one answer's calls go to them, and to no other call with the same id."""
    chats = Chats()
    calls = [_call("f", 1, "c0"), _call("g", 2, "c1")]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": text} for n, text in enumerate("ab")]
    hello: dict[str, Any] = {"model": "m", "input": [{"role": "user", "content": "x"}]}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    chats.add("openai", "responses", "/v1/responses", hello, {"object": "response", "output": [words]})
    asked = {**hello, "input": [*hello["input"], words, {"role": "user", "content": "y"}]}
    for output in (calls, [_call("h", 3, "c0")]):  # the same request twice, on purpose
        chats.add("openai", "responses", "/v1/responses", asked, {"object": "response", "output": output})
    more = {**asked, "input": [*asked["input"], *calls, *results]}
    chats.add("openai", "responses", "/v1/responses", more, {"object": "response", "output": []})
    assert outputs(chats) == [(1, "a"), (2, "b"), (3, None)]


def _call(name: str, number: int, call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": f'{{"n": {number}}}'}


def test_a_result_is_no_hosted_call_s() -> None:
    """Two answers in a row, of which the first only searched the web: servers that number anew give both the same id."""
    chats = Chats()
    search = {"type": "server_tool_use", "id": "c0", "name": "web_search", "input": {}}
    use = {"type": "tool_use", "id": "c0", "name": "f", "input": {"n": 1}}
    told = [user("a"), {"role": "assistant", "content": [search]}]
    _messages(chats, told[:1], [search])
    _messages(chats, told, [use])
    returned = {"type": "tool_result", "tool_use_id": "c0", "content": "one"}
    _messages(chats, [*told, {"role": "assistant", "content": [use]}, {"role": "user", "content": [returned]}], [])
    assert outputs(chats) == [(None, None), (1, "one")]


def _messages(chats: Chats, messages: list[dict[str, Any]], content: list[dict[str, Any]]) -> None:
    value = {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    chats.add("anthropic", "messages", "/v1/messages", {"model": "m", "messages": messages}, value)


def test_one_result_for_two_calls_of_a_name_without_ids_is_nobodys() -> None:
    chats = Chats()
    ask = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"n": n}}} for n in (1, 2)]}
    _ollama(chats, [user("a")], ask)
    _ollama(chats, [user("a"), ask, {"role": "tool", "tool_name": "f", "content": "one"}], said("done"))
    assert outputs(chats) == [(1, None), (2, None)]


def _ollama(chats: Chats, messages: list[dict[str, Any]], answer: dict[str, Any]) -> None:
    value = {"model": "m", "message": answer, "done": True}
    chats.add("ollama", "api.chat", "/ollama/api/chat", {"model": "m", "messages": messages}, value)


def test_a_result_goes_to_the_answer_that_the_request_repeats() -> None:
    """Without ids, equal calls of two conversations are told apart by what was called together with them."""
    chats = Chats()
    one = {"function": {"name": "f", "arguments": {"n": 1}}}
    alone, both = ({"role": "assistant", "tool_calls": calls} for calls in ([one], [one, {"function": {"name": "g"}}]))
    _ollama(chats, [user("a")], both)
    _ollama(chats, [user("x"), said("hi"), user("a")], alone)
    shortened = [user("a"), alone, {"role": "tool", "tool_name": "f", "content": "one"}]
    _ollama(chats, shortened, said("done"))
    assert outputs(chats) == [(1, None), (None, None), (1, "one")]


def test_what_was_asked_for_again_is_over_for_the_answer_that_was_cut_off() -> None:
    """The same ids come in the whole answer; when its result is told once more, in a history that was cut short, it is no new one."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    chats.chat([user("a")], ask, ending="cut")
    chats.chat([user("a")], ask)
    chats.chat([user("a"), ask, result("one", "c0")], said("ok"))
    chats.chat([ask, result("one", "c0"), user("b")], said("fine"))
    assert outputs(chats) == [(1, "one")]


def test_of_two_answers_that_were_cut_off_the_later_is_meant() -> None:
    """Its client left when it had heard enough; a shortened history does not make the earlier one heard as well."""
    chats = Chats()
    ask = asks(call("f", {"n": 1}, "c0"))
    for _ in range(2):
        chats.chat([user("a")], ask, ending="cut")
    chats.chat([user("a"), ask, result("one", "c0")], said("ok"))
    chats.chat([ask, result("one", "c0"), user("b")], said("fine"))
    assert [(use.seq, use.output) for use in chats.wire.build_step(0).tools] == [(2, "one")]
