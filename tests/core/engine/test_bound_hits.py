"""Bound hits through the engine: recorded in one folder, replayed in another."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.bindings import IdPair, RunVariable, VolatileField, deserialize_run_variables
from llmproxy.core.engine.bound_hits import BindingFeature, BindingInterceptor
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import list_run_variables, read_volatile_fields, save_cassette_volatile_fields
from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.errors import MissError
from llmproxy.protocol import BindingPolicy, Decision, Mode
from tests.core.engine.test_engine import answered, body, engine, send as _ask
from tests.support.messages import answer, asks, call, said, used, user

Json = Any
MADE = VolatileField("made", "uuid", "mint")
A = (RunVariable("cwd", "/tmp/a"), RunVariable("date", "2026-11-22"))
B = (RunVariable("cwd", "/srv/ci/w"), RunVariable("date", "2026-11-23"))


def _reads(path: str) -> Json:
    return asks(call("read", {"path": path}, "c"))


def _request(cwd: str, day: str, *turns: Json, question: str = "list it") -> bytes:
    system = {"role": "system", "content": f"You work in {cwd}. Today is {day}."}
    return json.dumps({"model": "gpt-4o", "messages": [system, {"role": "user", "content": question}, *turns]}).encode()


def _open(made: Engine, run_variables: tuple[RunVariable, ...]) -> None:
    made.sessions.open_session("default", run_variables=run_variables)


def _record(
    store: Path,
    *pairs: tuple[bytes, str],
    run_variables: tuple[RunVariable, ...] = A,
    slots: Sequence[VolatileField] = (),
) -> None:
    with engine(store) as made:
        _open(made, run_variables)
        for body, text in pairs:
            answered(made, _ask(made, body), answer(said(text)))
    with SqliteCassetteStore.open(store, writable=True, now=lambda: 1.0) as opened:
        save_cassette_volatile_fields(opened, "default", slots)


@contextmanager
def _replaying(store: Path, mode: Mode = Mode.REPLAY, **config: Any) -> Iterator[Engine]:
    with engine(store, mode, **config) as made:
        _open(made, B)
        yield made


def _text(made: Engine, exchange: Exchange) -> str:
    assert exchange.decision is Decision.REPLAY, exchange.error and exchange.error.message
    return str(json.loads(made.answering.serve_recorded(exchange).body)["choices"][0]["message"]["content"])


def test_a_run_in_another_folder_gets_its_answer_in_its_own_words(store: Path) -> None:
    """Said in the outcome, in the session's sums, and in a header."""
    _record(store, (_request("/tmp/a", "2026-11-22"), "see /tmp/a/x of 2026-11-22"))
    with _replaying(store) as made:
        exchange = _ask(made, _request("/srv/ci/w", "2026-11-23"))
        assert _text(made, exchange) == "see /srv/ci/w/x of 2026-11-22"
        assert (
            b"x-llmproxy-bound: cwd, date\r\n"
            in made.answering.plan_recorded(exchange, ClientFramingTraits()).pieces[0][1]
        )
        outcome = made.accounting.record_end(exchange, 200)
        assert outcome.bound == ("cwd", "date")
        assert "bound: cwd, date" in outcome.note
        sums = made.sessions.get_session("default").calls.totals.to_json()
        assert (sums["hits"], sums["bound"], sums["bound_names"]) == (1, 1, ["cwd", "date"])
        assert made.count_unused() == 0


def test_what_asks_something_else_is_a_miss_that_names_the_place(store: Path) -> None:
    """The text of the miss says which recording was compared, and where it parts."""
    _record(store, (_request("/tmp/a", "2026-11-22"), "yes"))
    with _replaying(store) as made:
        exchange = _ask(made, _request("/srv/ci/other", "2026-11-23"))
        assert isinstance(exchange.error, MissError)
        assert exchange.error.message.count("system prompt") == 2  # in the first line, and what the difference is
        assert exchange.decision is Decision.REFUSE


@pytest.mark.parametrize("question", ["第{}章を要約", "In /data/x.md, what is {}?"])
def test_of_many_that_ask_the_like_the_right_one_is_found(store: Path, question: str) -> None:
    """Hundreds of questions of one shape: each is compared with as many as it takes."""
    pairs = [(_request("/tmp/a", "2026-11-22", question=question.format(n)), f"{n} in /tmp/a") for n in range(250)]
    _record(store, *pairs)
    with _replaying(store) as made:
        for n in (0, 249, 100):
            asked = _request("/srv/ci/w", "2026-11-23", question=question.format(n))
            assert _text(made, _ask(made, asked)) == f"{n} in /srv/ci/w"
        miss = _ask(made, _request("/srv/ci/w", "2026-11-23", question=question.format("other")))
        assert isinstance(miss.error, MissError)
        assert "differs at message 2 (user)" in miss.error.message


