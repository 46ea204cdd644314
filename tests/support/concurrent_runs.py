"""Random programs that ask several things at once and go by what they heard first, played in virtual time.

A program is a tree: a leaf asks; a sequence does one after the other; a join starts its children at once and goes on by the first, by all
of them in their order, or by the order in which they ended. Whatever it asks next says all that it heard, in that order, so that an answer
that comes out of turn is another question. `record` plays it against a provider with random latencies, `replay` against an `EndOrderEnforcer`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, cast

from llmproxy.core.engine.concurrent_answer_order import EndOrderEnforcer, RecordedCallBeginAndEnd, group_concurrent
from tests.provider import Provider
from tests.provider.dialects import render
from tests.provider.script import Call, Play, Reply, Step
from tests.provider.seen import Seen

Kind = Literal["ask", "sequence", "first", "all", "ends"]
Ask = Callable[[str], Awaitable[str]]


@dataclass
class Program:
    kind: Kind
    name: str
    parts: list[Program] = field(default_factory=list)


def make_program(rng: random.Random, name: str = "q", depth: int = 3) -> Program:
    """Return a random program; its outermost part is a join."""
    kinds: tuple[Kind, ...] = ("ask", "sequence", "first", "all", "ends")
    kind = rng.choices(kinds, (4, 2, 1, 2, 3))[0] if depth < 3 else rng.choice(kinds[2:])
    if kind == "ask" or depth == 0:
        return Program("ask", name)
    return Program(kind, name, [make_program(rng, f"{name}.{n}", depth - 1) for n in range(rng.randint(2, 4))])


class _VirtualTime(selectors.SelectSelector):
    """Waits for nothing: the time is over at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _VirtualTime()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


async def play(program: Program, ask: Ask, think: Callable[[], float]) -> list[str]:
    """Play a program, and return what it heard, in order. It thinks for so many seconds before it asks what it has in mind."""
    heard: list[str] = []
    left: list[asyncio.Task[None]] = []

    async def part(one: Program) -> None:
        if one.kind == "ask":
            question = f"{one.name} {sha256(' '.join(heard).encode()).hexdigest()[:8]}"
            await asyncio.sleep(think())
            heard.append(await ask(question))
        elif one.kind == "sequence":
            for each in one.parts:
                await part(each)
        else:
            begun = [asyncio.ensure_future(part(each)) for each in one.parts]
            if one.kind == "first":
                _, pending = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
                left.extend(pending)
            elif one.kind == "all":
                await asyncio.gather(*begun)
            else:
                for ended in asyncio.as_completed(begun):
                    await ended
            await part(Program("ask", f"{one.name}/join"))

    await part(program)
    while left:
        await left.pop()
    return heard


@dataclass
class Recorded:
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By question."""
    calls: list[RecordedCallBeginAndEnd] = field(default_factory=list)


def record(program: Program, rng: random.Random) -> tuple[Recorded, list[str]]:
    """Play a program against a provider with random latencies; return what is recorded, and what it heard."""
    made, loop = Recorded(), _Loop()

    async def ask(question: str) -> str:
        number, began = len(made.answers) + 1, loop.time()
        made.answers[question] = number, f"a{number}"
        await asyncio.sleep(rng.choice((rng.uniform(0.002, 0.02), rng.uniform(0.02, 0.3), rng.uniform(0.3, 5))))
        made.calls.append(RecordedCallBeginAndEnd(number, began, loop.time()))
        return f"a{number}"

    try:
        return made, loop.run_until_complete(play(program, ask, lambda: rng.uniform(0, 0.0015)))
    finally:
        loop.close()


@dataclass
class Replayed:
    heard: list[str]
    seconds: float
    expired: int


def replay(program: Program, made: Recorded, rng: random.Random, *, patience: float = 3.0) -> Replayed:
    """Play a program against its recording, at full speed. Raises KeyError: it asks what was never recorded."""
    order, loop = EndOrderEnforcer(group_concurrent(made.calls), patience), _Loop()

    async def ask(question: str) -> str:
        number, answer = made.answers[question]
        if order.on_call_begin(number, loop.time()):
            while wait := order.get_send_delay(number, None, loop.time()):
                await asyncio.sleep(wait)
            order.on_call_end(number, loop.time())
        return answer

    try:
        heard = loop.run_until_complete(play(program, ask, lambda: rng.uniform(0, 0.05)))
        return Replayed(heard, loop.time(), order.expired)
    finally:
        loop.close()


class Echo:
    """Plays every question: says a digest of its messages, after the seconds that their last ``wait=`` names.

    One that says ``hand=NAME`` and has no answer of a tool yet calls the tool that hands over.
    """

    def next(self, seen: Seen) -> Step:
        asked = json.dumps(json.loads(seen.body)["messages"])
        waits = re.findall(r"wait=([0-9.]+)", asked.rpartition('"role": "user"')[2]) or re.findall(
            r"wait=([0-9.]+)", asked
        )
        said = Reply(f"said-{sha256(asked.encode()).hexdigest()[:8]}")
        if (hand := re.search(r"hand=(\w+)", asked)) and not seen.tool_results:
            said = Reply(call=(Call("handoff_to_agent", {"agent_name": hand[1], "message": "go on"}),))
        return Step(render(said, seen, 1).late(float(waits[-1]) if waits else 0.001))

    def unplayed(self) -> list[Step]:
        return []


@contextmanager
def echo() -> Iterator[Provider]:
    up = Provider()
    up.play = cast("Play", Echo())
    with up:
        yield up
