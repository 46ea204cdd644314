"""Equal requests at the same time: they share one answer while they are recorded, or each thread gets its own in replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from llmproxy.errors import SettingsError
from llmproxy.protocol import AFTER_HEADER
from llmproxy.settings import load
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Wire, chat
from tests.provider import Provider, Step, step
from tests.provider.dialects import render
from tests.provider.script import Play, Reply
from tests.provider.seen import Seen


class Numbered:
    """Says the number of the request, once `until` is true; fails the first one if it is to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked, self.fails = 0, fails
        self.until: Callable[[], bool] = lambda: True

    def next(self, seen: Seen) -> Step:
        self.asked += 1
        number, since = self.asked, time.monotonic()
        while seen.last_user == "same" and not self.until():
            assert time.monotonic() < since + 60, "the others never came"
            time.sleep(0.01)
        if self.fails and number == 1:
            return step(status=500, json={"error": {"message": "no"}})
        return Step(render(Reply(f"answer {number}"), seen, number))

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
            play.asked > 1 or sum(each.answer.awaited for each in [*rig.shell.open.values()]) == waiting
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


@pytest.mark.parametrize(
    ("mode", "said_of_it"), [("replay", "the mode is replay"), ("auto", "the mode is auto"), ("record", "")]
)
def test_coalescing_is_refused_where_nothing_is_recorded_anew(mode: str, said_of_it: str, tmp_path: Path) -> None:
    """The error names the modes that have it, and who set it."""
    if not said_of_it:
        assert load({"coalesce": True, "mode": mode}, {}, tmp_path).settings.coalesce
        return
    with pytest.raises(SettingsError) as refused:
        load({"coalesce": True, "mode": mode}, {}, tmp_path)
    assert said_of_it in refused.value.message
    assert "--mode record or --mode once" in str(refused.value)
    assert "flag --coalesce" in str(refused.value)


def ask_same_at_once(rig: Rig, wires: list[Wire], has_come: Callable[[], bool] = lambda: True) -> list[str]:
    """Ask the same over each connection, in this order and at once; return what each heard."""
    began = len(rig.outcomes)
    for number, wire in enumerate(wires, 1):
        wire.send(chat("same"))
        while len(rig.shell.open) + len(rig.outcomes) - began < number or not has_come():
            time.sleep(0.01)
    return [said(wire.response().body) for wire in wires]


@pytest.mark.parametrize(("before", "heard", "dealt"), [(["a", "b"], ["2", "1"], 0), ([], ["1", "2"], 2)])
def test_each_thread_gets_the_answer_that_it_got_when_it_was_recorded(
    before: list[str], heard: list[str], dealt: int, tmp_path: Path
) -> None:
    """What a connection asked before tells equal requests apart, whoever asks first now; without that they are dealt."""
    play, store = Numbered(), tmp_path / "x.db"
    with (
        provide(play) as up,
        Rig("record", store, {"openai": f"{up.url}/v1"}) as rig,
        rig.client() as a,
        rig.client() as b,
    ):
        for wire, text in zip((a, b), before, strict=False):
            wire.ask(chat(text))
        rig.wait_idle()
        play.until, play.asked = lambda: len(rig.shell.open) == 2 or play.asked > 1, 0
        assert ask_same_at_once(rig, [a, b], lambda: play.asked > 0) == ["answer 1", "answer 2"]
    stored = [dict(each.request.headers).get(AFTER_HEADER) for each in recorded(store)]
    assert [each is None for each in stored] == [True] * len(before) + [False, False]
    with Rig("replay", store) as rig, rig.client() as a, rig.client() as b:
        for wire, text in zip((a, b), before, strict=False):
            wire.ask(chat(text))
        rig.wait_idle()
        assert ask_same_at_once(rig, [b, a]) == [f"answer {each}" for each in heard]
        assert sum(call.dealt for call in rig.wait_outcomes(len(before) + 2)) == dealt
