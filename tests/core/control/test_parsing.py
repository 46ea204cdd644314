"""What a client of the control API says is read strictly, and every refusal is readable."""

from __future__ import annotations

from collections.abc import Callable
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


REFUSED: list[tuple[Callable[[Any], object], type[Exception], list[Any]]] = [
    (parse_control_body_or_raise, BadControlRequest, [
        b"{", b"[]", b"null", b'"x"', b"1", b"\xff\xfe\x00", b"{'a': 1}", DEEP, b'{"a":' * 50_000, b"9" * 10_000]),
    (lambda name: require_url_encodable_name(name, "a session needs a name"), BadControlRequest, [None, 1, [], "\ud800"]),
    (lambda said: join_cassette_and_sample(*said), RefusedError, [
        ("x", 0), ("x", -1), ("x", 1_000_000), ("x", True), ("x", "2"), ("x", 1.5), ("x~2", 1), ("", 2)]),
    (parse_control_replay_speed, BadControlRequest, [-1, True, "1", float("nan"), float("inf"), 1e7, 10**400, [], NESTED]),
    (parse_control_upstreams, BadControlRequest, [
        [], "x", {"openai": 1}, {"openai": "ftp://h"}, {"openai": "h"}, {"s": "http://h"}, {"": "http://h"}]),
    (lambda fork: parse_control_fork_or_mocks(None, fork), RefusedError, [
        [], "x", {"love": 1}, {"live": 1}, {"live": True, "from": 0}, {"live": True, "from": True}, {"from": 1}, {"as": "x"},
        {"live": True, "as": 3}, {"live": True, "as": "x~2"}, {"live": True, "as": ""}]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "error", "value"), [(read, error, value) for read, error, values in REFUSED for value in values]
)
def test_what_cannot_be_meant_is_refused(read: Callable[[Any], object], error: type[Exception], value: object) -> None:
    """A 400, never an exception of another kind: bodies that are broken, deep or no object, names without UTF-8, samples, speeds, upstreams, forks."""
    with pytest.raises(error):
        read(value)


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


@pytest.mark.parametrize(("name", "sample", "meant"), [
    ("x", None, "x"), ("x", 1, "x"), ("x", 3, "x~3"), ("x~3", 3, "x~3"), ("x~0", 2, "x~0~2"),
    ("x", 999_999, "x~999999"),
])  # fmt: skip
def test_a_sample_makes_the_name(name: str, sample: int | None, meant: str) -> None:
    """It may be said in the name, beside it, or both alike."""
    assert remove_redundant_sample_suffix(join_cassette_and_sample(name, sample)) == meant


@pytest.mark.parametrize(("value", "meant"), [(None, None), (0, 0.0), (2.5, 2.5), (1e6, 1e6)])
def test_speeds(value: object, meant: float | None) -> None:
    """0 and any positive number."""
    assert parse_control_replay_speed(value) == meant


def test_upstreams_are_checked_like_the_option() -> None:
    """A session's upstream must be as good as --upstream's; a URL that may hold a password is not repeated."""
    assert parse_control_upstreams(None) == {}
    assert parse_control_upstreams({"OpenAI": "http://h/v1/"}) == {"openai": "http://h/v1"}
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
