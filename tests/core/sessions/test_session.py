"""Sessions: names, parties, turns, and when a walk begins anew."""

from __future__ import annotations

import ast
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import fields, replace

import brotli
import pytest
import zstandard

from llmproxy.calls_and_totals import Call
from llmproxy.core.sessions.exchange import (
    ArrivingResponseCollector,
    EngineConfig,
    Exchange,
    TelemetryDiscardedInReplayError,
)
from llmproxy.core.sessions.session import (
    KEPT_CALLS,
    KEPT_TEXTS,
    NOT_KEPT,
    CallsNoLongerKeptError,
    EndedCallLog,
    Session,
    SessionSettings,
    parse_party_header,
    split_cassette_and_sample,
)
from llmproxy.core.traffic.interaction import Ending, Headers, Key
from llmproxy.errors import RefusedError
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_misses import exchange
from tests.support.process import ROOT

A, B = ("agent", Key("v1:a")), ("agent", Key("v1:b"))


def session(mode: Mode = Mode.REPLAY, *, complete: bool = False) -> Session:
    return Session("s", "s", 1, SessionSettings(mode), complete=complete, first=A)


@pytest.mark.parametrize(("name", "expected"), [
    ("weather", ("weather", 1)), ("weather~3", ("weather", 3)), ("weather~03", ("weather", 3)),
    ("weather~0", ("weather~0", 1)), ("weather~", ("weather~", 1)), ("weather~x", ("weather~x", 1)),
    ("~2", ("~2", 1)), ("a~1~2", ("a~1", 2)), ("a~9999999", ("a~9999999", 1)), ("größe 1/2", ("größe 1/2", 1)),
])  # fmt: skip
def test_a_name_is_cassette_and_sample(name: str, expected: tuple[str, int]) -> None:
    """A tilde and a number from 1 at the end is the sample."""
    assert split_cassette_and_sample(name) == expected


@pytest.mark.parametrize(
    ("value", "party"), [(None, "agent"), ("agent", "agent"), ("user", "user"), ("judge.2", "judge.2")]
)
def test_parties(value: str | None, party: str) -> None:
    assert parse_party_header(value) == party


@pytest.mark.parametrize("value", ["", "jugde", "agent.2", "user.", "judge.12345", "User", "user\n"])
def test_an_unknown_party_is_refused(value: str) -> None:
    """Never guessed: a judge's call counted as the agent's would be a wrong verdict."""
    with pytest.raises(RefusedError):
        parse_party_header(value)


# mode, recordings per key, arrivals -> their numbers
@pytest.mark.parametrize(("mode", "recordings", "arrivals", "numbers"), [
    (Mode.REPLAY, 1, [A, B, A, B], [1, 1, 1, 1]),
    (Mode.REPLAY, 2, [A, A, B, A, A, B], [1, 2, 1, 1, 2, 1]),
    (Mode.REPLAY, 2, [A, B, A, B], [1, 1, 2, 2]),
    (Mode.REPLAY, 1, [A, A, A], [1, 2, 3]),
    (Mode.REPLAY, 1, [B, A, B, A], [1, 1, 2, 1]),
    (Mode.REPLAY, 0, [A, B, A], [1, 1, 2]),
    (Mode.AUTO, 1, [A, B, A, B], [1, 1, 1, 1]),
    (Mode.ONCE, 1, [A, B, A], [1, 1, 1]),
    (Mode.RECORD, 1, [A, B, A], [1, 1, 2]),
    (Mode.PASSTHROUGH, 1, [A, B, A], [1, 1, 2]),
])  # fmt: skip
def test_a_walk_begins_anew_when_its_first_request_comes_again(
    mode: Mode, recordings: int, arrivals: list[tuple[str, Key]], numbers: list[int]
) -> None:
    """Only if its recordings are used up, another key came since, and the mode plays recordings."""
    walk = session(mode)
    assert [walk.count_arrival(walker, recordings) for walker in arrivals] == numbers


def test_a_session_that_somebody_opened_does_not_begin_anew_by_itself() -> None:
    walk = session()
    walk.settings = replace(walk.settings, opened=True)
    assert [walk.count_arrival(walker, 1) for walker in (A, B, A)] == [1, 1, 2]
    walk.restart()
    assert walk.count_arrival(A, 1) == 1


def test_parties_are_counted_apart() -> None:
    """The same question of the judge is another one."""
    walk = session()
    assert [walk.count_arrival((party, A[1]), 5) for party in ("agent", "judge", "agent", "judge.2")] == [1, 1, 2, 1]


