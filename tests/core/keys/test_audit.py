"""Two requests with one key: every difference has the reason of a rule, and what has none is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.keys.equal_key_explanations import ID, YOURS, IgnoredRequestDifference, explain_ignored_differences
from llmproxy.core.keys.head_rules import decide_if_header_affects_key
from llmproxy.core.keys.normalize import build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules, TextScrub
from llmproxy.core.providers.routing import RoutedRequest, route
from llmproxy.core.traffic.interaction import Headers, Request
from tests.support.messages import used

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
Asked = tuple[str, object, Headers]


def explained(one: Asked, other: Asked, rules: Rules = Rules()) -> list[IgnoredRequestDifference]:  # noqa: B008 - a frozen value
    requests, routes, keys = [], [], set()
    for target, body, headers in (one, other):
        where = route(target, headers)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request("POST", where.target, headers, data)
        keys.add(build_key(canonicalize_request(request, where, rules, lambda _: None)))
        requests.append(request)
        routes.append(where)
    assert len(keys) == 1
    return explain_ignored_differences(requests[0], requests[1], (routes[0], routes[1]), rules)


def calls(name: str, written: str = '{"a": 1}') -> dict[str, Any]:
    return {"model": "m", "messages": used("f", written, "r", name)}


@pytest.mark.parametrize(("one", "other", "places"), [
    ((CHAT, HI, ()), (CHAT, {**HI, "user": "u", "metadata": {"a": "b"}}, ()), ["$.metadata", "$.user"]),
    ((CHAT, HI, ()), (CHAT, {**HI, "stream": False, "tools": [], "seed": None}, ()), ["$.seed", "$.stream", "$.tools"]),
    (
        (CHAT, calls("x"), ()), (CHAT, calls("y", '{"a":1.0}'), ()),
        ["$.messages[0].tool_calls[0].function.arguments", "$.messages[0].tool_calls[0].id", "$.messages[1].tool_call_id"],
    ),
    ((CHAT, HI, (("traceparent", "1"),)), (CHAT, HI, (("Traceparent", "2"), ("user-agent", "x"))), ["header traceparent", "header user-agent"]),
    ((CHAT, HI, (("accept", "*/*"),)), (CHAT, HI, (("accept", "application/json"),)), ["header accept"]),
    ((CHAT, HI, (("openai-beta", "a,b"),)), (CHAT, HI, (("openai-beta", "b, a"),)), ["header openai-beta"]),
    (("/gemini/v1beta/models/g:countTokens?key=a", {}, ()), ("/gemini/v1beta/models/g:countTokens?key=b", {}, ()), ["query key"]),
    (("/anthropic/v1/messages", {"system": "s"}, ()), ("/anthropic/v1/messages?beta=true", {"system": "s"}, ()), ["query beta"]),
    (("/deepseek/v1/chat/completions", HI, ()), ("/deepseek/chat/completions", HI, ()), ["path"]),
    ((CHAT, HI, ()), (CHAT + "/", HI, ()), ["path"]),
    (("/model/a%3A1/converse", {}, ()), ("/model/a:1/converse", {}, ()), ["path"]),
    (
        ("/v1/projects/p/locations/l/publishers/google/models/g:predict", {}, ()),
        ("/v1/projects/q/locations/l/publishers/google/models/g:predict", {}, ()), ["path"],
    ),
    (
        ("/anthropic/v1/messages", {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "S"}]}, ()),
        ("/anthropic/v1/messages", {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=2;"}, {"type": "text", "text": "S"}]}, ()),
        ["$.system[0].text"],
    ),
    ((CHAT, b'{"a": 1.0}', ()), (CHAT, b'{"a":1}', ()), []),
    ((CHAT, HI, ()), (CHAT, HI, ()), []),
])  # fmt: skip
def test_every_difference_has_the_reason_of_its_rule(one: Asked, other: Asked, places: list[str]) -> None:
    """By place; the same requests, written in the same words or not, have none."""
    found = explained(one, other)
    assert [each.place for each in found] == places
    assert all(each.why for each in found)


def test_a_header_that_no_table_knows_is_unexplained() -> None:
    """It does not count at a known operation, and nobody has said why."""
    found = explained((CHAT, HI, ()), (CHAT, HI, (("x-some-new-thing", "1"),)))
    assert found == [IgnoredRequestDifference("header x-some-new-thing", "", "1", "")]


def test_the_users_rules_are_named() -> None:
    """What they ignore or scrub is theirs to explain."""
    rules = Rules(ignore=("$.trace",), scrub=(TextScrub("run [0-9]+", "run"),))
    said = [{**HI, "trace": n, "messages": [{"role": "user", "content": f"run {n}"}]} for n in (1, 2)]
    found = explained((CHAT, said[0], ()), (CHAT, said[1], ()), rules)
    assert {each.place: each.why for each in found} == {"$.messages[0].content": YOURS, "$.trace": YOURS}


def test_what_no_rule_touches_is_unexplained() -> None:
    """Were two keys equal by a fault of ours, this is where it shows."""
    where = route(CHAT, ())
    requests = [Request("POST", CHAT, (), json.dumps({**HI, "seed": n}).encode()) for n in (1, 2)]
    requests.append(Request("POST", "/v1/other", (), requests[0].body))
    wanted = IgnoredRequestDifference("$.seed", "1", "2", ""), IgnoredRequestDifference("path", CHAT, "/v1/other", "")
    for other, difference in zip(requests[1:], wanted, strict=True):
        assert explain_ignored_differences(requests[0], other, (where, where), Rules()) == [difference]


def test_ids_of_the_server_are_explained() -> None:
    """The second turn of a conversation that was recorded twice."""
    where = route("/v1/responses", ())
    bodies = [json.dumps({"previous_response_id": f"resp_{n}"}).encode() for n in (1, 2)]
    requests = [Request("POST", "/v1/responses", (), body) for body in bodies]
    (found,) = explain_ignored_differences(requests[0], requests[1], (where, where), Rules())
    assert (found.place, bool(found.why)) == ("$.previous_response_id", True)
    paths = [Request("GET", f"/v1/files/file-{n}", (), b"") for n in (1, 2)]
    routes = [route(each.target, ()) for each in paths]
    (found,) = explain_ignored_differences(paths[0], paths[1], (routes[0], routes[1]), Rules())
    assert found == IgnoredRequestDifference("path", "/v1/files/file-1", "/v1/files/file-2", ID)


def test_real_traffic_has_no_difference_without_a_reason(real_requests: list[tuple[Request, RoutedRequest]]) -> None:
    """Requests of one key, wherever they were recorded; and every header field that real clients send is in a table."""
    by_key: dict[str, list[tuple[Request, RoutedRequest]]] = {}
    unnamed = set()
    for request, where in real_requests:
        by_key.setdefault(build_key(canonicalize_request(request, where, Rules(), lambda _: None)), []).append(
            (request, where)
        )
        verdicts = {name: decide_if_header_affects_key(name.lower(), known=where.known) for name, _ in request.headers}
        unnamed |= {name for name, verdict in verdicts.items() if not verdict.why}
    pairs = [(group[0], other) for group in by_key.values() for other in group[1:]]
    found = [
        each
        for (old, there), (new, here) in pairs
        for each in explain_ignored_differences(old, new, (there, here), Rules())
    ]
    assert unnamed == set()
    assert [each for each in found if not each.why] == []
    assert len(found) > 100
