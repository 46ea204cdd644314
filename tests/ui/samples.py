"""Recordings that a viewer has to show: an agent with tools, a sub-agent and a retry; hostile texts; pictures; a great many calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llmproxy.core.forks.fork_rows import Fork, store_fork_row
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response, Usage

NOW = 1_800_000_000.0
MODEL = "claude-sonnet-4-5"
SYSTEM = "You are a careful coding agent. Read before you write.\n" + "Rules follow, one a line.\n" * 60
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mP8z8BQz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
EVIL = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script><svg onload=alert(1)>\x1b[2J\u202egnp.exe\ud800"
TOOLS = [
    {"name": "read_file", "description": "Read a file.", "input_schema": {"properties": {"path": {"type": "string"}}}},
    {
        "name": "write_file",
        "description": "Write a file.",
        "input_schema": {"properties": {"path": {"type": "string"}}},
    },
    {"name": "run_tests", "description": "Run the tests.", "input_schema": {"properties": {}}},
]

Block = dict[str, Any]


def says(*blocks: Block, text: str = "") -> list[Block]:
    return [*([{"type": "text", "text": text}] if text else []), *blocks]


def uses(name: str, call: str, **given: object) -> Block:
    return {"type": "tool_use", "id": call, "name": name, "input": given}


def result(call: str, text: object) -> Block:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


def events(blocks: Sequence[Block], usage: dict[str, int], stop: str) -> list[bytes]:
    """Return an answer of Anthropic's as the pieces of its stream."""
    start = {
        "type": "message_start",
        "message": {"id": "msg_1", "role": "assistant", "model": MODEL, "content": [], "usage": usage},
    }
    told: list[Block] = [start]
    for n, block in enumerate(blocks):
        empty: Block = {**block, **({"text": ""} if block["type"] == "text" else {"input": {}})}
        told.append({"type": "content_block_start", "index": n, "content_block": empty})
        text = block.get("text") or json.dumps(block.get("input"))
        for at in range(0, len(text), 12):
            kind = (
                {"type": "text_delta", "text": text[at : at + 12]}
                if "text" in block
                else {"type": "input_json_delta", "partial_json": text[at : at + 12]}
            )
            told.append({"type": "content_block_delta", "index": n, "delta": kind})
        told.append({"type": "content_block_stop", "index": n})
    told.append(
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": usage["output_tokens"]}}
    )
    told.append({"type": "message_stop"})
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in told]