@pytest.mark.parametrize(("mode", "complete", "alone", "writes"), [
    (Mode.REPLAY, False, False, False), (Mode.PASSTHROUGH, False, False, False), (Mode.AUTO, False, False, True),
    (Mode.RECORD, False, True, True), (Mode.ONCE, False, True, True), (Mode.ONCE, True, False, False),
])  # fmt: skip
def test_which_sessions_write(mode: Mode, complete: bool, alone: bool, writes: bool) -> None:
    """Record replaces, auto and an open once add, the others leave the store alone."""
    walk = session(mode, complete=complete)
    assert (walk.policy.alone, walk.policy.writes) == (alone, writes)
    claimed = [walk.claim_superseding(each, good=good) for each, good in ((A, False), (A, True), (A, True), (B, True))]
    assert claimed == [mode is Mode.RECORD, mode is Mode.RECORD, False, mode is Mode.RECORD]


def test_who_asks_what_is_party_and_key() -> None:
    """Before the body is here there is no key."""
    made = exchange(Decision.REPLAY)
    assert made.party_and_key == ("agent", Key(""))
    made.identity = replace(made.identity, key=Key("v1:1"))
    assert made.party_and_key == ("agent", Key("v1:1"))
    assert made.family == "openai"


def test_defaults_spend_nothing() -> None:
    """An engine that is told nothing replays, from this folder, and reaches nobody."""
    config = EngineConfig()
    assert (config.mode, config.allow_live, config.allow_host, config.miss_status) == (Mode.REPLAY, False, (), None)
    assert TelemetryDiscardedInReplayError.status == 204


@pytest.mark.parametrize("kind", [Exchange, Session])
def test_a_call_and_a_session_hold_what_every_one_has(kind: type) -> None:
    """What a feature knows of them is a value of its own (`InterceptorPrivateCallData`, `SessionCallInterceptor`)."""
    assert len(fields(kind)) <= 15


