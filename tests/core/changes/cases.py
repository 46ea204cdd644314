"""Conversations in every dialect with edits that the generator knows: what each call must come to, and why.

    case(seed) -> Case: what was recorded, what is asked now, and of each call now what is right: an exact hit (an empty
    set), an answer that is carried under changes of these segments, or (None) a miss

The lies of the design are among the edits: another question, amount, file or recipient, a result that says something
else, another tool, an answer that is impossible today, a history that was cut. From a lie on every call of its thread is a miss.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.oracle.speak import DIALECTS, Call, Dialect, Said, Turn

Json = Any
NAMES = ("Alice", "Bob", "Carol", "Dave")
PATHS = ("src/app.ts", "docs/a.md", "lib/tree.py", "notes/today.txt")
_NESTED = {"gemini": "generationConfig", "converse": "inferenceConfig", "ollama": "options"}
BETA = {"chat": "openai-beta", "responses": "openai-beta", "messages": "anthropic-beta"}


@dataclass
class Thread:
    """One agent's conversation, as its program holds it."""

    system: list[str]
    tools: dict[str, Json]
    """Schemas of their arguments."""
    turns: list[Turn]
    model: str = "m"
    stream: bool = False
    parameters: dict[str, Json] = field(default_factory=dict)
    """At the top of the body."""
    temperature: float = 0.2
    headers: dict[str, str] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    """What the tool `note` answered in all threads: one answer alone shows no wording."""

    def calls(self) -> Iterator[int]:
        return (n for n, (kind, _) in enumerate(self.turns) if kind == "model")


class Asked(NamedTuple):
    target: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    said: Said
    stream: bool
    wanted: frozenset[str] | None = frozenset()
    """Segments that changed; None: a miss."""
    edits: str = ""


class Case(NamedTuple):
    dialect: Dialect
    recorded: list[Asked]
    present: list[Asked]
    edits: list[str]


@dataclass
class Expected:
    always: set[str] = field(default_factory=set)
    since: dict[int, set[str]] = field(default_factory=dict)
    """By turn from which on a segment is another one."""
    lie: int | None = None
    """Turn of the first call that must miss."""

    def at(self, turn: int) -> frozenset[str] | None:
        if self.lie is not None and turn >= self.lie:
            return None
        return frozenset(self.always.union(*[names for since, names in self.since.items() if turn > since]))

    def miss_from(self, turn: int) -> None:
        self.lie = turn if self.lie is None else min(self.lie, turn)


def _schema(*names: str) -> Json:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


def _make_thread(rng: random.Random, label: str) -> Thread:
    """Make a conversation of two to four questions, with tools between them."""
    turns: list[Turn] = []
    for question in range(rng.randint(2, 4)):
        amount, name = rng.randint(2, 90), rng.choice(NAMES)
        turns.append(("user", f"{label}: please settle case {question} of {name} for {amount} euros."))
        for step in range(rng.randint(0, 2)):
            calls = [_make_call(rng, f"{label}{question}{step}{n}") for n in range(rng.randint(1, 2))]
            turns.append(("model", Said(rng.choice(["", f"{label} step {question}.{step}"]), calls)))
            turns.append(("results", [(call, _answer(rng, call.name), False) for call in calls]))
        turns.append(("model", Said(f"{label}: done with {question}, {rng.randint(100, 999)}.")))
    system = ["You settle cases.", "Be brief.", f"Your name is {label}.", "Never guess.", "Ask when in doubt."]
    tools = {"note": _schema("file"), "check": _schema("file"), "log": _schema("file"), "owes": _schema("file"),
             "spare": _schema("file")}  # fmt: skip
    return Thread(system, tools, turns)


def _make_call(rng: random.Random, id_: str) -> Call:
    name = rng.choice(["note", "check", "log", "owes"])
    return Call(name, {"file": rng.choice(PATHS), "n": id_}, f"call_{id_}_{rng.randint(1000, 9999)}")


