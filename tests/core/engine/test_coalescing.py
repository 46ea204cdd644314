"""Equal requests at the same time: they share one answer while they are recorded, or each thread gets its own in replay."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from string import ascii_letters, digits
from typing import cast

import pytest

from llmproxy.core.bindings import RunVariable
from llmproxy.core.engine.engine import Engine
from llmproxy.core.traffic.response_plan import ClientFramingTraits
from llmproxy.errors import SettingsError
from llmproxy.protocol import AFTER_HEADER, CACHE_HEADER, Mode
from llmproxy.settings import load
from tests.core.engine.test_engine import CHAT, answered, ask, body, engine
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Wire, chat
from tests.provider import Provider, Script, Step, json_answer, step
from tests.provider.dialects import render
from tests.provider.script import Play, Reply
from tests.provider.seen import Seen


class Numbered:
    """Says the number of the request, once `until` is true; fails the first one if it is to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked, self.fails, self.where = 0, fails, ""
        self.until: Callable[[], bool] = lambda: True

    def next(self, seen: Seen) -> Step:
        self.asked += 1
        number, since = self.asked, time.monotonic()
        while (seen.last_user or "").startswith("same") and not self.until():
            assert time.monotonic() < since + 60, "the others never came"
            time.sleep(0.01)
        if self.fails and number == 1:
            return step(status=500, json={"error": {"message": "no"}})
        return Step(render(Reply(f"answer {number}{self.where}"), seen, number))

    def unplayed(self) -> list[Step]:
        return []


def provide(play: Numbered) -> Provider:
    up = Provider(check=False)
    up.play = cast("Play", play)
    return up


def said(body: bytes) -> str:
    tree = json.loads(body)
    return tree["choices"][0]["message"]["content"] if "choices" in tree else "no"


@pytest.mark.parametrize(("coalesce", "fails", "texts", "asked", "heard"), [
    (True, False, ["same", "same", "same"], 1, ["answer 1"] * 3),
    (True, True, ["same", "same", "same"], 2, ["answer 2", "answer 2", "no"]),
    (True, False, ["same", "other", "same"], 2, ["answer 1", "answer 1", "answer 2"]),
    (False, False, ["same", "same"], 2, ["answer 1", "answer 2"]),
])  # fmt: skip
def test_equal_requests_in_flight_share_one_answer(
    *, coalesce: bool, fails: bool, texts: list[str], asked: int, heard: list[str], tmp_path: Path
) -> None:
    """The provider is asked once for all; each has a recording of its own, and a replay a hit for each."""
    play, store = Numbered(fails=fails), tmp_path / "x.db"
    with provide(play) as up, Rig("record", store, {"openai": f"{up.url}/v1"}, coalesce=coalesce) as rig:
        waiting = texts.count("same") - 1 if coalesce else 0
        play.until = lambda: (
            play.asked > 1 or sum(each.answer.awaited for each in [*rig.proxy.open.values()]) == waiting
        )
        with ExitStack() as opened:
            wires = [opened.enter_context(rig.client()) for _ in texts]
            for wire, text in zip(wires, texts, strict=True):
                wire.send(chat(text))
                while not play.asked:  # the first one that comes asks
                    time.sleep(0.01)
            assert sorted(said(each.response().body) for each in wires) == heard
        calls = rig.wait_outcomes(len(texts))
    assert (play.asked, sum("shares the answer" in call.note for call in calls)) == (asked, len(texts) - asked)
    assert sorted(said(each.response.body) for each in recorded(store)) == heard
    with Rig("replay", store, order_wait=0) as rig, rig.client() as wire:
        assert sorted(said(wire.ask(chat(text)).body) for text in texts) == heard


def test_who_asks_with_another_key_gets_an_answer_of_his_own(tmp_path: Path) -> None:
    """It may be another one, or none at all, and it is on another bill."""
    play = Numbered()
    with (
        provide(play) as up,
        Rig("record", tmp_path / "x.db", {"openai": f"{up.url}/v1"}, coalesce=True) as rig,
        rig.client() as one,
        rig.client() as other,
    ):
        play.until = lambda: play.asked > 1 or len([*rig.proxy.open.values()]) > 1
        for wire, key in ((one, "sk-one"), (other, "sk-two")):
            wire.send(chat("same", headers={"authorization": f"Bearer {key}"}))
            while not play.asked:
                time.sleep(0.01)
        assert sorted(said(wire.response().body) for wire in (one, other)) == ["answer 1", "answer 2"]


