"""Rows: what goes in comes out, and people can read it."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Request, Response, Usage
from llmproxy.errors import CassetteNotFound
from tests.support.recordings import interaction, key

texts = st.text(st.characters(), max_size=20)
headers = st.lists(st.tuples(texts, texts), max_size=4).map(tuple)
tokens = st.none() | st.integers(0, 1 << 40)
chunks = st.lists(st.builds(Chunk, st.integers(0, 1 << 40), st.binary(max_size=40)), max_size=6).map(tuple)
interactions = st.builds(
    Interaction,
    provider=texts,
    operation=texts,
    key=st.integers(0, 99).map(key),
    request=st.builds(Request, texts, texts, headers, st.binary(max_size=2000)),
    response=st.builds(
        Response, st.integers(100, 999), texts, headers, chunks, st.sampled_from(Ending), st.integers(0, 1 << 40),
        st.booleans(),
    ),
    started_at=st.floats(0, 1e10),
    cassette=texts,
    sample=st.integers(1, 1000),
    party=texts,
    model=st.none() | texts,
    stream=st.booleans(),
    upstream=texts,
    usage=st.builds(Usage, tokens, tokens, tokens, tokens, tokens),
    redacted=st.booleans(),
    rules=texts,
    made_ids=st.lists(texts, max_size=3).map(tuple),
)  # fmt: skip


@given(added=interactions)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_loads_exactly_what_was_added(store: Store, added: Interaction) -> None:
    """Any interaction comes back equal: odd bytes, empty chunks, repeated headers, lone surrogates."""
    new = store.add_interaction(added, supersede=True)
    assert store.load(new) == dataclasses.replace(added, id=new, occurrence=1)


@pytest.mark.parametrize("number", [0, 1, 1000])
def test_keeps_every_chunk_border(store: Store, number: int) -> None:
    """Chunks keep their borders and times, be there none or a thousand, empty ones included."""
    rng = random.Random(number)
    made = tuple(Chunk(n * 7, rng.randbytes(n % 5)) for n in range(number))
    added = interaction(response=Response(200, "OK", (), made, chunked=True))
    assert store.response(store.add_interaction(added, supersede=False)).chunks == made


def test_a_count_that_no_integer_holds_is_unknown(store: Store) -> None:
    """A provider that counts 10**30 tokens does not cost us the recording."""
    new = store.add_interaction(interaction(usage=Usage(input=10**30, output=3)), supersede=False)
    assert store.load(new).usage == Usage(output=3)


def test_a_missing_row_is_not_found(store: Store) -> None:
    """Asking for an interaction that is not there says so, with the command that lists them."""
    with pytest.raises(CassetteNotFound, match="no interaction 77"):
        store.load(77)
    with pytest.raises(CassetteNotFound, match="llmproxy ls"):
        store.response(77)


def test_the_view_shows_calls_as_people_read_them(store: Store) -> None:
    """`calls` gives who, when, model, texts, tokens and status, live interactions only."""
    body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "How are you?"}]}'
    answer = (
        b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}]}'
    )
    request = Request("POST", "/v1/chat/completions", (), body)
    response = Response(200, "OK", (("content-type", "application/json"),), (Chunk(1500, answer),))
    made = interaction(1, request=request, response=response, model="gpt-4o", usage=Usage(11, 2), sample=2)
    for _ in range(2):
        store.add_interaction(made, supersede=True)
    cursor = store.conn.execute("SELECT * FROM calls")
    (row,) = [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor.fetchall()]
    wanted = {
        "id": 2, "started": "2027-01-15 08:00:01", "session": "default~2", "party": "agent", "model": "gpt-4o",
        "operation": "chat.completions", "last_user_text": "How are you?", "answer_text": "Fine.", "tokens_in": 11,
        "tokens_out": 2, "status": 200, "ending": "complete", "ms": 1.5,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
