"""Random runs of an agent, told once and written twice: with the values of a recorded run, and with those of another.

A run is abstract (texts with references in them); `World` says what the references stand for. Five dialects write requests and answers from
it, so that what a rewriting should have made is known without any rewriting.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import random
import re
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from llmproxy.core.bindings import RunVariable, VolatileField
from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.traffic.interaction import Chunk, Response, header

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
    """A call of a tool and what came back."""

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
    """Yield two ids of one kind, where there are."""
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
    """Tell whether a later turn names an id that a tool made."""
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


# -- requests ------------------------------------------------------------------------------------------------------------------------------


def chat(run: Run, world: World) -> Json:
    messages: list[Json] = [
        {"role": "system", "content": world.write(run.system)},
        {"role": "user", "content": world.write(run.question)},
    ]
    for n, turn in enumerate(run.turns, 1):
        call = {"name": turn.tool, "arguments": json.dumps(_arguments(turn.arguments, world), sort_keys=True)}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": f"call#{n}", "type": "function", "function": call}]}
        )
        messages.append({"role": "tool", "tool_call_id": f"call#{n}", "content": turn.result(world)})
    return {"model": "gpt-5", "messages": messages}


def anthropic(run: Run, world: World) -> Json:
    messages: list[Json] = [{"role": "user", "content": [{"type": "text", "text": world.write(run.question)}]}]
    for n, turn in enumerate(run.turns, 1):
        use = {"type": "tool_use", "id": f"call#{n}", "name": turn.tool, "input": _arguments(turn.arguments, world)}
        result = {
            "type": "tool_result",
            "tool_use_id": f"call#{n}",
            "content": [{"type": "text", "text": turn.result(world)}],
        }
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return {"model": "claude", "system": [{"type": "text", "text": world.write(run.system)}], "messages": messages}


def responses(run: Run, world: World) -> Json:
    items: list[Json] = [{"role": "user", "content": [{"type": "input_text", "text": world.write(run.question)}]}]
    for n, turn in enumerate(run.turns, 1):
        arguments = json.dumps(_arguments(turn.arguments, world), sort_keys=True)
        items.append({"type": "function_call", "call_id": f"call#{n}", "name": turn.tool, "arguments": arguments})
        items.append({"type": "function_call_output", "call_id": f"call#{n}", "output": turn.result(world)})
    return {"model": "gpt-5", "instructions": world.write(run.system), "input": items}


def gemini(run: Run, world: World) -> Json:
    contents: list[Json] = [{"role": "user", "parts": [{"text": world.write(run.question)}]}]
    for turn in run.turns:
        call = {"name": turn.tool, "args": _arguments(turn.arguments, world)}
        contents.append({"role": "model", "parts": [{"functionCall": call}]})
        answer = {"name": turn.tool, "response": {"output": turn.result(world)}}
        contents.append({"role": "user", "parts": [{"functionResponse": answer}]})
    return {"systemInstruction": {"parts": [{"text": world.write(run.system)}]}, "contents": contents}


def converse(run: Run, world: World) -> Json:
    messages: list[Json] = [{"role": "user", "content": [{"text": world.write(run.question)}]}]
    for n, turn in enumerate(run.turns, 1):
        use = {"toolUseId": f"call#{n}", "name": turn.tool, "input": _arguments(turn.arguments, world)}
        result = {"toolUseId": f"call#{n}", "content": [{"text": turn.result(world)}]}
        messages += [
            {"role": "assistant", "content": [{"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": result}]},
        ]
    return {"system": [{"text": world.write(run.system)}], "messages": messages}


def _arguments(arguments: dict[str, Text], world: World) -> Json:
    return {name: _keyed(text, world) if name == KEYED else world.write(text) for name, text in arguments.items()}


def _keyed(text: Text, world: World) -> Json:
    """Return an object whose members are called by what a text refers to."""
    return {world.write([part]): world.write(text) for part in text if isinstance(part, Ref)} | {
        "text": world.write(text)
    }


REQUESTS: dict[str, Callable[[Run, World], Json]] = {
    "chat.completions": chat, "messages": anthropic, "responses": responses, "generateContent": gemini,
    "converse": converse,
}  # fmt: skip


# -- answers -------------------------------------------------------------------------------------------------------------------------------


def _pieces(rng: random.Random, text: str) -> list[str]:
    """Cut a text at random, as models' tokens do."""
    cuts = sorted({rng.randint(0, len(text)) for _ in range(rng.randint(0, 8))})
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if start < end]


def _sse(events: Sequence[tuple[str, Json]], *, done: bool = False) -> list[bytes]:
    lines = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(value)}\n\n" for name, value in events]
    return [line.encode() for line in [*lines, *(["data: [DONE]\n\n"] if done else [])]]


def _say(run: Run, world: World) -> tuple[str, str, Json]:
    """Return words, tool and arguments."""
    if run.call is None:
        return world.write(run.answer), "", {}
    return "", run.call[0], _arguments(run.call[1], world)