def test_no_stage_of_a_call_is_long() -> None:
    """Nor does one begin to ask who has what."""
    names = ("request_stages", "request_identification", "fast_path", "recording_and_accounting")
    for name in names:
        for node in ast.walk(ast.parse((ROOT / f"llmproxy/core/engine/{name}.py").read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, node.name


JSON: Headers = (("Content-Type", "application/json"),)
SSE: Headers = (("content-type", "text/event-stream"),)


def recorded(headers: Headers, *pieces: bytes, status: int = 200) -> ArrivingResponseCollector:
    """Return a recording of these pieces, 10 microseconds apart."""
    made = ArrivingResponseCollector()
    assert not made.has_head
    made.on_head(5, status, "OK", headers)
    for n, piece in enumerate(pieces, 1):
        made.on_data(n * 10, piece)
    return made


def end(made: ArrivingResponseCollector, *, stream: bool = True, proper: bool = True) -> Ending:
    return made.build_response("chat.completions", stream=stream, proper=proper).ending


def test_borders_and_times_are_kept() -> None:
    """Each piece is a chunk of its own; empty ones are none."""
    response = recorded(SSE, b"da", b"", b"ta: 1\n\n").build_response("x", stream=True, proper=True)
    assert [(chunk.offset, chunk.data) for chunk in response.chunks] == [(10, b"da"), (30, b"ta: 1\n\n")]
    assert (response.head_offset, response.chunked, response.body) == (5, True, b"data: 1\n\n")


@pytest.mark.parametrize(("pieces", "proper", "ending"), [
    ((b"data: {}\n\n", b"data: [DONE]\n\n"), True, Ending.COMPLETE),
    ((b"data: {}\n\n", b"data: [DONE]\n\n"), False, Ending.COMPLETE),
    ((b"data: {}\n\n",), True, Ending.UNTERMINATED),
    ((b"data: {}\n\n",), False, Ending.CUT),
    ((), False, Ending.CUT),
])  # fmt: skip
def test_a_stream_is_complete_when_its_terminator_was_seen(
    pieces: tuple[bytes, ...], proper: bool, ending: Ending
) -> None:
    assert end(recorded(SSE, *pieces), proper=proper) is ending


def test_a_body_with_a_length_is_complete_by_its_length() -> None:
    """A client that closes after the last byte has it all."""
    body = json.dumps({"choices": []}).encode()
    headers = (*JSON, ("content-length", str(len(body))))
    whole, part = recorded(headers, body[:5], body[5:]), recorded(headers, body[:5])
    assert (whole.is_whole, part.is_whole) == (True, False)
    assert end(whole, stream=False, proper=False) is Ending.COMPLETE
    assert end(part, stream=False, proper=False) is Ending.CUT
    assert not whole.build_response("x", stream=False, proper=True).chunked
    assert not recorded(JSON, body).is_whole, "without a length nobody knows"


def test_compression_is_undone_piece_by_piece() -> None:
    """Borders and times stay; the header goes with it."""
    packed = gzip.compress(b"data: {}\n\n" * 100)
    made = recorded((*SSE, ("content-encoding", "gzip")), packed[:20], packed[20:])
    response = made.build_response("x", stream=True, proper=True)
    assert response.body == b"data: {}\n\n" * 100
    assert "content-encoding" not in dict(response.headers)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_compression_that_is_cut_off_is_no_complete_answer(coding: str) -> None:
    """The framing is in order where a server of HTTP/1.0 dies, or announces too short a length; its client could not read it."""
    compress: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstandard.compress,
    }
    lines = "\n".join(f"{n},{n * n}" for n in range(2000)).encode()
    packed = compress[coding](lines)
    headers = (("content-type", "text/csv"), ("content-encoding", coding))
    for sent, ending in ((packed, Ending.COMPLETE), (packed[:-200], Ending.CUT)):
        made = recorded((*headers, ("content-length", str(len(sent)))), sent[:500], sent[500:])
        response = made.build_response("x", stream=False, proper=True)
        assert (response.ending, lines.startswith(response.body)) == (ending, True)
    stream = gzip.compress(b"data: {}\n\ndata: [DONE]\n\n")[:-8]
    assert end(recorded((*SSE, ("content-encoding", "gzip")), stream)) is Ending.COMPLETE, (
        "it says itself that it ended"
    )


def test_a_range_of_a_compressed_body_stays_as_it_came() -> None:
    """It is no whole coding, and not cut off either."""
    packed = gzip.compress(b"x" * 999)[:20]
    made = recorded((*JSON, ("content-encoding", "gzip"), ("content-length", "20")), packed, status=206)
    response = made.build_response("x", stream=False, proper=True)
    assert (response.body, response.ending) == (packed, Ending.COMPLETE)
    assert ("content-encoding", "gzip") in response.headers


def test_what_does_not_decode_stays_as_it_came() -> None:
    """Nothing is lost for a header that lies."""
    made = recorded((*JSON, ("content-encoding", "gzip")), b"{}")
    assert made.build_response("x", stream=False, proper=True).body == b"{}"


def test_the_first_byte_is_timed() -> None:
    """The head's time stands in where there is no body."""
    assert recorded(SSE, b"x").first_byte_offset == 10
    assert recorded(SSE).first_byte_offset == 5
    assert ArrivingResponseCollector().first_byte_offset is None


def ended(seq: int, *, miss: bool = False, note: str = "") -> Call:
    decision = Decision.REFUSE if miss else Decision.REPLAY
    return Call(decision=decision, method="POST", target="/", status=200, seq=seq, miss=miss, note=note)


def test_calls_are_told_in_the_order_of_their_arrival() -> None:
    """The second may be answered before the first; one that is open is not told, and counted as open."""
    calls = EndedCallLog()
    assert [calls.begin() for _ in range(3)] == [1, 2, 3]
    calls.add_ended_call(ended(2))
    calls.add_ended_call(ended(1))
    assert [each.seq for each in calls.list_calls_after(0)] == [1, 2]
    assert [each.seq for each in calls.list_calls_after(1)] == [2]
    assert (calls.arrived, calls.open_count, calls.list_calls_after(2)) == (3, 1, [])


def test_more_than_is_kept_is_an_error_and_no_gap() -> None:
    """Whoever asks from the start learns that the start is gone; from where it is kept, all of it is there."""
    calls = EndedCallLog()
    for _ in range(KEPT_CALLS + 5):
        calls.add_ended_call(ended(calls.begin()))
    with pytest.raises(CallsNoLongerKeptError) as error:
        calls.list_calls_after(4)
    assert (error.value.status, "after 5" in error.value.hint) == (410, True)
    assert len(calls.list_calls_after(5)) == KEPT_CALLS


def test_a_refused_call_says_what_its_client_was_told() -> None:
    """The text of a miss, else the note; beyond the bound it says where the text is."""
    calls = EndedCallLog()
    calls.add_ended_call(ended(calls.begin(), miss=True, note="-"), "the nearest is ...")
    calls.add_ended_call(ended(calls.begin(), note="client left"))
    first, second = calls.list_calls_after(0)
    assert (calls.get_call_note(first), calls.get_call_note(second)) == ("the nearest is ...", "client left")
    for _ in range(KEPT_TEXTS):
        calls.add_ended_call(ended(calls.begin(), miss=True), "text")
    assert calls.get_call_note(calls.list_calls_after(0)[-1]) == NOT_KEPT.format(KEPT_TEXTS)
