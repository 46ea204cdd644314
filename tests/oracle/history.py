"""Agents that forget: what each does to its history before it sends it, and what suites may say about that. Reads no code of the product.

    seed -> Memoir: exchanges, and for each step what was condensed, pruned or dropped in it

An agent condenses old messages into a summary (its model writes it, told of them in one way or another; or nobody seen does), prunes old
calls and results, drops the oldest messages, writes the time into its prompt, or keeps everything. A message is what a user said, an answer,
or one result of a tool. A part is a call, or a result.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.oracle.agents import TOOLS, Exchange
from tests.oracle.speak import DIALECTS, JSON_TYPE, Call, Dialect, Said, Turn, dumps
from tests.oracle.truth import Json, compared

POLICIES = ("keep", "keep", "condense", "condense", "condense", "drop", "prune", "prune")
COUNTS = {
    "condenser": ("condensedMessages", "recentMessages", "totalMessages"),
    "pruner": ("partsRemoved",),
    "tokenLimiter": ("droppedMessages",),
}
WORDS = ("milk", "bread", "honey", "apples", "salt")


@dataclass
class Chapter:
    after: int
    until: int = 0
    continues: bool = False
    spoken: list[str] = field(default_factory=list)
    """What the user has said in the run."""
    done: dict[str, list[Json]] = field(default_factory=dict)
    """By processor, what it did each time: its counts, and its summary."""
    clear: bool = True
    """Everything that was done can be told from the requests."""


@dataclass
class Memoir:
    exchanges: list[Exchange] = field(default_factory=list)
    steps: list[Chapter] = field(default_factory=list)


def count_of(turns: Sequence[Turn]) -> int:
    return sum(len(what) if kind == "results" else kind != "system" for kind, what in turns)


class Life:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0
        self.memoir = Memoir()
        self.dialect: Dialect = self.random.choice(DIALECTS)
        self.policy = self.random.choice(POLICIES)
        self.stream = self.chance(0.5)
        self.by_call = self.chance(0.7)
        """Whether its model writes the summaries."""
        self.quotes = self.chance(0.5)
        """Whether the one who summarizes is told the messages in quotes; else as the conversation itself."""
        self.in_system = self.chance(0.4)
        """Whether summaries stand in the system prompt; else as a message of the user."""
        self.clock = self.chance(0.25)
        """Whether the system prompt says what time it is."""
        self.repeats = self.chance(0.2)
        """Whether users and models say the same again and again."""
        self.system = "You keep tasks."
        self.turns: list[Turn] = []
        self.spoken_by_user: list[str] = []
        self.spoken: list[str] = []
        """Of what the last summary says that they spoke."""

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def play(self) -> Memoir:
        for number in range(self.random.randint(2, 5)):
            if number and self.chance(0.1):  # another conversation
                self.turns, self.system = [], "You keep tasks."
            step = Chapter(len(self.memoir.exchanges), continues=bool(self.turns))
            self.memoir.steps.append(step)
            self.spoken_by_user.append(self.words("please do"))
            step.spoken = list(self.spoken_by_user)
            self.memoir.exchanges += self.say(step, self.spoken_by_user[-1])
            step.until = len(self.memoir.exchanges)
        return self.memoir

    def words(self, start: str) -> str:
        self.count += 1
        return f"{start} it" if self.repeats else f"{start} number {self.count}, about {self.random.choice(WORDS)}"

    def say(self, step: Chapter, text: str) -> Generator[Exchange]:
        """Say something to the agent: it looks after its history, then asks its model until that calls no more tools."""
        if self.clock:
            _head, mark, rest = self.system.partition("\n\n")
            self.system = f"You keep tasks. It is {self.count} o'clock.{mark}{rest}"
        if len(self.turns) > 2 and self.chance(0.7):
            yield from self.tidy(step)
        self.turns.append(("user", text))
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            calls = [self.call() for _ in range(self.random.choice((1, 1, 2)))]
            said = Said("" if self.chance(0.5) else self.words("let me see"), calls)
            yield self.ask(said)
            self.turns += [("model", said), ("results", [(call, call.output, False) for call in calls])]
        said = Said(self.words("I did"))
        yield self.ask(said)
        self.turns.append(("model", said))

    def call(self) -> Call:
        self.count += 1
        made = Call(self.random.choice(TOOLS), {"n": self.count}, f"id{self.count}", ran=True, told=True)
        made.output = dumps({"id": self.count, "title": f"the task that was made as number {self.count}"}).decode()
        return made

    def ask(self, said: Said, turns: Sequence[Turn] | None = None, tools: Sequence[str] = TOOLS) -> Exchange:
        given = [("system", self.system), *self.turns] if turns is None else turns
        request = self.dialect.request(given, tools, stream=self.stream)
        pieces = tuple(self.dialect.stream(said)) if self.stream else (self.dialect.whole(said),)
        return Exchange(self.dialect, request, kind=self.dialect.kind if self.stream else JSON_TYPE, pieces=pieces)

    def tidy(self, step: Chapter) -> Generator[Exchange]:
        starts = [n for n, (kind, _) in enumerate(self.turns) if kind == "user" and count_of(self.turns[:n]) > 1]
        at = self.random.choice([*starts, len(self.turns)] if self.policy == "condense" else starts or [0])
        if self.policy == "condense":
            yield from self.condense(step, at)
        elif self.policy == "drop" and at:
            step.done.setdefault("tokenLimiter", []).append({"droppedMessages": count_of(self.turns[:at])})
            self.turns = self.turns[at:]
        elif self.policy == "prune":
            self.prune(step, at)

    def condense(self, step: Chapter, at: int) -> Generator[Exchange]:
        """Put a summary in the place of the messages before `at`."""
        old, recent = self.turns[:at], self.turns[at:]
        self.count += 1
        spoken = self.random.sample(WORDS, self.random.randint(1, 4))
        while spoken == self.spoken and not self.by_call:  # another number alone might as well be a clock's
            spoken = self.random.sample(WORDS, self.random.randint(1, 4))
        self.spoken = spoken
        summary = f"Summary {self.count}: they spoke of {' and '.join(spoken)}."
        done = {"condensedMessages": count_of(old), "recentMessages": count_of(recent), "totalMessages": count_of(self.turns) + 1,
                "summary": summary}  # fmt: skip
        step.done.setdefault("condenser", []).append(done)
        if self.by_call:
            yield self.summarize(old, summary)
        step.clear = step.clear and self.by_call and not self.repeats
        if self.in_system:
            self.system, self.turns = f"You keep tasks.\n\nEarlier: {summary}", recent
        else:
            self.turns = [("user", f"Earlier: {summary}"), *recent]

    def summarize(self, old: Sequence[Turn], summary: str) -> Exchange:
        if not self.quotes:
            return self.ask(Said(summary), [("system", self.system), *old, ("user", "Summarize all this.")])
        told = [what.text if kind == "model" else str(what) for kind, what in old if kind != "results"]
        asked: list[Turn] = [("system", "You summarize."), ("user", "\n".join(["Summarize:", *told]))]
        return self.ask(Said(summary), asked, tools=())

    def prune(self, step: Chapter, at: int) -> None:
        """Leave out calls and results before `at`."""
        old, removed = list[Turn](), 0
        for kind, what in self.turns[:at]:
            if kind == "results":
                removed += len(what)
            elif kind == "model" and what.calls:
                removed += len(what.calls)
                old += [("model", Said(what.text))] if what.text else []
            else:
                old.append((kind, what))
        if removed:
            step.done.setdefault("pruner", []).append({"partsRemoved": removed})
            step.clear = step.clear and not self.repeats
            self.turns = [*old, *self.turns[at:]]


def claim(random: Random, step: Chapter) -> Json:
    """Think of something that a suite may say about the history in a step, often something that is nearly true."""
    name = random.choice(list(COUNTS))
    done = step.done.get(name, [])
    said: Json = {}
    if random.random() < 0.5:
        said["activated"] = bool(done) if random.random() < 0.6 else not done
    if said.get("activated", True) and (not said or random.random() < 0.5):
        key = random.choice(COUNTS[name])
        number = max((done[0][key] if done else random.randint(0, 3)) + random.choice((0, 0, 0, 1, -1)), 1)
        said[key] = random.choice((number, {"gte": number}, {"lt": number}))
        if name == "condenser" and random.random() < 0.4:
            said[random.choice(("summaryContains", "summaryNotContains"))] = random.choice(WORDS)
    return {"messageProcessing": {name: said, **({"minEvidence": "inferred"} if random.random() < 0.5 else {})}}


def recalls(said: Json, step: Chapter) -> bool | None:
    ((name, wanted),) = ((key, value) for key, value in said["messageProcessing"].items() if key != "minEvidence")
    done = step.done.get(name, [])
    if wanted.get("activated", True) is not bool(done):
        return False
    if not done:
        return True
    if len(done) > 1:
        return None  # which of them is meant?
    return all(_right(key, value, done[0]) for key, value in wanted.items() if key != "activated")


def _right(key: str, wanted: Any, done: Json) -> bool:
    if key.startswith("summary"):
        return (wanted in done["summary"]) is (key == "summaryContains")
    return compared(done[key], wanted)
