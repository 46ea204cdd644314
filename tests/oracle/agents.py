"""Agents whose behaviour is known: what they send, what comes back, and what of it is true. Reads no code of the product.

    seed -> Run: exchanges in the order of the wire, and for each step the calls that were really made

An agent talks in one dialect, streams or not, in one or two conversations at a time; models call tools, hosted ones too; answers fail, are
cut off, come too late; the agent asks again, or asks the same on purpose; it runs what was asked for, or not, and tells the model, or not;
some calls come after the answer of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from tests.oracle.speak import DIALECTS, JSON_TYPE, Call, Dialect, Said, Turn, dumps

TOOLS = ("createTask", "deleteTask", "listTasks")
FAILED = (
    {"error": "no such task"}, {"error": "e", "errors": ["e"]}, {"success": False, "why": "error"},
    {"isError": True, "is": "error"},
)  # fmt: skip
FINE = ({"id": 0}, {"id": 1}, {"id": 2, "ok": True}, {"id": 3, "errors": []})
"""What tools return."""
HOSTED = {"responses": "web_search", "messages": "web_search", "gemini": "code_execution"}


def _set() -> threading.Event:
    made = threading.Event()
    made.set()
    return made


@dataclass
class Exchange:
    dialect: Dialect
    request: bytes
    status: int = 200
    kind: str = JSON_TYPE
    pieces: tuple[bytes, ...] = ()
    """Of the answer, as they arrive."""
    cut: bool = False
    """The connection ended in the middle."""
    attempt: int | None = None
    """What the client says about how often it sent this; None: nothing."""
    party: str = "agent"
    said: Said | None = None
    """What stands in it."""
    over: int = 0
    """How many exchanges had begun when it ended: itself, and those that went on beside it."""
    begun: threading.Event = field(default_factory=threading.Event)
    """Over sockets: set when it has arrived."""
    may_end: threading.Event = field(default_factory=_set)
    """Over sockets: its answer waits for it."""
    wants_stream: bool = False
    """Whether a stream was asked for, whatever came."""

    @property
    def path(self) -> str:
        """Where it was sent; some dialects say there that they want a stream."""
        return self.dialect.address(stream=self.wants_stream or self.kind == self.dialect.kind)


@dataclass
class Step:
    after: int = 0
    until: int = 0
    calls: list[Call] = field(default_factory=list)
    """Asked for, in answers that the agent received."""
    answers: int = 0
    """That the agent received whole."""
    maybe: list[Call] = field(default_factory=list)
    """Begun in an answer that broke off, and not run: whether they were asked for is a matter of words."""
    alike: bool = False
    """Several conversations were in the same words: who repeats whose request may not be told."""
    broken: bool = False
    """An answer broke off, and the agent left it at that."""
    clear: bool = True
    """Everything that happened can be seen on the wire."""


@dataclass
class Run:
    exchanges: list[Exchange] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass
class Talk:
    dialect: Dialect
    stream: bool
    says_attempts: bool
    renumbers: bool
    """Its server numbers the calls of each answer anew: ids come again."""
    forgets: bool
    """It sends the last messages only."""
    hides: bool
    """It may run tools without telling the model."""
    left: bool = False
    """Its agent left while the last answer came: whoever asks the same again then cannot be told from one who tries again."""
    turns: list[Turn] = field(default_factory=list)


class World:
    def __init__(self, seed: int, *, overlaps: bool = True) -> None:
        self.random = Random(seed)
        self.overlaps = overlaps
        """Whether some answers take until others have been asked for."""
        self.count = 0
        self.run = Run()
        self.same = False
        """Conversations are in the same words."""

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def play(self) -> Run:
        dialect = self.random.choice(DIALECTS)
        talks = [self.talk(dialect) for _ in range(self.random.choice((1, 1, 2)))]
        same = self.same = self.chance(0.3)
        said: dict[str, Step] = {}
        for number in range(self.random.randint(1, 3)):
            step = Step(after=len(self.run.exchanges))
            step.alike = same and len(talks) > 1
            self.run.steps.append(step)
            words = f"task {self.random.randint(0, 2) if same else number}"
            if words in said:  # a conversation that began anew may be in the words of an earlier one
                step.alike = said[words].alike = True
            said[words] = step
            going = [self.say(talk, step, words if same else f"{words} of {n}") for n, talk in enumerate(talks)]
            if self.chance(0.2):
                going.append(self.aside(dialect))
            asked: dict[Generator[Exchange], Exchange] = {}
            while (
                going
            ):  # whoever comes first; some answers take until their agent goes on, and others are asked for meanwhile
                chosen = self.random.choice(going)
                if chosen in asked:
                    asked.pop(chosen).over = len(self.run.exchanges)
                try:
                    made = next(chosen)
                except StopIteration:
                    going.remove(chosen)
                    continue
                self.run.exchanges.append(made)
                made.over = len(self.run.exchanges)
                if self.overlaps and self.chance(0.5):
                    asked[chosen] = made
            step.until = len(self.run.exchanges)
            if self.chance(0.4):
                talks = [self.talk(dialect) for _ in talks]
        for number, exchange in enumerate(self.run.exchanges, 1):
            for call in exchange.said.calls if exchange.said else ():
                call.asked, call.over = number, exchange.over
        return self.run

    def talk(self, dialect: Dialect) -> Talk:
        return Talk(
            dialect, stream=self.chance(0.5), says_attempts=self.chance(0.4), renumbers=self.chance(0.3),
            forgets=self.chance(0.15), hides=self.chance(0.3),
        )  # fmt: skip

    def aside(self, dialect: Dialect) -> Generator[Exchange]:
        """Make a judge speak in between: nothing of it is the agent's."""
        said = Said("bad", [self.call(dialect, 0, renumbers=False)])
        asked = dialect.request([("user", "judge")], TOOLS, stream=False)
        yield Exchange(dialect, asked, pieces=(dialect.whole(said),), party="judge")

    def say(self, talk: Talk, step: Step, words: str) -> Generator[Exchange]:
        """Say something to the agent; it goes on until its model calls no more tools."""
        talk.turns.append(("user", words))
        rounds = self.random.randint(1, 4)
        for round_number in range(1, rounds + 1):
            said = self.said(talk, last=round_number == rounds)
            heard = yield from self.ask(talk, step, said)
            if heard is None:
                return
            if self.chance(0.1) and not said.strange and not talk.left:  # the same once more, on purpose
                again = yield from self.ask(talk, step, self.said(talk, last=False), plain=True)
                if again is not None:
                    self.use(talk, step, again, told=False)
            talk.turns.append(("model", heard))
            if not self.use(talk, step, heard, told=True):
                return

    def said(self, talk: Talk, *, last: bool) -> Said:
        if last or self.chance(0.35):
            return Said(f"said {self.random.randint(0, 9)}")
        calls = [self.call(talk.dialect, n, renumbers=talk.renumbers) for n in range(self.random.choice((1, 1, 2, 3)))]
        return Said("" if self.chance(0.5) else "well", calls, strange=self.chance(0.04))

    def call(self, dialect: Dialect, number: int, *, renumbers: bool) -> Call:
        self.count += 1
        hosted = HOSTED.get(dialect.name) if self.chance(0.1) else None
        names = (*TOOLS, "shell") if dialect.name == "responses" else TOOLS
        return Call(
            hosted or self.random.choice(names),
            {"n": self.random.randint(0, 2)},
            f"c{number}" if renumbers else f"id{self.count}",
            hosted=hosted is not None,
        )

    def ask(self, talk: Talk, step: Step, said: Said, *, plain: bool = False) -> Generator[Exchange, None, Said | None]:
        """Send the conversation, and hear the answer; gives what the agent heard, None if it gave up."""
        dialect = talk.dialect
        turns = (
            talk.turns[-3:] if talk.forgets and len(talk.turns) > 3 and talk.turns[-3][0] != "results" else talk.turns
        )
        request = dialect.request(turns, TOOLS, stream=talk.stream)
        pieces = tuple(dialect.stream(said)) if talk.stream else (dialect.whole(said),)
        whole = Exchange(dialect, request, kind=dialect.kind if talk.stream else JSON_TYPE, pieces=pieces, said=said)
        attempt = 0 if talk.says_attempts else None
        for _ in range(0 if plain else self.random.choice((0, 0, 0, 0, 1, 2))):
            fate = self.random.choice(("error", "cut", "late") if talk.says_attempts else ("error", "cut"))
            if fate == "late":  # whole for everybody but the client, which says so when it asks again
                other = Said("late", [self.call(dialect, 0, renumbers=talk.renumbers)])
                late = tuple(dialect.stream(other)) if talk.stream else (dialect.whole(other),)
                yield replace(whole, pieces=late, attempt=attempt, said=other)
            elif fate == "cut" and len(pieces) > 1 and not self.same:
                yield replace(
                    whole, pieces=pieces[: self.random.randint(0, len(pieces) - 2)], cut=True, attempt=attempt
                )
            else:
                busy = (dumps({"error": {"message": "busy"}}),)
                yield Exchange(dialect, request, 500, pieces=busy, attempt=attempt, wants_stream=talk.stream)
            attempt = None if attempt is None else attempt + 1
        if (
            not plain and len(pieces) > 2 and not self.same and self.chance(0.05)
        ):  # it breaks off, and the agent leaves it at that
            yield replace(whole, pieces=pieces[: self.random.randint(1, len(pieces) - 2)], cut=True, attempt=attempt)
            step.maybe += said.calls
            step.broken = True
            return None
        may_leave = not plain and bool(said.calls) and talk.stream and dialect.has_ids and not self.same
        talk.left = may_leave and self.chance(0.1)
        if talk.left:
            yield replace(whole, pieces=pieces[:-1], cut=True, attempt=attempt)  # it leaves when it has heard enough
            step.clear = False
            step.answers += 1
            return said
        yield replace(whole, pieces=self.torn(pieces), attempt=attempt)
        step.answers += 1
        step.clear = step.clear and not said.strange
        return said

    def torn(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Cut an answer at other places: what arrives together need not be an event."""
        if self.chance(0.7):
            return pieces
        data = b"".join(pieces)
        at = [0, *sorted(self.random.sample(range(len(data)), min(5, len(data)))), len(data)]
        return tuple(data[start:end] for start, end in pairwise(at) if start < end)

    def use(self, talk: Talk, step: Step, said: Said, *, told: bool) -> bool:
        """Run the tools of an answer, or not; tells whether the agent goes on."""
        results = []
        for call in said.calls:
            step.calls.append(call)
            if call.hosted:
                call.ran = True
                continue
            call.ran = self.chance(0.9)
            call.told = call.ran and told and not (talk.hides and self.chance(0.3))
            call.failed = call.ran and self.chance(0.25)
            said_so = self.random.choice(FAILED if call.failed else FINE)
            call.output = dumps(said_so).decode() if call.ran else ""
            if call.told:
                results.append((call, call.output, call.failed))
        if said.strange:
            step.calls.append(Call("deleteTask", {}, "r1", ran=True))
        if results and all(call.told or call.hosted for call in said.calls):
            talk.turns.append(("results", results))
            return True
        if results and self.chance(0.5):
            talk.turns.append(("results", results))
            return True
        for call, _, _ in results:  # it stops before it tells anybody
            call.told = False
        return bool(said.calls) and all(call.hosted for call in said.calls)
