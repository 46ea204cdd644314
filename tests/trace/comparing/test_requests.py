"""What a reviewer sees of two recordings of the same thing."""

from __future__ import annotations

import json
from dataclasses import replace

from llmproxy.core.cassettes.formats import Recorded
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace.comparing.recording_diff import CassetteDiff, compare_cassettes
from tests.trace.observing.test_servers import Tools

JSON = (("content-type", "application/json"),)
URL = "https://api.openai.com/v1/chat/completions"


def turn(
    text: str,
    said: str | None = "yes",
    *calls: tuple[str, object],
    model: str = "gpt-4o",
    tokens: int = 10,
    status: int = 200,
    made_id: str = "c1",
) -> Recorded:
    made = [
        {"id": f"{made_id}{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": said} | ({"tool_calls": made} if made else {})
    usage = {"prompt_tokens": tokens, "completion_tokens": 2}
    answer = {"id": made_id, "model": model, "choices": [{"message": message}], "usage": usage}
    if status != 200:
        answer = {"error": {"message": said}}
    asked = {"model": model, "messages": [{"role": "user", "content": text}]}
    return Recorded("POST", URL, JSON, json.dumps(asked).encode(), status, "", JSON, json.dumps(answer).encode())


def side(*turns: Recorded) -> list[Interaction]:
    adopted = convert_exchanges(turns, "c", rules=Rules(), redactor=Redactor())
    return [each.interaction for each in adopted if each.interaction]


def changes(diff: CassetteDiff) -> list[tuple[str, str, str]]:
    return [(each.what, each.old, each.new) for pair in diff.pairs for each in pair.changes]


def test_nothing_changed() -> None:
    """Ids, times and the way JSON is written are no differences."""
    old = side(turn("a", "x", ("f", {"a": 1}), made_id="one"), turn("b", "no", status=429))
    second = turn("b", "no", status=429)
    new = side(
        turn("a", "x", ("f", {"a": 1}), made_id="two"),
        replace(second, response_body=second.response_body.replace(b": ", b":")),
    )
    diff = compare_cassettes(old, [replace(each, started_at=5.0) for each in new])
    assert diff.is_same
    assert [pair.what for pair in diff.pairs] == ["same", "same"]
    assert diff.summarize() == "2 same, 0 changed, 0 added, 0 removed; tokens in +0, out +0, cost unchanged"


def test_what_an_agent_sees() -> None:
    """Text, calls and their arguments by path, status, tokens and cost are told turn by turn."""
    old = side(turn("a", "x" * 200 + "one"), turn("b", None, ("f", {"city": "Oslo", "n": 1})), turn("c"))
    new = side(
        turn("a", "x" * 200 + "two"),
        turn("b", None, ("f", {"city": "Bergen", "n": 1}), ("g", {})),
        turn("c", tokens=20),
    )
    diff = compare_cassettes(old, new)
    found = changes(diff)
    assert found[0][0] == "text"
    assert found[0][1].endswith('one"')
    assert found[0][2].endswith('two"')
    assert ("call 1 f $.city", '"Oslo"', '"Bergen"') in found
    assert ("call 2", "", "g({})") in found
    assert ("tokens in", "10", "20") in found
    assert ("cost", "$0.000045", "$0.00007") in found
    assert (diff.old.calls, diff.new.calls) == (1, 2)


def test_turns_that_came_and_went() -> None:
    """Turns are aligned by request, so one put in makes no later one different; another request or model is a change."""
    diff = compare_cassettes(
        side(turn("a"), turn("b"), turn("c")), side(turn("a"), turn("new", "more", ("f", {})), turn("b"), turn("c"))
    )
    assert [(pair.what, pair.old, pair.new) for pair in diff.pairs] == [
        ("same", 1, 1), ("added", None, 2), ("same", 2, 3), ("same", 3, 4)
    ]  # fmt: skip
    back = compare_cassettes(side(turn("a"), turn("gone")), side(turn("a")))
    assert [(each.what, each.old, each.new) for each in back.pairs[1].changes] == [("text", '"yes"', "")]
    assert back.count_pairs_of_kind("removed") == 1
    diff = compare_cassettes(
        side(turn("a"), turn("b"), turn("c")), side(turn("a"), turn("bb", model="gpt-4o-mini"), turn("c"))
    )
    assert [pair.what for pair in diff.pairs] == ["same", "changed", "same"]
    found = [each[:3] for each in changes(diff)][:2]
    assert found == [("model", '"gpt-4o"', '"gpt-4o-mini"'), ("asked", '"b"', '"bb"')]
    other = Recorded(
        "POST", URL.replace("chat/completions", "embeddings"), JSON, b'{"input":"a"}', 200, "", JSON, b"{}"
    )
    diff = compare_cassettes(side(turn("a")), side(other))
    assert [pair.what for pair in diff.pairs] == ["removed", "added"]


def test_calls_are_compared_by_name() -> None:
    """A call that was replaced by another, and arguments that are no JSON, are shown as they are."""
    broken = turn("a", None, ("f", {"x": 1}))
    broken = replace(broken, response_body=broken.response_body.replace(b'{\\"x\\": 1}', b"{oops"))
    diff = compare_cassettes(
        side(turn("a", None, ("f", {"x": 1})), turn("b", None, ("f", {}))), side(broken, turn("b", None, ("g", {})))
    )
    assert changes(diff) == [("call 1 f $", '{"x": 1}', '"{oops"'), ("call 1", "f({})", "g({})")]


def test_changes_are_printable() -> None:
    """What models say cannot move the cursor of whoever reads the diff."""
    diff = compare_cassettes(side(turn("a\x1b[2J", "x")), side(turn("a\x1b[2J", "y\x1b[31m\n", ("f\x1b", {}))))
    assert all(text.isprintable() for each in changes(diff) for text in each)
    assert all(pair.title.isprintable() for pair in diff.pairs)


def test_plain_values() -> None:
    """The whole is JSON for scripts, an unknown price is counted; bytes that are nothing are compared as text."""
    diff = compare_cassettes(side(turn("a", model="nobody-knows")), [])
    plain = json.loads(json.dumps(diff.to_dict()))
    assert plain["same"] is False
    assert plain["old"] == {"turns": 1, "calls": 0, "tokens_in": 10, "tokens_out": 2, "cost": 0.0, "unpriced": 1}
    one, two = (
        Recorded("GET", "https://api.openai.com/x", (), b"\xff", 200, "", (), body) for body in (b"\xff\x00", b"[[[")
    )
    assert changes(compare_cassettes(side(one), side(two))) == [("text", '"\\\\xff\\u0000"', '"[[["')]


def test_calls_of_servers_of_tools_are_told_as_such() -> None:
    """Arguments and result, not the JSON around them; that it failed is told."""
    sides = []
    for text, failed in (("a", False), ("b", True)):
        chats = Tools()
        chats.serve("echo", {"text": text}, f"echo: {text}", failed=failed)
        sides.append([made for _, made in chats.calls if made is not None])
    diff = compare_cassettes(*sides)
    found = [(what, old) for what, old, _ in changes(diff)]
    assert found == [("asked", '"echo({\\"text\\": \\"a\\"})"'), ("text", '"echo: a"')]
    assert changes(diff)[1][2] == '"error: echo: b"'
