"""Random runs of an agent, told once and written twice: with the values of a recorded run, and with those of another.

A run is abstract (texts with references in them); `World` says what the references stand for. `tests.oracle.speak` writes requests and answers
from it, so that what a rewriting should have made is known without any rewriting.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from llmproxy.core.bindings import RunVariable, VolatileField
from llmproxy.core.dialects.conversation import parse_answer_body_as_message
from llmproxy.core.traffic.interaction import Chunk, Response, header
from tests.oracle.speak import DIALECTS, JSON_TYPE, Call, Dialect, Said, Turn as Spoken

Json = Any


class Ref(NamedTuple):
    """A reference to a value, in one of its forms."""

    name: str
    form: str = "plain"


Text = list[str | Ref]
PATHS = ("cwd", "home", "tmp")
KEYED = "edits"
"""Argument whose members are called by paths and ids: ``{"/tmp/a/x.py": ...}``."""
_FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value, "below": lambda value: f"{value}/src/main.py",
    "slug": lambda value: re.sub(r"[^A-Za-z0-9]", "-", value), "percent": lambda value: quote(value, safe=""),
    "sha256": lambda value: hashlib.sha256(value.encode()).hexdigest(), "prefix": lambda value: value[:10],
    "file": lambda value: f"{value}.txt", "base": lambda value: "../" + posixpath.basename(value),
}  # fmt: skip


@dataclass
class World:
    """What one run's references stand for."""

    values: dict[str, str]
    shuffled: int = 0
    """Seed of the order of keys in results."""

    def write(self, text: Text) -> str:
        return "".join(part if isinstance(part, str) else _FORMS[part.form](self.values[part.name]) for part in text)

    def run_variables(self) -> list[RunVariable]:
        return [RunVariable(name, self.values[name]) for name in (*PATHS, "date")]


class Forgetful(World):
    """A run in which one id of the recorded run comes back wherever it is named; the tool that makes it made another."""

    def __init__(self, world: World, old: str, value: str) -> None:
        super().__init__(world.values, world.shuffled)
        self._old, self._value = old, World({**world.values, old: value}, world.shuffled)

    def write(self, text: list[str | Ref]) -> str:
        return "".join(self._value.write([part]) if isinstance(part, Ref) and part.name == self._old else super(Forgetful, self).write([part])
                       for part in text)  # fmt: skip


SLOTS = (
    VolatileField("chunk", "hex", "run", before="Chunk ID: "),
    VolatileField("wall", "duration", "run", before="Wall time: "),
    VolatileField("made", "uuid", "mint"),
    VolatileField("commit", "hex", "commit", at="$.commit"),
)


@dataclass
class Turn:
    tool: str
    arguments: dict[str, Text]
    result: Callable[[World], str]


@dataclass
class Run:
    """One agent's run up to a request, and the answer to that."""

    system: Text
    question: Text
    turns: list[Turn] = field(default_factory=list)
    answer: Text = field(default_factory=list)
    call: tuple[str, dict[str, Text]] | None = None


_WORDS = ("look", "into", "the", "file", "and", "say", "what", "Zeile", "日本", "naïve", "it's", '"quoted"', "a\\b", "x=1;", "7", "{}", "<b>",
          "2025-01-02", "deadbeef", "/usr/lib", "/tmpfile", "$HOME", "~", "…", "\t", "-I", "::", "%2F")  # fmt: skip
_AROUND = (
    (" ", " "), ("\n", "\n"), ('"', '"'), ("'", "'"), ("(", ")"), ("=", ","), (" ", "."), ("`", "`"), (" -I", " "),
)  # fmt: skip