def chat_answer(run: Run, world: World, cut: Callable[[str], list[str]] | None) -> list[bytes]:
    text, tool, arguments = _say(run, world)
    call = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": tool, "arguments": json.dumps(arguments)},
    }
    if cut is None:
        message = {"role": "assistant", "content": text} | ({"tool_calls": [call]} if tool else {})
        return [
            json.dumps({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        ]
    deltas: list[Json] = [{"content": piece} for piece in cut(text)]
    if tool:
        deltas.append({"tool_calls": [{**call, "function": {"name": tool, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in cut(json.dumps(arguments))
        ]
    return _sse(
        [("", {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas],
        done=True,
    )


def anthropic_answer(run: Run, world: World, cut: Callable[[str], list[str]] | None) -> list[bytes]:
    text, tool, arguments = _say(run, world)
    block: Json = (
        {"type": "tool_use", "id": "toolu_1", "name": tool, "input": arguments}
        if tool
        else {"type": "text", "text": text}
    )
    if cut is None:
        return [
            json.dumps(
                {"id": "msg", "type": "message", "role": "assistant", "content": [block], "stop_reason": "end_turn"}
            ).encode()
        ]
    empty = {**block, "input": {}} if tool else {**block, "text": ""}
    deltas: list[Json] = (
        [{"type": "input_json_delta", "partial_json": piece} for piece in cut(json.dumps(arguments))]
        if tool
        else [{"type": "text_delta", "text": piece} for piece in cut(text)]
    )
    events: list[tuple[str, Json]] = [
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty})
    ]
    events += [("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas]
    return _sse([*events, ("message_stop", {"type": "message_stop"})])


def responses_answer(run: Run, world: World, cut: Callable[[str], list[str]] | None) -> list[bytes]:
    text, tool, arguments = _say(run, world)
    written = json.dumps(arguments)
    item: Json = (
        {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": tool, "arguments": written}
        if tool
        else {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    )
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    if cut is None:
        return [json.dumps(whole).encode()]
    started = {**item, "arguments": ""} if tool else {**item, "content": []}
    kind = "response.function_call_arguments.delta" if tool else "response.output_text.delta"
    events: list[tuple[str, Json]] = [
        ("response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": started})
    ]
    events += [
        (kind, {"type": kind, "item_id": item["id"], "output_index": 0, "delta": piece})
        for piece in cut(written if tool else text)
    ]
    events.append(("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}))
    return _sse([*events, ("response.completed", {"type": "response.completed", "response": whole})])


def gemini_answer(run: Run, world: World, cut: Callable[[str], list[str]] | None) -> list[bytes]:
    text, tool, arguments = _say(run, world)

    def value(part: Json) -> Json:
        return {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], "modelVersion": "g"}

    if tool:
        parts: list[Json] = [{"functionCall": {"name": tool, "args": arguments}}]
    else:
        parts = [{"text": piece} for piece in (cut(text) if cut else [text])]
    if cut is None:
        return [json.dumps(value(parts[0]), indent=2).encode()]
    return _sse([("", value(part)) for part in parts])


def converse_answer(run: Run, world: World, cut: Callable[[str], list[str]] | None) -> list[bytes]:
    text, tool, arguments = _say(run, world)
    if cut is None:
        block: Json = {"toolUse": {"toolUseId": "t", "name": tool, "input": arguments}} if tool else {"text": text}
        return [
            json.dumps(
                {"output": {"message": {"role": "assistant", "content": [block]}}, "stopReason": "end_turn"}
            ).encode()
        ]
    events: list[tuple[str, Json]] = []
    if tool:
        events.append(
            ("contentBlockStart", {"start": {"toolUse": {"toolUseId": "t", "name": tool}}, "contentBlockIndex": 0})
        )
        deltas: list[Json] = [{"toolUse": {"input": piece}} for piece in cut(json.dumps(arguments))]
    else:
        deltas = [{"text": piece} for piece in cut(text)]
    events += [("contentBlockDelta", {"delta": delta, "contentBlockIndex": 0}) for delta in deltas]
    return [
        aws_frame(name, json.dumps(value).encode())
        for name, value in [*events, ("messageStop", {"stopReason": "end_turn"})]
    ]


def aws_frame(kind: str, payload: bytes) -> bytes:
    """Write one message of AWS's event stream."""
    fields = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(n)]) + n.encode() + b"\x07" + struct.pack(">H", len(v)) + v.encode() for n, v in fields.items()
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


ANSWERS: dict[str, Callable[[Run, World, Callable[[str], list[str]] | None], list[bytes]]] = {
    "chat.completions": chat_answer, "messages": anthropic_answer, "responses": responses_answer,
    "generateContent": gemini_answer, "converse": converse_answer,
}  # fmt: skip
_STREAM = {"converse": "application/vnd.amazon.eventstream"}


def write_answer(operation: str, run: Run, world: World, *, stream: bool, seed: int) -> Response:
    """Return a run's answer in one dialect; the same seed cuts a stream in the same number of pieces."""
    rng = random.Random(seed)
    chunks = ANSWERS[operation](run, world, (lambda text: _pieces(rng, text)) if stream else None)
    kind = _STREAM.get(operation, "text/event-stream") if stream else "application/json"
    headers = (("content-type", kind), ("content-encoding", "identity"), ("etag", "x"), ("x-request-id", "req_1"))
    return Response(200, "OK", headers, tuple(Chunk(100 * n, data) for n, data in enumerate(chunks)), chunked=stream)


def said(operation: str, response: Response) -> tuple[str, str, object]:
    """Return what an answer says: words, tool, arguments."""
    message = read_answer("openai", operation, header(response.headers, "content-type") or "", response.body)
    assert message is not None, response.body
    if not message.tool_calls:
        return message.text, "", None
    call = message.tool_calls[0]
    return message.text, call.name, json.loads(call.arguments)