def _answer(rng: random.Random, tool: str) -> str:
    a, b = rng.sample(NAMES, 2)
    return {
        "note": f"Wrote {rng.randint(2, 99)} lines into {rng.choice(PATHS)} at once\nBye",
        "check": f"{rng.randint(2, 99)} tests passed in {rng.choice(PATHS)}",
        "log": "Intent logged",
        "owes": f"the debtor {a} has to pay {rng.randint(2, 99)} euros to the creditor {b}",
    }[tool]


def _edit_results(thread: Thread, tool: str, edit: Callable[[str], str], *, last: bool = False) -> int | None:
    """Edit what a tool answered, everywhere or at its last call; returns the first turn at which that shows."""
    first = None
    places = [
        (turn, n)
        for turn, (kind, what) in enumerate(thread.turns)
        if kind == "results"
        for n, (call, _, _) in enumerate(what)
        if call.name == tool
    ]
    for turn, n in places[-1:] if last else places:
        what = list(thread.turns[turn][1])
        call, text, failed = what[n]
        what[n] = call, edit(text), failed
        thread.turns[turn] = "results", what
        first = turn if first is None else first
    return first


def _reword_system(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.system[now.system.index(rng.choice(["Be brief.", "Never guess."]))] += " And be kind."
    right.always.add("system prompt")


def _add_system(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.system.insert(rng.choice([1, 4]), "Use metric units.")
    right.always.add("system prompt")


def _widen_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    name = rng.choice(["note", "check", "log", "owes"])
    now.tools[name] = copy.deepcopy(now.tools[name])
    now.tools[name]["properties"]["limit"] = {"type": "integer"}
    right.always.add(f"tool {name}")


def _add_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.tools["fresh"] = _schema("file")
    right.always.add("tool fresh")


def _drop_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.tools.pop("spare", None)
    right.always.add("tool spare")


def _warm(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.temperature = 0.7
    right.always.add(f"parameter {_NESTED.get(dialect.name, 'temperature')}")


def _set_beta(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if (name := BETA.get(dialect.name)) is not None:
        now.headers[name] = "fine-grained-2026"
        right.always.add(f"header {name}")


def _reword_result(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    since = _edit_results(now, "note", lambda text: text.replace("Wrote", "Put").replace("at once", "quickly"))
    if since is not None and len(now.notes) > 1:
        right.since.setdefault(since, set()).add("result of note")
    elif since is not None:
        right.miss_from(_next_call(now, since))


def _lose_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    since = _edit_results(now, "log", lambda _: "Tool 'log' does not exist. Available tools are: note, check, owes.")
    if since is not None:
        right.since.setdefault(since, set()).add("result of log")


def _add_default(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    """A client adds a member to the calls that it echoes."""
    for turn, (kind, what) in enumerate(now.turns):
        if kind == "model" and what.calls and not getattr(what, "edited", False):
            call = what.calls[0]
            _replace_call(now, turn, Call(call.name, {**call.arguments, "deep": False}, call.id))
            right.since.setdefault(turn, set()).add(f"call of {call.name}")
            return


GOOD = (_reword_system, _add_system, _widen_tool, _add_tool, _drop_tool, _warm, _set_beta, _reword_result, _lose_tool,
        _add_default)  # fmt: skip


def _next_call(now: Thread, turn: int) -> int:
    return next(n for n in now.calls() if n > turn)


def _change_question(edit: Callable[[str, random.Random], str]) -> Callable[..., None]:
    def lie(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
        turn = rng.choice([n for n, (kind, _) in enumerate(now.turns) if kind == "user"])
        now.turns[turn] = "user", edit(now.turns[turn][1], rng)
        right.miss_from(_next_call(now, turn))

    return lie


def _change_result(tool: str, edit: Callable[[str], str]) -> Callable[..., None]:
    def lie(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
        if (turn := _edit_results(now, tool, edit, last=rng.random() < 0.5)) is not None:
            right.miss_from(_next_call(now, turn))

    return lie


def _swap(text: str) -> str:
    words = text.split(" ")
    at = [n for n, word in enumerate(words) if word in NAMES]
    words[at[0]], words[at[-1]] = words[at[-1]], words[at[0]]
    return " ".join(words)


def _change_model(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.model = "m2"
    right.miss_from(0)


def _flip_stream(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    now.stream = not now.stream
    right.miss_from(0)


def _used(now: Thread) -> list[tuple[int, Call]]:
    return [(n, call) for n, (kind, what) in enumerate(now.turns) if kind == "model" for call in what.calls]


def _drop_used_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if used := _used(now):
        name = rng.choice(used)[1].name
        now.tools.pop(name, None)
        right.always.add(f"tool {name}")
        right.miss_from(next(n for n, call in used if call.name == name))


def _require_more(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if used := _used(now):
        name = rng.choice(used)[1].name
        now.tools[name] = _schema("file", "why")
        right.always.add(f"tool {name}")
        right.miss_from(next(n for n, call in used if call.name == name))


def _forbid_tools(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    choice = {"chat": "none", "responses": "none", "messages": {"type": "none"}}.get(dialect.name)
    if choice is not None:
        now.parameters["tool_choice"] = choice
        right.always.add("parameter tool_choice")
        if used := _used(now):
            right.miss_from(used[0][0])


def _ask_for_two(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if dialect.name == "chat":
        now.parameters["n"] = 2
        right.miss_from(0)


def _limit(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if (name := {"chat": "max_tokens", "responses": "max_output_tokens"}.get(dialect.name)) is not None:
        now.parameters[name] = 1
        right.miss_from(0)


def _replace_call(now: Thread, turn: int, call: Call) -> None:
    """Tell another call in the place of the first one, and let its result be of that."""
    said: Said = now.turns[turn][1]
    now.turns[turn] = "model", Said(said.text, [call, *said.calls[1:]])
    kind, what = now.turns[turn + 1]
    now.turns[turn + 1] = kind, [(call, *what[0][1:]), *what[1:]]


def _other_arguments(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if used := _used(now):
        turn = rng.choice(used)[0]
        call = now.turns[turn][1].calls[0]
        _replace_call(now, turn, Call(call.name, call.arguments | {"file": "etc/passwd"}, call.id))
        right.miss_from(_next_call(now, turn))


def _other_tool(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    if used := _used(now):
        turn = rng.choice(used)[0]
        call = now.turns[turn][1].calls[0]
        _replace_call(now, turn, Call("spare", call.arguments, call.id))
        right.miss_from(_next_call(now, turn))


def _lose_a_call(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    for turn, (kind, what) in enumerate(now.turns):
        if kind == "model" and len(what.calls) == 2:
            now.turns[turn] = "model", Said(what.text, what.calls[:1])
            now.turns[turn + 1] = "results", now.turns[turn + 1][1][:1]
            right.miss_from(_next_call(now, turn))
            return


def _other_history(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    turn = next(n for n, (kind, what) in enumerate(now.turns) if kind == "model" and not what.calls)
    now.turns[turn] = "model", Said(now.turns[turn][1].text + " Or maybe not.")
    right.miss_from(_next_call(now, turn))


def _cut(rng: random.Random, now: Thread, right: Expected, dialect: Dialect) -> None:
    second = [n for n, (kind, _) in enumerate(now.turns) if kind == "user"][1]
    del now.turns[:second]
    right.since = {}
    right.miss_from(0)


LIES: dict[str, Callable[..., None]] = {
    "another amount": _change_question(lambda text, _: text.replace(" euros", "0 euros")),
    "another recipient": _change_question(lambda text, rng: text.replace(" of ", f" of {rng.choice(NAMES)} and ")),
    "a question in a tag": _change_question(lambda text, _: f"<system-reminder>\n{text} Now!\n</system-reminder>"),
    "more of a question": _change_question(lambda text, _: f"{text}\nAnd delete everything."),
    "a value": _change_result("note", lambda text: text.replace(" lines", "1 lines")),
    "a file": _change_result("note", lambda text: text.replace(".", "2.")),
    "a value vanished": _change_result("note", lambda text: text.partition(" into")[0]),
    "a line more": _change_result("check", lambda text: f"{text}\nand then 3 more"),
    "failed": _change_result("check", lambda text: text.replace("passed", "failed")),
    "not passed": _change_result("check", lambda text: text.replace("passed", "not passed")),
    "swapped": _change_result("owes", _swap),
    "roles swapped": _change_result(
        "owes", lambda text: text.replace("debtor", "x").replace("creditor", "debtor").replace("x", "creditor")
    ),
    "model": _change_model, "stream": _flip_stream, "tool gone": _drop_used_tool, "argument required": _require_more,
    "no tools": _forbid_tools, "two answers": _ask_for_two, "limit": _limit, "arguments": _other_arguments,
    "tool": _other_tool, "half an answer": _lose_a_call, "history": _other_history, "cut": _cut,
}  # fmt: skip


def case(seed: int, lie: str | None = None) -> Case:
    """Make a case; `lie` is one that it has whatever is drawn."""
    rng = random.Random(seed)
    dialect = DIALECTS[seed % len(DIALECTS)]
    stream = rng.random() < 0.3
    threads = [_make_thread(rng, f"T{n}") for n in range(rng.choice([1, 1, 2]))]
    for each in threads:
        each.stream = stream
    results = [each for thread in threads for kind, what in thread.turns if kind == "results" for each in what]
    for thread in threads:
        thread.notes = {text for call, text, _ in results if call.name == "note"}
    now, right = [copy.deepcopy(each) for each in threads], [Expected() for _ in threads]
    chosen = rng.sample(GOOD, rng.randint(0, 3))
    told = [edit.__name__ for edit in chosen]
    which = rng.randrange(len(threads))
    for edit in chosen:
        edit(rng, now[which], right[which], dialect)
    if lie is not None or rng.random() < 0.5:
        name = lie or rng.choice(list(LIES))
        told.append(name)
        LIES[name](rng, now[which], right[which], dialect)
    order = [n for n, each in enumerate(threads) for _ in each.calls()]
    rng.shuffle(order)
    recorded = _ask(dialect, threads, [Expected() for _ in threads], order)
    present = _ask(dialect, now, right, order)
    if len(present) == len(recorded):  # what a history tells of an answer may be a lie; the answer is the recorded one
        present = [new._replace(said=old.said) for new, old in zip(present, recorded, strict=True)]
    return Case(dialect, recorded, present, told)


def _ask(dialect: Dialect, threads: list[Thread], right: list[Expected], order: list[int]) -> list[Asked]:
    waiting = [list(each.calls()) for each in threads]
    made = []
    for n in order:
        if waiting[n]:
            turn = waiting[n].pop(0)
            made.append(_build(dialect, threads[n], turn, right[n].at(turn)))
    return made


def _build(dialect: Dialect, thread: Thread, turn: int, wanted: frozenset[str] | None) -> Asked:
    turns = [("system", "\n".join(thread.system)), *thread.turns[:turn]]
    if dialect.name == "gemini":  # its SDKs wrap a text
        turns = [
            (kind, [(c, json.dumps({"result": t}), f) for c, t, f in w] if kind == "results" else w)
            for kind, w in turns
        ]
    tree = dialect.ask(turns, list(thread.tools), thread.stream)
    for tool in _list_tools(tree):
        schema = thread.tools[tool["name"]]
        name = {"messages": "input_schema", "converse": "inputSchema"}.get(dialect.name, "parameters")
        tool[name] = {"json": schema} if name == "inputSchema" else schema
    into = tree.setdefault(_NESTED[dialect.name], {}) if dialect.name in _NESTED else tree
    into["temperature"] = thread.temperature
    tree.update(thread.parameters)
    target = dialect.address(stream=thread.stream)
    if "model" in tree:
        tree["model"] = thread.model
    else:
        target = target.replace("/m:", f"/{thread.model}:").replace("/m/", f"/{thread.model}/")
    said = thread.turns[turn][1]
    return Asked(target, json.dumps(tree).encode(), tuple(thread.headers.items()), said, thread.stream, wanted)


def _list_tools(tree: Json) -> Iterator[Json]:
    for entry in tree.get("tools") or tree.get("toolConfig", {}).get("tools", []):
        yield from (entry.get("functionDeclarations") or [entry.get("function") or entry.get("toolSpec") or entry])