@pytest.mark.parametrize("mode", ["replay", "auto"])
def test_coalescing_is_refused_where_nothing_is_recorded_anew(mode: str, tmp_path: Path) -> None:
    """The error names the modes that have it, and who set it."""
    assert load({"coalesce": True, "mode": "record"}, {}, tmp_path).settings.coalesce
    with pytest.raises(SettingsError) as refused:
        load({"coalesce": True, "mode": mode}, {}, tmp_path)
    assert f"the mode is {mode}" in refused.value.message
    assert "--mode record or --mode once" in str(refused.value)
    assert "flag --coalesce" in str(refused.value)


def ask_same_at_once(rig: Rig, wires: list[Wire], text: str, has_come: Callable[[], bool] = lambda: True) -> list[str]:
    """Ask the same over each connection, in this order and at once; return what each heard."""
    began = len(rig.outcomes)
    for number, wire in enumerate(wires, 1):
        wire.send(chat(text))
        while len(rig.proxy.open) + len(rig.outcomes) - began < number or not has_come():
            time.sleep(0.01)
    return [said(wire.response().body) for wire in wires]


@pytest.mark.parametrize("cwd", ["/tmp/a", "/srv/ci/w"])
@pytest.mark.parametrize(("before", "heard", "dealt"), [(["a", "b"], ["2", "1"], 0), ([], ["1", "2"], 2)])
def test_each_thread_gets_the_answer_that_it_got_when_it_was_recorded(
    before: list[str], heard: list[str], dealt: int, cwd: str, tmp_path: Path
) -> None:
    """What a connection asked before tells equal requests apart, whoever asks first now; without that they are dealt.

    So it is with answers that are rewritten for another folder.
    """
    play, store = Numbered(), tmp_path / "x.db"
    play.where = " in /tmp/a/x"
    with (
        provide(play) as up,
        Rig("record", store, {"openai": f"{up.url}/v1"}) as rig,
        rig.client() as a,
        rig.client() as b,
    ):
        rig.proxy.engine.sessions.open_session("default", run_variables=[RunVariable("cwd", "/tmp/a")])
        for wire, text in zip((a, b), before, strict=False):
            wire.ask(chat(text))
        rig.wait_idle()
        play.until, play.asked = lambda: len(rig.proxy.open) == 2 or play.asked > 1, 0
        first = ask_same_at_once(rig, [a, b], "same in /tmp/a", lambda: play.asked > 0)
        assert first == ["answer 1 in /tmp/a/x", "answer 2 in /tmp/a/x"]
    stored = [dict(each.request.headers).get(AFTER_HEADER) for each in recorded(store)]
    assert [each is None for each in stored] == [True] * len(before) + [False, False]
    with Rig("replay", store) as rig, rig.client() as a, rig.client() as b:
        rig.proxy.engine.sessions.open_session("default", run_variables=[RunVariable("cwd", cwd)])
        for wire, text in zip((a, b), before, strict=False):
            wire.ask(chat(text))
        rig.wait_idle()
        again = ask_same_at_once(rig, [b, a], f"same in {cwd}")
        assert again == [f"answer {each} in {cwd}/x" for each in heard]
        assert sum(call.dealt for call in rig.wait_outcomes(len(before) + 2)) == dealt


def test_auto_replays_the_good_one_of_two_answers_that_overlapped(tmp_path: Path) -> None:
    """The recorded failure does not count in this mode, whichever of them ended first."""
    play, store = Numbered(fails=True), tmp_path / "x.db"
    with (
        provide(play) as up,
        Rig("record", store, {"openai": f"{up.url}/v1"}) as rig,
        rig.client() as a,
        rig.client() as b,
    ):
        play.until = lambda: len(rig.proxy.open) == 2 or play.asked > 1
        assert ask_same_at_once(rig, [a, b], "same", lambda: play.asked > 0) == ["no", "answer 2"]
    with Rig("auto", store) as rig, rig.client() as wire:
        assert said(wire.ask(chat("same")).body) == "answer 2"


CLIENT = ClientFramingTraits()


