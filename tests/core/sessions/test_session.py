"""Sessions: names, parties, turns, and when a walk begins anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmproxy.core.sessions.session import LONGEST_NAME, Session, SessionSettings, check_party, split_name
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import RefusedError
from llmproxy.protocol import Mode

A, B = ("agent", Key("v1:a")), ("agent", Key("v1:b"))


def session(mode: Mode = Mode.REPLAY, *, complete: bool = False) -> Session:
    """Return a session of a cassette that begins with A."""
    return Session("s", "s", 1, SessionSettings(mode), complete=complete, first=A)


@pytest.mark.parametrize(("name", "expected"), [
    ("weather", ("weather", 1)), ("weather~3", ("weather", 3)), ("weather~03", ("weather", 3)),
    ("weather~0", ("weather~0", 1)), ("weather~", ("weather~", 1)), ("weather~x", ("weather~x", 1)),
    ("~2", ("~2", 1)), ("a~1~2", ("a~1", 2)), ("a~9999999", ("a~9999999", 1)), ("größe 1/2", ("größe 1/2", 1)),
])  # fmt: skip
def test_a_name_is_cassette_and_sample(name: str, expected: tuple[str, int]) -> None:
    """A tilde and a number from 1 at the end is the sample."""
    assert split_name(name) == expected


@pytest.mark.parametrize("name", ["", "x" * (LONGEST_NAME + 1), "a\nb", "a\0b"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    """Empty, endless, or with control characters."""
    with pytest.raises(RefusedError):
        split_name(name)


@pytest.mark.parametrize(
    ("value", "party"), [(None, "agent"), ("agent", "agent"), ("user", "user"), ("judge.2", "judge.2")]
)
def test_parties(value: str | None, party: str) -> None:
    """Who says nothing is the agent."""
    assert check_party(value) == party


@pytest.mark.parametrize("value", ["", "jugde", "agent.2", "user.", "judge.12345", "User", "user\n"])
def test_an_unknown_party_is_refused(value: str) -> None:
    """Never guessed: a judge's call counted as the agent's would be a wrong verdict."""
    with pytest.raises(RefusedError):
        check_party(value)


# mode, recordings per key, arrivals -> their numbers
WALKS = [
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
]


@pytest.mark.parametrize(("mode", "recordings", "arrivals", "numbers"), WALKS)
def test_a_walk_begins_anew_when_its_first_request_comes_again(
    mode: Mode, recordings: int, arrivals: list[tuple[str, Key]], numbers: list[int]
) -> None:
    """Only if its recordings are used up, another key came since, and the mode plays recordings."""
    walk = session(mode)
    assert [walk.arrive(walker, recordings) for walker in arrivals] == numbers


def test_a_session_that_somebody_opened_does_not_begin_anew_by_itself() -> None:
    """It ends with close or reset."""
    walk = session()
    walk.settings = replace(walk.settings, opened=True)
    assert [walk.arrive(walker, 1) for walker in (A, B, A)] == [1, 1, 2]
    walk.restart()
    assert walk.arrive(A, 1) == 1


def test_parties_are_counted_apart() -> None:
    """The same question of the judge is another one."""
    walk = session()
    assert [walk.arrive((party, A[1]), 5) for party in ("agent", "judge", "agent", "judge.2")] == [1, 1, 2, 1]


@pytest.mark.parametrize(("mode", "complete", "alone", "writes"), [
    (Mode.REPLAY, False, False, False), (Mode.PASSTHROUGH, False, False, False), (Mode.AUTO, False, False, True),
    (Mode.RECORD, False, True, True), (Mode.ONCE, False, True, True), (Mode.ONCE, True, False, False),
])  # fmt: skip
def test_which_sessions_write(mode: Mode, complete: bool, alone: bool, writes: bool) -> None:
    """Record replaces, auto and an open once add, the others leave the store alone."""
    walk = session(mode, complete=complete)
    assert (walk.policy.alone, walk.policy.writes) == (alone, writes)
    assert [walk.supersedes(A), walk.supersedes(A), walk.supersedes(B)] == [
        mode is Mode.RECORD, False, mode is Mode.RECORD,
    ]  # fmt: skip
