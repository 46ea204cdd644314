"""One request on its way: the front and the layer drive the same code, so there are two ways to a hit and no third."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmproxy.mitm.http1.fast_path import FastPathAsyncioProtocol
from llmproxy.mitm.http1.request_handling import IncomingRequest, is_browser_request_for_root
from llmproxy.mitm.http1_parser import parse_head
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, connected
from tests.mitm.wire import Wire, body_of, chat, chunked
from tests.provider import Provider, Reply, Script, Step
from tests.support.process import ROOT

STEPS = {"begin_exchange", "identify_and_decide", "plan_recorded", "plan_playback_head"}
"""What an engine is asked on the way of a request, each in one place of the proxy."""


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that knows the answers to "one" and "two"."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    with connected(Provider(Script((Step(Reply("first"), times=None),))), "record", store) as (_, c):
        for text in ("one", "two"):
            assert c.ask(chat(text)).status == 200
    return store


def test_each_step_of_a_request_stands_in_one_place() -> None:
    """Who serves a hit in a third way has to ask the engine what `Incoming` asks it."""
    asked: dict[str, set[str]] = {}
    for path in sorted((ROOT / "llmproxy/mitm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STEPS):
                continue
            owner = node.func.value
            if getattr(owner, "attr", getattr(owner, "id", "")) in ("stages", "answering"):
                asked.setdefault(node.func.attr, set()).add(path.relative_to(ROOT / "llmproxy/mitm").as_posix())
    assert asked == {step: {"http1/request_handling.py"} for step in STEPS}


class Counted(IncomingRequest):
    __slots__ = ()
    steps: list[str]

    def decide_request(self, body: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.steps.append("identify")
        return super().decide_request(body)

    def plan_recorded_answer(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.steps.append("plan_recorded_answer")
        return super().plan_recorded_answer()


@contextmanager
def counting(store: Path) -> Iterator[tuple[Rig, Wire, list[str]]]:
    """Replay a store; yields the steps, too, that are taken with requests."""
    steps: list[str] = []
    incoming = type("Noting", (Counted,), {"__slots__": (), "steps": steps})
    front = type("Noting", (FastPathAsyncioProtocol,), {"incoming": incoming})
    with Rig("replay", store, front=front) as rig, rig.client() as c:
        yield rig, c, steps


def test_a_hit_seen_first_goes_the_layers_way_in_front_of_it_and_a_repeated_one_the_short_way(tape: Path) -> None:
    """The first of its words is identified and laid out by `Incoming`, once; the same words again are not."""
    with counting(tape) as (rig, c, steps):
        for text in ("one", "two", "two"):
            assert c.ask(chat(text)).status == 200
        assert steps == ["identify", "plan_recorded_answer"] * 2
        assert [each.decision for each in rig.wait_outcomes(3)] == [Decision.REPLAY] * 3


def test_a_miss_that_began_in_front_is_decided_once_and_said_by_the_layer(tape: Path, tmp_path: Path) -> None:
    """What the front hands on is the request as it stands: not identified again, counted once."""
    with counting(Path(shutil.copy(tape, tmp_path / "x.db"))) as (rig, c, steps):
        missed = c.ask(chat("never"))
        asked = [outcome.seq for outcome in rig.wait_outcomes(1)]
        behind = c.ask(chunked(body_of("never"), 20))
        assert (missed.status, asked) == (404, [1])
        assert steps == ["identify", "identify"], "the layer asks the same request's `identify`, which decides once"
        assert behind.status == 404
        rig.wait_idle()


@pytest.mark.parametrize(
    ("line", "opens"), [("GET / HTTP/1.1", True), ("GET /v1 HTTP/1.1", False), ("POST / HTTP/1.1", False)]
)
def test_a_person_at_the_root_is_told_from_an_agent(line: str, opens: bool) -> None:
    """Only a page that is asked for is the page."""
    assert is_browser_request_for_root(parse_head(f"{line}\r\nhost: x\r\naccept: text/html\r\n\r\n".encode())) is opens