def call(
    n: int,
    messages: Sequence[Block],
    blocks: Sequence[Block],
    *,
    at: float,
    system: str = SYSTEM,
    tools: Sequence[Block] = TOOLS,
    status: int = 200,
    cassette: str = "agent",
    party: str = "agent",
) -> Interaction:
    """Return one streamed call of Anthropic's, or a failed one."""
    body = {
        "model": MODEL,
        "max_tokens": 4096,
        "stream": True,
        "system": system,
        "tools": tools,
        "messages": list(messages),
    }
    data = json.dumps(body).encode()
    usage = {"input_tokens": len(data) // 4, "output_tokens": len(json.dumps(list(blocks))) // 4}
    if status == 200:
        stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        pieces = events(blocks, usage, stop)
        kind = "text/event-stream"
    else:
        pieces = [
            json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()
        ]
        kind = "application/json"
    chunks = tuple(Chunk(420_000 + 37_000 * k, piece) for k, piece in enumerate(pieces))
    return Interaction(
        provider="anthropic",
        operation="messages",
        key=Key(f"v2:{n:064x}"),
        request=Request(
            "POST",
            "/v1/messages",
            (("content-type", "application/json"), ("anthropic-version", "2023-06-01"), ("x-api-key", "<redacted>")),
            data,
        ),
        response=Response(
            status,
            "OK" if status == 200 else "Overloaded",
            (("content-type", kind),),
            chunks,
            Ending.COMPLETE,
            400_000,
            chunked=True,
        ),
        started_at=NOW + at,
        cassette=cassette,
        party=party,
        model=MODEL,
        stream=True,
        upstream="https://api.anthropic.com",
        usage=Usage(usage["input_tokens"], usage["output_tokens"], usage["input_tokens"] // 2)
        if status == 200
        else Usage(),
    )


def agent(cassette: str = "agent", fix: str = "return a + b") -> list[Interaction]:
    """Return the calls of a coding agent: it reads, is refused once, writes, tests, asks a sub-agent, and reports."""
    asked: list[Block] = [{"role": "user", "content": "The sum in calc.py is wrong. Find out why, and mend it."}]
    one = says(uses("read_file", "toolu_1", path="calc.py"), text="I will look at the file first.")
    two = says(
        uses("write_file", "toolu_2", path="calc.py", content=f"def add(a, b):\n    {fix}\n"),
        uses("run_tests", "toolu_3"),
    )
    review = [{"role": "user", "content": "Review this change: def add(a, b): " + fix}]
    four = says(text=f"The sum was wrong because `add` subtracted. It is `{fix}` now, and all 14 tests pass.")
    then = [*asked, {"role": "assistant", "content": one}, result("toolu_1", "def add(a, b):\n    return a - b\n")]
    returned = [*result("toolu_2", "written")["content"], *result("toolu_3", "14 passed in 0.3 s")["content"]]
    last = [*then, {"role": "assistant", "content": two}, {"role": "user", "content": returned}]
    return [
        call(1, asked, one, at=0, cassette=cassette),
        call(2, then, [], at=1.4, status=529, cassette=cassette),
        call(2, then, two, at=2.3, cassette=cassette),
        call(
            3,
            review,
            says(text="Looks right: the sign was the only fault."),
            at=4.1,
            system="You review.",
            tools=(),
            cassette=cassette,
        ),
        call(4, last, four, at=40, cassette=cassette),
    ]


def picture() -> Interaction:
    """Return a call with a picture in it, and one that must not be shown."""
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    unsafe = {"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml", "data": PICTURE}}
    asked: list[Block] = [{"role": "user", "content": [shown, unsafe, {"type": "text", "text": "What is this?"}]}]
    return call(9, asked, says(text="A blue square."), at=0, cassette="picture")


def hostile() -> list[Interaction]:
    """Return calls of which every text wants to be markup."""
    asked = [{"role": "user", "content": EVIL}]
    tool = {"name": EVIL, "description": EVIL, "input_schema": {}}
    spoken = partial(call, tools=[tool], cassette="hostile")
    one = spoken(11, asked, says(uses(EVIL, "toolu_9", **{EVIL: EVIL}), text=EVIL), at=0, system=EVIL)
    then: list[Block] = [*asked, {"role": "assistant", "content": says(uses(EVIL, "toolu_9"))}, result("toolu_9", EVIL)]
    two = spoken(12, then, says(text="javascript:alert(1) " + EVIL), at=3, system=EVIL + "2")
    return [one, two]


def store(path: Path, *interactions: Interaction) -> Path:
    """Make a store of them; without any, of all of the above."""
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as made:
        found = interactions or (*agent(), *agent("forked", "return sum((a, b))"), picture(), *hostile())
        for each in found:
            made.add_interaction(each, supersede=False)
        for name in dict.fromkeys(each.cassette for each in found):
            made.end_writing(name, 1, "test", clean=True)
        if not interactions:
            store_fork_row(made, Fork("forked", "agent", 3, "the answer of call 2 was overridden", shared=2))
    return path


def personal() -> Interaction:
    """Return a call of a run whose home and user were declared."""
    said = [{"name": "home", "value": "/home/gertrude"}, {"name": "user", "value": "gertrude"}]
    asked = [{"role": "user", "content": "Read /home/gertrude/notes.txt"}]
    made = call(20, asked, says(text="It is in /home/gertrude."), at=0, cassette="personal")
    return dataclasses.replace(made, run_variables=json.dumps(said))