def _prose(rng: random.Random, refs: Sequence[Ref], most: int = 6) -> Text:
    text: Text = []
    for _ in range(rng.randint(1, most)):
        text.append(" ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 5))))
        if refs and rng.random() < 0.7:
            ref = rng.choice(refs)
            before, after = rng.choice(_AROUND)
            if before.endswith("I") and (ref.name not in PATHS or ref.form in ("slug", "percent", "sha256", "base")):
                before = " "
            text += [before, ref, after]
        text.append(" ")
    return text


def make_run(rng: random.Random) -> tuple[Run, list[str]]:
    """Return a run, and the names of the ids that its tools made."""
    paths = [Ref(name, form) for name in PATHS for form in ("plain", "below", "slug", "percent", "sha256")]
    run = Run(_prose(rng, paths, 9), _prose(rng, [Ref(name, form) for name in PATHS for form in ("plain", "below")], 3))
    run.system += ["\nToday is ", Ref("date"), "\n"]
    made: list[str] = []
    known: list[Ref] = []
    for _ in range(rng.randint(0, 5)):
        arguments = {
            name: _prose(rng, [*paths[:2], *known], 2)
            for name in rng.sample(("command", "path", "note", KEYED), rng.randint(1, 2))
        }
        kind = rng.choice(("run", "mint", "commit", "read"))
        name = f"{kind}{len(made)}"
        if kind == "read":
            content = _prose(rng, [*paths, *known], 6)
            run.turns.append(Turn(kind, arguments, lambda world, content=content: world.write(content)))  # type: ignore[misc]
            continue
        made.append(name)
        run.turns.append(Turn(kind, arguments, _result(kind, name, _prose(rng, [*paths[:2], *known], 2))))
        known += [
            Ref(name),
            *([Ref(name, "file")] if kind == "mint" else []),
            *([Ref(name, "prefix")] if kind == "commit" else []),
        ]
    if rng.random() < 0.5:
        run.answer = _prose(rng, [Ref(name, form) for name in PATHS for form in ("plain", "below")] + known, 8)
    else:
        run.call = (
            "run",
            {
                "note": _prose(rng, [Ref("cwd"), Ref("tmp", "below"), *known], 4),
                "path": [Ref("cwd", "below")],
                KEYED: [Ref("cwd", "below"), *(part for ref in known[:2] for part in (" and ", ref))],
            },
        )
    return run, made


def list_alike(made: Sequence[str]) -> Iterator[tuple[str, str]]:
    for kind in ("run", "mint", "commit"):
        same = [name for name in made if name.startswith(kind)]
        if len(same) > 1:
            yield same[0], same[1]


def swap_ids(made: Sequence[str], recorded: World, present: World) -> World:
    """Return this run with the recorded run's ids, each where another of its kind was: tools side by side that count from one seed."""
    values = dict(present.values)
    for kind in ("run", "mint", "commit"):
        same = [name for name in made if name.startswith(kind)]
        if len(same) > 1:
            values |= {name: recorded.values[other] for name, other in zip(same, [*same[1:], same[0]], strict=True)}
    return World(values, present.shuffled)


def is_named_again(run: Run, name: str) -> bool:
    """Return whether a later turn names an id that a tool made."""
    texts = (text for turn in run.turns for text in turn.arguments.values())
    return any(isinstance(part, Ref) and part.name == name for text in texts for part in text)


def _result(kind: str, name: str, prose: Text) -> Callable[[World], str]:
    def write(world: World) -> str:
        if kind == "mint":
            return world.values[name] + "\n"
        if kind == "run":
            wall = random.Random(world.shuffled).randint(1, 999)
            return f"Chunk ID: {world.values[name]}\nWall time: 0.{wall:03} seconds\nOutput:\n{world.write(prose)}"
        by = {world.write([Ref("cwd", "below")]): 1, world.values[name]: {"of": world.values[name]}}
        value = {"commit": world.values[name], "said": world.write(prose), "files": [1, 2], "ok": True, "by": by}
        keys = list(value)
        random.Random(world.shuffled).shuffle(keys)
        return json.dumps({key: value[key] for key in keys}, ensure_ascii=bool(world.shuffled % 2))

    return write


def make_world(rng: random.Random, made: Sequence[str]) -> World:
    """Return values for a run: folders of any length, and fresh ids."""

    def path() -> str:
        names = ["a", "wk", "project", "my-app", "of.today", "Ünï", "checkouts", f"r{rng.randint(0, 10**6)}"]
        return (
            "/"
            + "/".join(rng.choice(names) for _ in range(rng.randint(1, 4)))
            + f"/{rng.choice('pqrst')}{rng.randint(0, 10**7)}"
        )

    values = {name: path() for name in PATHS}
    if rng.random() < 0.4:
        values["cwd"] = values["home"] + f"/w{rng.randint(0, 10**6)}"
    values["date"] = f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    for name in made:
        if name.startswith("mint"):
            values[name] = str(uuid.UUID(int=rng.getrandbits(128)))
        else:
            values[name] = (
                f"{rng.getrandbits(160):040x}" if name.startswith("commit") else f"{rng.getrandbits(48):012x}"
            )
    return World(values, rng.randint(0, 10**6))


SPOKEN = {each.operation: each for each in DIALECTS if each.name != "ollama"}


def _request(dialect: Dialect, run: Run, world: World) -> Json:
    """Build a run's request; the members of arguments are sorted, so that they come in another order in another world."""
    turns: list[Spoken] = [("system", world.write(run.system)), ("user", world.write(run.question))]
    for n, turn in enumerate(run.turns, 1):
        arguments = json.loads(json.dumps(_arguments(turn.arguments, world), sort_keys=True))
        call, result = Call(turn.tool, arguments, f"call#{n}"), turn.result(world)
        told = json.dumps({"output": result}) if dialect.name == "gemini" else result
        turns += [("model", Said(calls=[call])), ("results", [(call, told, False)])]
    tree = dialect.ask(turns, [], False)
    part = {"messages": "text", "responses": "input_text"}.get(dialect.name)
    return _in_parts(tree, part) if part else tree


def _in_parts(value: Json, part: str) -> Json:
    """Write each content that is a text as a list of one part, as most clients do."""
    if isinstance(value, list):
        return [_in_parts(each, part) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: [{"type": part, "text": each}]
        if name in ("content", "system") and isinstance(each, str)
        else _in_parts(each, part)
        for name, each in value.items()
    }


def _arguments(arguments: dict[str, Text], world: World) -> Json:
    return {name: _keyed(text, world) if name == KEYED else world.write(text) for name, text in arguments.items()}


def _keyed(text: Text, world: World) -> Json:
    """Return an object whose members are called by what a text refers to."""
    return {world.write([part]): world.write(text) for part in text if isinstance(part, Ref)} | {
        "text": world.write(text)
    }


REQUESTS: dict[str, Callable[[Run, World], Json]] = {name: partial(_request, each) for name, each in SPOKEN.items()}


def _pieces(rng: random.Random, text: str) -> list[str]:
    """Cut a text at random, as models' tokens do."""
    cuts = sorted({rng.randint(0, len(text)) for _ in range(rng.randint(0, 8))})
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if start < end]