@pytest.mark.parametrize("mode", [Mode.REPLAY, Mode.AUTO, Mode.ONCE])
def test_a_bound_hit_is_a_hit_in_every_mode_that_plays(store: Path, mode: Mode) -> None:
    """And what does not fit is recorded by `auto`, under the run variables of the run that it is of."""
    _record(store, (_request("/tmp/a", "2026-11-22"), "in /tmp/a"))
    with _replaying(store, mode) as made:
        assert _text(made, _ask(made, _request("/srv/ci/w", "2026-11-23"))) == "in /srv/ci/w"
        if mode is Mode.AUTO:
            other = _ask(made, _request("/srv/ci/w", "2026-11-23", question="and now?"))
            assert other.decision is Decision.RECORD
            answered(made, other, answer(said("now in /srv/ci/w")))
    if mode is Mode.AUTO:
        with engine(store, Mode.REPLAY) as made:
            _open(made, (RunVariable("cwd", "/third"), RunVariable("date", "2027-01-01")))
            for question, text in (("list it", "in /third"), ("and now?", "now in /third")):
                assert _text(made, _ask(made, _request("/third", "2027-01-01", question=question))) == text


@pytest.mark.parametrize(
    ("scope", "hit"), [(BindingPolicy.ALL, True), (BindingPolicy.PATHS, False), (BindingPolicy.NONE, False)]
)
def test_the_scope_decides_what_may_be_bound(store: Path, scope: BindingPolicy, hit: bool) -> None:
    """``paths`` leaves no day; ``none`` nothing at all, and an exact hit its recorded bytes."""
    same = body("where?")
    _record(store, (_request("/tmp/a", "2026-11-22"), "in /tmp/a"))
    with engine(store) as made:
        _open(made, A)
        answered(made, _ask(made, same), answer(_reads("/tmp/a/x")))
    with _replaying(store, bind=scope) as made:
        assert (_ask(made, _request("/srv/ci/w", "2026-11-23")).decision is Decision.REPLAY) is hit
        exact = _ask(made, same)
        assert json.loads(made.answering.serve_recorded(exact).body)["choices"][0]["message"] == _reads(
            "/tmp/a/x" if scope is BindingPolicy.NONE else "/srv/ci/w/x"
        )
        assert made.accounting.record_end(exact, 200).bound == (() if scope is BindingPolicy.NONE else ("cwd",))


def test_nothing_is_bound_where_nobody_declared_anything(store: Path) -> None:
    """A store and a proxy of before know no run variables: only equal requests are hits."""
    _record(store, (_request("/tmp/a", "2026-11-22"), "in /tmp/a"), run_variables=())
    with _replaying(store) as made:
        assert _ask(made, _request("/srv/ci/w", "2026-11-23")).decision is Decision.REFUSE
        assert _text(made, _ask(made, _request("/tmp/a", "2026-11-22"))) == "in /tmp/a"


def _minted(day: str, cwd: str, value: str, *more: Json) -> bytes:
    return _request(cwd, day, *used("mint", "{}", value, f"call_{uuid.uuid4().hex}"), *more)


def test_what_a_tool_made_this_time_stands_in_the_answer(store: Path) -> None:
    """A volatile field of the cassette; the session keeps the mapping, and a value that comes back is a leak."""
    old, new = "3f2b9c1e-0000-4000-8000-00000000000a", "77777777-1111-4111-8111-00000000000b"
    _record(
        store,
        (_minted("2026-11-22", "/tmp/a", old), f"made {old}"),
        (_minted("2026-11-22", "/tmp/a", old, said(f"made {old}"), user("again")), f"again {old[:13]}"),
        slots=[MADE],
    )
    with SqliteCassetteStore.open(store, writable=False, now=lambda: 1.0) as opened:
        assert read_volatile_fields(opened, "default") == (MADE,)
    with _replaying(store) as made:
        first = _ask(made, _minted("2026-11-23", "/srv/ci/w", new))
        assert _text(made, first) == f"made {new}"
        assert made.accounting.record_end(first, 200).bound == ("cwd", "date", "made")
        interceptor = made.sessions.get_session("default").find_interceptor(BindingInterceptor)
        assert interceptor is not None
        assert list(interceptor.bound.known) == [IdPair("made", "uuid", old, new)]
        say_old, say_new, ask = said(f"made {old}"), said(f"made {new}"), user("again")
        leaked = _ask(made, _minted("2026-11-23", "/srv/ci/w", new, say_old, ask))
        assert leaked.decision is Decision.REFUSE
        assert leaked.error is not None
        assert "leaked" in leaked.error.message
        assert _text(made, _ask(made, _minted("2026-11-23", "/srv/ci/w", new, say_new, ask))) == f"again {new[:13]}"