def tokens(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(ascii_letters + digits, k=40)) for _ in range(count)]


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def asked(made: Engine, text: str, token: str) -> tuple[str | None, bool]:
    """Ask as a proxy does, the short way where there is one; the key that was found, and whether it was the short way."""
    place = made.dispatcher.place_request("POST", CHAT, None, bearer(token))
    if (hit := made.fast_path.find_answer(place, CLIENT, body(text))) is not None:
        made.fast_path.record_hit(hit)
        return hit.call.key, True
    exchange = ask(made, text, headers=bearer(token))
    if exchange.slot is not None:
        made.answering.plan_recorded(exchange, CLIENT)
    made.accounting.record_end(exchange, 200)
    return exchange.key, False


def test_what_was_asked_before_is_answered_the_short_way_whatever_the_token(tmp_path: Path) -> None:
    """After the first few tokens, which nobody could know would be many."""
    code = Path(__file__).read_text("utf-8") * 20  # over a hundred thousand characters of long names
    store, texts = tmp_path / "x.db", ["hi", "what is /usr/share/doc/python3.13/README.Debian.gz about?", code]
    with engine(store) as made:
        for text in ("begin", *texts):  # what comes first would begin the walk anew
            answered(made, ask(made, text))
    with engine(store, Mode.REPLAY) as made:
        short = [asked(made, text, token)[1] for token in tokens(60) for text in texts]
    assert all(short[40:])


@pytest.mark.parametrize("how", ["{0}", "key={0}&", "{1}\\n{2}", "x{0}y", "é{0}"])
def test_a_question_that_holds_a_token_has_the_key_that_a_new_proxy_gives_it(tmp_path: Path, how: str) -> None:
    """Asked before its token was seen, and after: whatever was remembered, the key is that of a proxy that learned the same and remembers nothing."""
    store, known = tmp_path / "x.db", tokens(40, seed=2)
    told = known[30]
    text = how.format(told, told[:20], told[20:])
    with engine(store) as made:
        answered(made, ask(made, text))
    with engine(store, Mode.REPLAY) as made:
        keys = [asked(made, text, token)[0] for token in known]
    with engine(store, Mode.REPLAY) as fresh:
        before, _ = asked(fresh, text, known[0])
    with engine(store, Mode.REPLAY) as fresh:
        after, _ = asked(fresh, text, told)
    assert keys == [before] * 30 + [after] * 10
    assert (before == after) is (how == "{1}\\n{2}" and before == after)


def test_what_many_tokens_have_passed_is_still_found_in_what_comes_later(store: Path, tmp_path: Path) -> None:
    """An answer that echoes the first of many tokens, all of which were hits, is stored without it; so is a question that quotes one."""
    known = tokens(60, seed=3)
    with engine(store, Mode.AUTO) as made:
        for token in known:
            answered(made, ask(made, "hi", headers=bearer(token)))
    echo = json_answer({"choices": [{"message": {"content": f"your token is {known[0]}, the other one {known[31]}"}}]})
    with Provider(Script((Step(echo),))) as p, Rig("auto", store, {"openai": p.url}) as rig, rig.client() as c:
        for token in known:
            assert c.ask(chat("hi", headers={"authorization": f"Bearer {token}"})).headers[CACHE_HEADER] == "hit"
        quoted = chat(f"quoted: {known[40]}", headers={"authorization": f"Bearer {known[7]}"})
        assert c.ask(quoted).headers[CACHE_HEADER] == "recorded"
        rig.wait_idle()
    kept = recorded(store)[-1]
    assert b"REDACTED" in kept.response.body
    assert b"REDACTED" in kept.request.body
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [token for token in known if token.encode() in everything]


def test_with_match_credential_each_token_is_somebody_else(store: Path) -> None:
    """No hit for another one, however alike their heads are."""
    known = tokens(4, seed=4)
    with (
        Provider(Script((Step(json_answer({"choices": []})),))) as p,
        Rig("record", store, {"openai": p.url}, match_credential=True) as rig,
        rig.client() as c,
    ):
        c.ask(chat("hi", headers={"authorization": f"Bearer {known[0]}"}))
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        for _ in range(3):
            found = [c.ask(chat("hi", headers={"authorization": f"Bearer {token}"})).status for token in known]
            assert found == [200, 404, 404, 404]
