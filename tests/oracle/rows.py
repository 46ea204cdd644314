"""Agents that write rows: what each does in a step, in which kind of place, and what suites may say about it. Reads no code of the product.

    seed -> Ledger: rows that are there, and for each step what was inserted, changed, given away, deleted, and deleted and made anew

A place gives numbers out again (SQLite without AUTOINCREMENT, many services), counts up, or makes keys that nobody can guess; its rows belong
to somebody or to nobody. What is written after the answer is written while the suite waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.oracle.truth import Json, compared

ME, OTHER = "me", "somebody"
TITLES, STATES = ("milk", "bread", "salt"), ("todo", "done")
Row = dict[str, Any]
State = dict[int | str, Row]


@dataclass(frozen=True)
class Shape:
    keys: str
    """``again``: numbers are given out again; ``counted``; ``named``: texts."""
    owned: bool
    """Whether the suite says that rows belong to somebody."""
    pages: str = ""
    """How a service names its next page; empty: it has one."""


@dataclass
class Moment:
    before: State
    states: list[State]
    """After the answer, then after each thing that came later."""
    made: list[set[int | str]]
    """By state: keys of rows that were made in the step, and are there."""
    plain: bool = True
    """Nothing but rows of the user was made, and no number came again."""
    same: bool = False
    """A row was deleted and another one with the same number and the same contents was made: nobody can see it."""


@dataclass
class Ledger:
    shape: Shape
    start: State
    steps: list[Moment] = field(default_factory=list)


class Clerk:
    def __init__(self, seed: int, shape: Shape) -> None:
        self.random = Random(seed)
        self.shape = shape
        self.counter = 0
        self.rows: State = {}
        self.made: set[int | str] = set()
        self.gone: dict[int | str, Row] = {}
        self.same = False

    def play(self) -> Ledger:
        for _ in range(self.random.randint(0, 6)):
            self.insert()
        ledger = Ledger(self.shape, self.copy())
        for _ in range(self.random.randint(1, 3)):
            ledger.steps.append(self.step())
        return ledger

    def copy(self) -> State:
        return {key: dict(row) for key, row in self.rows.items()}

    def step(self) -> Moment:
        self.made, self.gone, self.same = set(), {}, False
        before = self.copy()
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            self.act()
        moment = Moment(before, [self.copy()], [set(self.made)])
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            self.act()
            moment.states.append(self.copy())
            moment.made.append(set(self.made))
        # Also one that was changed before it was deleted, where the new one is what it was when the step began.
        alike = (before.get(key) == s[key] for s, made in zip(moment.states, moment.made, strict=True) for key in made)
        moment.same = self.same or any(alike)
        others = any(
            state[key]["owner"] != ME for state, made in zip(moment.states, moment.made, strict=True) for key in made
        )
        moment.plain = not (others and self.shape.owned) and self.shape.keys != "again"
        return moment

    def act(self) -> None:
        kind = self.random.choice(("insert", "insert", "insert", "update", "give", "delete", "remake"))
        chosen = self.random.choice(list(self.rows)) if self.rows else None
        if kind == "insert" or chosen is None:
            self.insert()
        elif kind == "update":
            self.rows[chosen] = {
                **self.rows[chosen],
                self.random.choice(("title", "status")): self.random.choice(STATES),
            }
        elif kind == "give":
            self.rows[chosen] = {**self.rows[chosen], "owner": self.random.choice((ME, OTHER))}
        else:
            self.delete(self.latest() if kind == "remake" else chosen)
            if kind == "remake":
                self.insert()

    def latest(self) -> int | str:
        """Return the key of the row that was made last."""
        return max(self.rows, key=lambda key: (isinstance(key, str), key))

    def delete(self, key: int | str) -> None:
        self.gone.setdefault(key, self.rows.pop(key))
        self.made.discard(key)

    def insert(self) -> None:
        self.counter += 1
        again = max((key for key in self.rows if isinstance(key, int)), default=0) + 1
        keys: dict[str, int | str] = {"again": again, "counted": self.counter, "named": f"k{self.counter:05}"}
        key = keys[self.shape.keys]
        owner = self.random.choice((ME, ME, ME, OTHER, None))
        self.rows[key] = {
            "id": key, "title": self.random.choice(TITLES), "status": self.random.choice(STATES), "owner": owner,
        }  # fmt: skip
        self.made.add(key)
        self.same = self.same or self.gone.get(key) == self.rows[key]


def claim_created(random: Random) -> Json:
    """Think of something that a suite may say about new rows."""
    said: Json = {"entity": "tasks"}
    if random.random() < 0.8:
        said["fields"] = _some(random, ("title", "status", "owner"))
    if random.random() < 0.5:
        said["count"] = random.choice((0, 1, 1, 2, {"gte": 1}, {"lte": 1}, {"gt": 1, "lt": 4}))
    if random.random() < 0.4:
        said["within"] = 1_000
    return said


def claim_rows(random: Random, keys: list[int | str]) -> Json:
    """Think of something that a suite may say about the rows that are there."""
    said: Json = {"entity": "tasks"}
    if keys and random.random() < 0.3:
        said["id"] = random.choice(keys)
    else:
        said["filters"] = _some(random, ("title", "status", "owner"))
    kind = random.random()
    if kind < 0.3:
        said["exists"] = random.random() < 0.5
    elif kind < 0.6 and "filters" in said:
        said["count"] = random.choice((0, 1, 2, 3, {"gte": 2}, {"lt": 2}))
    if random.random() < 0.4 and said.get("exists", True) and said.get("count", 1) in (1, 2, 3, {"gte": 2}):
        said["fields"] = _some(random, ("status",))
    return said


def _some(random: Random, names: tuple[str, ...]) -> Json:
    chosen = random.sample(names, random.randint(1, len(names)))
    values = {"title": TITLES, "status": STATES, "owner": (ME, OTHER)}
    return {name: random.choice(values[name]) for name in chosen}


def _fits(row: Mapping[str, Any], wanted: Json) -> bool:
    return all(row[name] == value for name, value in wanted.items())


def _mine(rows: State, shape: Shape, wanted: Json) -> State:
    """Return the rows that are looked at: the user's, unless something says whose, or they belong to nobody."""
    anybody = not shape.owned or "owner" in wanted
    return {key: row for key, row in rows.items() if anybody or row["owner"] == ME}