def test_slots_bind_without_any_run_variable(store: Path) -> None:
    """`llmproxy start` declares nothing, and its clients have tools all the same."""
    old, new = "3f2b9c1e-0000-4000-8000-00000000000a", "77777777-1111-4111-8111-00000000000b"
    _record(store, (_minted("2026-11-22", "/tmp/a", old), f"made {old}"), run_variables=(), slots=[MADE])
    with engine(store, Mode.REPLAY) as made:
        assert _text(made, _ask(made, _minted("2026-11-22", "/tmp/a", new))) == f"made {new}"


def test_repeats_are_counted_by_the_recording_that_fits(store: Path) -> None:
    """The n-th bound request gets the n-th recording, as the n-th equal one does."""
    body = _request("/tmp/a", "2026-11-22")
    _record(store, (body, "first in /tmp/a"), (body, "second in /tmp/a"))
    with _replaying(store) as made:
        texts = [_text(made, _ask(made, _request("/srv/ci/w", "2026-11-23"))) for _ in range(3)]
        assert texts == ["first in /srv/ci/w", "second in /srv/ci/w", "second in /srv/ci/w"]
        assert made.count_unused() == 0


@pytest.mark.parametrize("slots", [(), (MADE,)])
def test_a_miss_names_what_differs_before_what_only_varies(tmp_path: Path, slots: tuple[VolatileField, ...]) -> None:
    """An id that a tool made stands earlier in the request, and is not why it is refused."""
    store, ids = tmp_path / "s.db", [f"{n}f2b9c1e-0000-4000-8000-00000000000a" for n in range(2)]
    ask, other = map(user, ("list it", "delete it"))
    _record(store, (_minted("2026-11-22", "/tmp/a", ids[0], ask), "listed"), slots=slots)
    with _replaying(store) as made:
        error = _ask(made, _minted("2026-11-23", "/srv/ci/w", ids[1], other)).error
    assert error is not None
    assert "differs at message 5 (user);" in error.message.splitlines()[0]
    assert ("[looks like uuid]" in error.message) is not bool(slots)
    assert f"no difference, since bound: cwd, date{', made' if slots else ''}\n" in error.message


def test_of_two_that_fit_the_walk_decides_or_nobody(store: Path) -> None:
    """Two recordings that differ in a volatile field only: the one that comes next; out of order it is a miss that names both."""
    ids = [f"{n}f2b9c1e-0000-4000-8000-00000000000a" for n in range(4)]
    pairs = [(_minted("2026-11-22", "/tmp/a", value), f"answer {n}") for n, value in enumerate(ids[:2])]
    _record(store, (_request("/tmp/a", "2026-11-22"), "first"), *pairs, slots=[MADE])
    with _replaying(store) as made:
        early = _ask(made, _minted("2026-11-23", "/srv/ci/w", ids[2]))
        assert isinstance(early.error, MissError)
        assert "recordings #2 and #3 both fit, their answers differ" in early.error.message
    with _replaying(store) as made:
        assert _text(made, _ask(made, _request("/srv/ci/w", "2026-11-23"))) == "first"
        assert _text(made, _ask(made, _minted("2026-11-23", "/srv/ci/w", ids[2]))) == "answer 0"
        assert _text(made, _ask(made, _minted("2026-11-23", "/srv/ci/w", ids[3]))) == "answer 1"


def test_the_text_of_an_exact_hit_names_this_folder_once_the_run_named_it(store: Path) -> None:
    """An equal request gets the recorded words; those of a run that named something below its own folder name it too."""
    same, held, plain = (body(text) for text in ("where?", "is /tmp/a there?", "when?"))
    below = (_request("/tmp/a/src", "2026-11-22"), "see /tmp/a/src")
    _record(store, (same, "in /tmp/a"), (held, "yes, /tmp/a"), (plain, "on 2026-11-22"), below)
    with _replaying(store) as made:
        exchange = _ask(made, same)
        assert _text(made, exchange) == "in /tmp/a"
        assert made.accounting.record_end(exchange, 200).bound == ()
        assert _text(made, _ask(made, _request("/srv/ci/w/src", "2026-11-23"))) == "see /srv/ci/w/src"
        exchange = _ask(made, same)
        assert _text(made, exchange) == "in /srv/ci/w"
        assert made.accounting.record_end(exchange, 200).bound == ("cwd",)
        for asked, text in ((held, "yes, /tmp/a"), (plain, "on 2026-11-22")):
            exchange = _ask(made, asked)
            assert _text(made, exchange) == text
            assert made.accounting.record_end(exchange, 200).bound == ()


