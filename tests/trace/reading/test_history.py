"""Reading a conversation once gives what reading it anew gives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hypothesis import given, settings, strategies as st

from llmproxy.core.dialects.conversation import read_request_messages
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace.reading.decoded_exchange import RequestMessageCache
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.messages import asks, call, result, said, user
from tests.support.traffic import exchanges
from tests.trace.runs import Json, chat


def body_of(body: Json) -> Interaction:
    made = chat(1, [], said(""))
    return dataclasses.replace(made, request=dataclasses.replace(made.request, body=json.dumps(body).encode()))


MESSAGES = st.lists(
    st.sampled_from([user("a"), user("b"), said("c"), asks(call()), result(), {"role": "user", "content": None}, 7,
                     {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    max_size=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, max_size=8))
def test_it_is_what_the_core_reads(requests: list[Json]) -> None:
    history = RequestMessageCache()
    for messages in requests:
        made = body_of({"messages": messages})
        assert list(history.read_messages(made, {"messages": messages})) == read_request_messages(made.request.body)


def test_over_real_traffic(traffic: Path) -> None:
    history = RequestMessageCache()
    for each in exchanges(traffic):
        if each.route is None or each.route.operation not in CHAT:
            continue
        tree = parse_json_or_none(each.asked)
        made = dataclasses.replace(body_of({}), provider=each.route.provider.name, operation=each.route.operation)
        made = dataclasses.replace(made, request=dataclasses.replace(made.request, body=each.asked))
        expected = read_request_messages(each.asked)
        assert list(history.read_messages(made, tree if isinstance(tree, dict) else {})) == expected


def test_what_was_read_is_used_again() -> None:
    """The same message is the same object, and has the same plain form."""
    history, sent = RequestMessageCache(), ([user("a")], [user("a"), said("b"), asks(call()), result()])
    one, two = (history.read_messages(body_of({}), {"messages": each}) for each in sent)
    assert one[0] is two[0]
    told = [span.input for span in build_spans(body_of({"messages": each}) for each in sent) if "request" in span.kind]
    assert told[0][0] is told[1][0]
    assert told[1][2:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'}]},
        {"role": "tool", "content": '{"temp": 18}', "tool_call_id": "call_1"},
    ]  # fmt: skip