def was_created(said: Json, shape: Shape, moment: Moment) -> bool | None:
    """Return whether it is true of a step that rows were made."""
    if moment.same:
        return None
    if "within" not in said:
        return _created(said, shape, moment.states[0], moment.made[0])
    seen = [_created(said, shape, state, made) for state, made in zip(moment.states, moment.made, strict=True)]
    return True if all(seen) else None if any(seen) else False  # it may be looked at in between, or later


def _created(said: Json, shape: Shape, state: State, made: set[int | str]) -> bool:
    wanted = said.get("fields", {})
    rows = _mine({key: row for key, row in state.items() if key in made}, shape, wanted)
    return compared(sum(_fits(row, wanted) for row in rows.values()), said.get("count", {"gte": 1}))


def is_there(said: Json, shape: Shape, state: State) -> bool | None:
    """Return whether it is true of the rows that are there."""
    if "id" in said:
        rows = [state[said["id"]]] if said["id"] in state else []
    else:
        wanted = said["filters"]
        rows = [row for row in _mine(state, shape, wanted).values() if _fits(row, wanted)]
    if "count" in said and not compared(len(rows), said["count"]):
        return False
    if "exists" in said and bool(rows) is not said["exists"]:
        return False
    if "fields" in said:
        if not rows and "count" in said:
            return None  # of no row nothing is said
        if not all(_fits(row, said["fields"]) for row in rows):
            return False
    return bool(rows) or "count" in said or "exists" in said


def in_view(shape: Shape, state: State, size: int) -> bool:
    """Return whether whoever asks for the rows can know all of them."""
    return shape.pages in ("", "next", "link") or len(state) <= size