def test_an_answer_that_cannot_be_told_is_a_miss(store: Path) -> None:
    """The folder has a space, and the recorded command had none."""
    listing = asks(call("bash", {"command": "ls /tmp/a"}))
    with engine(store) as made:
        _open(made, A)
        answered(made, _ask(made, _request("/tmp/a", "2026-11-22")), answer(listing))
    with engine(store, Mode.REPLAY) as made:
        _open(made, (RunVariable("cwd", "/srv/my work"), B[1]))
        exchange = _ask(made, _request("/srv/my work", "2026-11-23"))
        assert isinstance(exchange.error, MissError)
        assert "needs quotes" in exchange.error.message


def test_a_run_variable_with_the_name_of_a_secret_is_not_stored(store: Path) -> None:
    """If its value looks like one; other values stay, which a replay needs."""
    declared = (RunVariable("db_password", "Hx7Qm2Wz9LpT4"), RunVariable("token", "see-the-vault"), *A)
    _record(store, (_request("/tmp/a", "2026-11-22"), "in /tmp/a"), run_variables=declared)
    with SqliteCassetteStore.open(store, writable=False, now=lambda: 1.0) as opened:
        (said,) = list_run_variables(opened, "default", 1)
    values = {each.name: each.value for each in deserialize_run_variables(said)}
    assert values == {"cwd": "/tmp/a", "date": "2026-11-22", "token": "see-the-vault", "db_password": "[REDACTED]"}


def test_run_variables_are_declared_while_the_session_is_open(store: Path) -> None:
    """A captured id counts from the next request on, on both runs; a proxy's own session takes them too."""

    def run(made: Engine, number: int, *, record: bool) -> Exchange:
        first = _ask(made, _request("/tmp/a", "2026-11-22"))
        if record:
            answered(made, first, answer(said("ok")))
        declared = [RunVariable("task.id", str(number))]
        made.get_feature(BindingFeature).declare_variables(made.sessions.get_session("default"), declared)
        listed = used("list_tasks", "{}", json.dumps([{"id": number, "seats": 7}]))
        return _ask(made, _request("/tmp/a", "2026-11-22", *listed))

    with engine(store) as made:
        answered(made, run(made, 7, record=True), answer(asks(call("close_task", {"id": 7, "seats": 7}, "d"))))
    with engine(store, Mode.REPLAY) as made:
        exchange = run(made, 1007, record=False)
        assert exchange.decision is Decision.REPLAY, exchange.error
        message = json.loads(made.answering.serve_recorded(exchange).body)["choices"][0]["message"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"id": 1007, "seats": 7}


def test_a_second_run_of_the_same_agent_begins_anew(store: Path) -> None:
    """What tools made is forgotten with a restart of the walk."""
    old = "3f2b9c1e-0000-4000-8000-00000000000a"
    _record(store, (_minted("2026-11-22", "/tmp/a", old), f"made {old}"), slots=[MADE])
    with _replaying(store) as made:
        for n in range(3):
            new = f"{n}7777777-1111-4111-8111-00000000000b"
            assert _text(made, _ask(made, _minted("2026-11-23", "/srv/ci/w", new))) == f"made {new}"
            made.sessions.reset_session("default")


def test_a_trial_learns_nothing_where_two_would_fit_or_the_question_differs(store: Path) -> None:
    ids = [f"{n}f2b9c1e-0000-4000-8000-00000000000a" for n in range(3)]
    _record(store, *[(_minted("2026-11-22", "/tmp/a", value), f"answer {n}") for n, value in enumerate(ids[:2])])
    with _replaying(store) as made:
        made.get_feature(BindingFeature).enable_learning_in_session(made.sessions.get_session("default"))
        for asked, why in (
            (_minted("2026-11-23", "/srv/ci/w", ids[2]), "#1 and #2 would both fit: nothing is learned"),
            (_minted("2026-11-23", "/srv/ci/w", ids[2]).replace(b"list it", b"erase it"), "never in the question"),
        ):
            missed = _ask(made, asked)
            assert isinstance(missed.error, MissError)
            assert why in missed.error.message