def write_answer(operation: str, run: Run, world: World, *, stream: bool, seed: int) -> Response:
    """Return a run's answer in one dialect, in ASCII; the same seed cuts a stream in the same number of pieces."""
    dialect, rng = SPOKEN[operation], random.Random(seed)
    answer = Said("" if run.call else world.write(run.answer), cut=lambda text: _pieces(rng, text))
    if run.call is not None:
        answer.calls.append(Call(run.call[0], _arguments(run.call[1], world), "call_1"))
    indent = 2 if dialect.name == "gemini" else None
    chunks = (
        dialect.stream(answer, ensure_ascii=True)
        if stream
        else [dialect.whole(answer, ensure_ascii=True, indent=indent)]
    )
    kind = dialect.kind if stream else JSON_TYPE
    headers = (("content-type", kind), ("content-encoding", "identity"), ("etag", "x"), ("x-request-id", "req_1"))
    return Response(200, "OK", headers, tuple(Chunk(100 * n, data) for n, data in enumerate(chunks)), chunked=stream)


def said(operation: str, response: Response) -> tuple[str, str, object]:
    """Return what an answer says: words, tool, arguments."""
    message = parse_answer_body_as_message(operation, header(response.headers, "content-type") or "", response.body)
    assert message is not None, response.body
    if not message.tool_calls:
        return message.text, "", None
    call = message.tool_calls[0]
    return message.text, call.name, json.loads(call.arguments)
