"""What a client of the control API says is read strictly, and every refusal is readable."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.core.control.parsing import (
    BadControlRequest,
    format_value_for_error,
    join_cassette_and_sample,
    parse_control_body_or_raise,
    parse_control_fork_or_mocks,
    parse_control_replay_speed,
    parse_control_upstreams,
    parse_enum,
    require_url_encodable_name,
)
from llmproxy.core.sessions.session import remove_redundant_sample_suffix
from llmproxy.errors import RefusedError
from llmproxy.protocol import Exhausted, Mode

DEEP = b"[" * 100_000
NESTED: list[Any] = []
for _depth in range(2000):  # not parsed: what json can take differs between Pythons
    NESTED = [NESTED]


@pytest.mark.parametrize("body", [b"", b" \r\n", b"{}"])
def test_no_body_is_an_empty_object(body: bytes) -> None:
    """A POST without anything to say needs no body."""
    assert parse_control_body_or_raise(body) == {}


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'"x"', b"1", b"\xff\xfe\x00", b"{'a': 1}", DEEP, b'{"a":' * 50_000, b"9" * 10_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """Broken, deep, binary, huge numbers: a 400, never an exception of another kind."""
    with pytest.raises(BadControlRequest):
        parse_control_body_or_raise(body)


@pytest.mark.parametrize("value", ["x" * 1000, 10**300, NESTED, {"a": NESTED}, None, float("nan"), "\ud800"])
def test_what_was_given_is_shown_short(value: object) -> None:
    """An error repeats at most a line of what was said, and can be encoded."""
    assert len(format_value_for_error(value).encode()) <= 50


@pytest.mark.parametrize(("said", "meant"), [
    ("replay", "replay"), ("none", "replay"), ("new_episodes", "auto"), ("all", "record"), ("once", "once"),
    (None, None),
])  # fmt: skip
def test_modes_have_the_names_of_vcr_too(said: str | None, meant: str | None) -> None:
    """What people know from VCR works."""
    assert parse_enum(Mode, said, "mode") == meant


@pytest.mark.parametrize("value", ["", "live", "REPLAY ", 1, True, [], {}, NESTED, ["replay"]])
def test_other_modes_are_refused(value: object) -> None:
    """By name of what can be said; a list is no exception of Python's."""
    with pytest.raises(BadControlRequest, match="it can be replay, auto, record, once, passthrough"):
        parse_enum(Mode, value, "mode")
    with pytest.raises(BadControlRequest, match="it can be last, cycle, miss"):
        parse_enum(Exhausted, value, "exhausted")


@pytest.mark.parametrize("value", [None, 1, [], "\ud800"])
def test_a_name_is_text_that_a_url_can_say(value: object) -> None:
    """Half a surrogate pair has no UTF-8."""
    with pytest.raises(BadControlRequest):
        require_url_encodable_name(value, "a session needs a name")


@pytest.mark.parametrize(("name", "sample", "meant"), [
    ("x", None, "x"), ("x", 1, "x"), ("x", 3, "x~3"), ("x~3", 3, "x~3"), ("x~0", 2, "x~0~2"),
    ("x", 999_999, "x~999999"),
])  # fmt: skip
def test_a_sample_makes_the_name(name: str, sample: int | None, meant: str) -> None:
    """It may be said in the name, beside it, or both alike."""
    assert remove_redundant_sample_suffix(join_cassette_and_sample(name, sample)) == meant


@pytest.mark.parametrize(
    ("name", "sample"),
    [("x", 0), ("x", -1), ("x", 1_000_000), ("x", True), ("x", "2"), ("x", 1.5), ("x~2", 1), ("", 2)],
)
def test_other_samples_are_refused(name: str, sample: object) -> None:
    """Out of range, no number, or another than the name says."""
    with pytest.raises(RefusedError):
        join_cassette_and_sample(name, sample)


@pytest.mark.parametrize(("value", "meant"), [(None, None), (0, 0.0), (2.5, 2.5), (1e6, 1e6)])
def test_speeds(value: object, meant: float | None) -> None:
    """0 and any positive number."""
    assert parse_control_replay_speed(value) == meant


@pytest.mark.parametrize("value", [-1, True, "1", float("nan"), float("inf"), 1e7, 10**400, [], NESTED])
def test_other_speeds_are_refused(value: object) -> None:
    """NaN compares with nothing, a bool is no number."""
    with pytest.raises(BadControlRequest):
        parse_control_replay_speed(value)


def test_upstreams_are_checked_like_the_option() -> None:
    """A session's upstream must be as good as --upstream's; a URL that may hold a password is not repeated."""
    assert parse_control_upstreams(None) == {}
    assert parse_control_upstreams({"OpenAI": "http://h/v1/"}) == {"openai": "http://h/v1"}
    wrong: list[object] = [
        [], "x", {"openai": 1}, {"openai": "ftp://h"}, {"openai": "h"}, {"s": "http://h"}, {"": "http://h"},
    ]  # fmt: skip
    for value in wrong:
        with pytest.raises(BadControlRequest):
            parse_control_upstreams(value)
    with pytest.raises(BadControlRequest) as error:
        parse_control_upstreams({"openai": "http://me:secret@h/v1"})
    assert "secret" not in str(error.value).replace("hold a secret", "")


def test_what_a_session_is_to_override_is_read() -> None:
    """Nothing said is nothing; an empty fork asks for the report of one."""
    assert parse_control_fork_or_mocks(None, None) == (None, None)
    forking, child = parse_control_fork_or_mocks(
        {"tools": [{"tool": "t", "result": 1}]}, {"live": True, "from": 2, "as": "mine"}
    )
    assert forking is not None
    assert (forking.given.tools[0].text, forking.live, forking.at, child) == ("1", True, 2, "mine")
    plain, _ = parse_control_fork_or_mocks(None, {})
    assert plain is not None
    assert (plain.live, plain.at) == (False, None)


@pytest.mark.parametrize(
    "fork",
    [[], "x", {"love": 1}, {"live": 1}, {"live": True, "from": 0}, {"live": True, "from": True}, {"from": 1}, {"as": "x"},
     {"live": True, "as": 3}, {"live": True, "as": "x~2"}, {"live": True, "as": ""}],
)  # fmt: skip
def test_a_fork_that_cannot_be_meant_is_refused(fork: object) -> None:
    with pytest.raises(RefusedError):
        parse_control_fork_or_mocks(None, fork)
