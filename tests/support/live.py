"""An agent, its model and its tools without any socket, through a real engine: who is live is a function, who is recorded a recording.

with Bench(store, "record", model=old, tools=World()) as bench:
    run = bench.run("do it")
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from llmproxy.core.engine.engine import Engine
from llmproxy.core.mixed_live_replay import LiveChannelSettings
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import Channel, Decision, Mode, UnknownToolPolicy

Json = dict[str, Any]
HOST = "api.example.com"


class Wish(NamedTuple):
    """A call that a model asks for."""

    tool: str
    arguments: Mapping[str, Any]


class Turn(NamedTuple):
    """What a model says: calls, or its last words."""

    wishes: tuple[Wish, ...] = ()
    text: str = ""
    tokens: tuple[int, int] = (10, 5)


Model = Callable[[Json], Turn]
"""Answers a request of chat completions."""


def scripted(turns: Sequence[Turn]) -> Model:
    """Return a model that says these, whatever it is asked."""
    said = iter(turns)
    return lambda _request: next(said)


def written(turn: Turn, model: str = "gpt-4o", number: int = 0) -> bytes:
    calls = [
        {
            "id": f"call_{number}_{n}",
            "type": "function",
            "function": {"name": wish.tool, "arguments": json.dumps(wish.arguments)},
        }
        for n, wish in enumerate(turn.wishes)
    ]
    message: Json = {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": turn.tokens[0], "completion_tokens": turn.tokens[1], "total_tokens": sum(turn.tokens)}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return json.dumps({"id": f"c{number}", "model": model, "choices": [choice], "usage": usage}).encode()


@dataclass
class World:
    """Servers of tools with a state: what is set, what is on, how often it was counted; `asked` is every call that really came."""

    values: dict[str, int] = field(default_factory=dict)
    on: bool = False
    counted: int = 0
    asked: list[Wish] = field(default_factory=list)
    reading: frozenset[str] = frozenset({"get", "look"})
    """Tools that say that they only read."""

    def call(self, tool: str, given: Mapping[str, Any]) -> str:
        self.asked.append(Wish(tool, dict(given)))
        match tool:
            case "set":
                self.values[given["name"]] = given["to"]
                return "set"
            case "get":
                return str(self.values.get(given["name"], 0))
            case "toggle":
                self.on = not self.on
                return "started" if self.on else "stopped"
            case "count":
                self.counted += 1
                return str(self.counted)
            case "look":
                return f"{sorted(self.values.items())} {self.on} {self.counted}"
        return f"no tool {tool}"

    def listed(self) -> list[Json]:
        names = ("set", "get", "toggle", "count", "look")
        return [
            {"name": name, "inputSchema": {}, "annotations": {"readOnlyHint": name in self.reading}} for name in names
        ]

    def answer(self, message: Json) -> Json:
        if message["method"] == "tools/call":
            text = self.call(message["params"]["name"], message["params"].get("arguments", {}))
            result: Json = {"content": [{"type": "text", "text": text}]}
        else:
            result = {"tools": self.listed()}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Ran(NamedTuple):
    calls: list[tuple[Wish, str | None]]
    """Calls of tools and what came back; None where our text did."""
    text: str
    report: Json


class Clock:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self, start: float) -> None:
        self._ticks = itertools.count(start)

    def __call__(self) -> float:
        return float(next(self._ticks))


class Bench:
    """An engine over a store; `model` and `tools` are the real ones."""

    def __init__(
        self,
        store: Path,
        mode: str = "replay",
        *,
        model: Model | None = None,
        tools: World | None = None,
        live: Sequence[str] = (),
        unknown: str = "error",
        read_only: Sequence[str] = (),
        began: float = 1_800_000_000.0,
        lasting: int = 20,
        thinking: int = 0,
    ) -> None:
        """`lasting`: how many microseconds a real answer takes, after `thinking` seconds; every look at the clock takes one."""
        self._lasting, self._thinking = lasting, thinking
        self._journal = CallDecisionJournalWriter.open(Path(f"{store}.state.db"), lambda: began)
        channels = (
            LiveChannelSettings(frozenset(map(Channel, live)), UnknownToolPolicy(unknown), tuple(read_only))
            if live
            else None
        )
        self.now = Clock(began)
        dead = {"tools": "http://127.0.0.1:9"}
        config = EngineConfig(mode=Mode[mode.upper()], store=store, live=channels, upstreams=dead, record_host=(HOST,))
        redactor, clock = Redactor(), Clock(0.0)
        self.engine = Engine(config, redactor=redactor, journal=self._journal, now=self.now, clock=clock)
        self.model, self._tools = model, tools
        self._answers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.engine.close()
        self._journal.close()

    def ask(
        self, session: str, target: str, body: bytes, live: Callable[[bytes], bytes], method: str = "POST"
    ) -> tuple[bytes | None, str]:
        """Send a request as a client would: (answer, ""), or (None, why not)."""
        engine = self.engine
        exchange = engine.begin_exchange(
            method, f"/s/{quote(session, safe='')}{target}", None, (("content-type", "application/json"),)
        )
        engine.stages.identify_and_decide(exchange, body)
        status, answer, why = 200, None, ""
        match exchange.decision:
            case Decision.RECORD:
                answer = live(exchange.request.data)
                exchange.recording.on_head(
                    10, 200, "OK", (("content-type", "application/json"), ("content-length", str(len(answer))))
                )
                exchange.recording.on_data(self._lasting, answer)
                engine.writer.store_answer(exchange, proper=True)
            case Decision.REPLAY:
                answer = engine.answering.serve_recorded(exchange).body
            case _:
                status, why = 501, str(exchange.error or LLMProxyError("refused"))
        engine.accounting.record_end(exchange, status)
        return answer, why

    def tool(self, session: str, wish: Wish) -> str | None:
        """Call a tool; None where our text came instead of its answer."""
        params = {"name": wish.tool, "arguments": dict(wish.arguments)}
        message = {"jsonrpc": "2.0", "id": next(self._answers), "method": "tools/call", "params": params}
        answer, _ = self.ask(session, "/tools/mcp", json.dumps(message).encode(), self._serve)
        return None if answer is None else str(json.loads(answer)["result"]["content"][0]["text"])

    def list_tools(self, session: str) -> None:
        listed = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}
        self.ask(session, "/tools/mcp", json.dumps(listed).encode(), self._serve)

    def look(self, session: str) -> str | None:
        """Read over HTTP what the tools have set; None where our text came instead."""
        answer, _ = self.ask(session, f"/{HOST}/look", b"", lambda _: self._read().encode(), method="GET")
        return None if answer is None else answer.decode()

    def _read(self) -> str:
        assert self._tools is not None, "a service was really asked"
        return self._tools.call("look", {})

    def _serve(self, body: bytes) -> bytes:
        assert self._tools is not None, "a tool really ran"
        for _ in range(self._thinking):
            self.now()
        return json.dumps(self._tools.answer(json.loads(body))).encode()

    def _say(self, body: bytes) -> bytes:
        assert self.model is not None, "a model was really asked"
        return written(self.model(json.loads(body)), number=next(self._answers))

    def run(self, task: str, session: str = "x", *, model: str = "gpt-4o", close: bool = True) -> Ran:
        """Let an agent do a task: ask its model, call the tools that it names, until it has said its last words."""
        self.engine.sessions.open_session(session)
        self.list_tools(session)
        messages: list[Json] = [{"role": "user", "content": task}]
        calls: list[tuple[Wish, str | None]] = []
        for _ in range(50):
            body = json.dumps({"model": model, "messages": messages}).encode()
            answer, why = self.ask(session, "/v1/chat/completions", body, self._say)
            if answer is None:
                return Ran(calls, f"refused: {why}", self._end(session, close=close))
            message = json.loads(answer)["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return Ran(calls, message["content"], self._end(session, close=close))
            for call in message["tool_calls"]:
                wish = Wish(call["function"]["name"], json.loads(call["function"]["arguments"]))
                got = self.tool(session, wish)
                calls.append((wish, got))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": got or "error: not recorded"})
        raise AssertionError("the agent never ends")

    def _end(self, session: str, *, close: bool) -> Json:
        from llmproxy.core.control.endpoints import build_session_report

        told = build_session_report(self.engine, self.engine.sessions.get_session(session))
        if close:
            self.engine.sessions.close_session(session)
        return told

    def interactions(self, cassette: str) -> Iterator[Any]:
        store = self.engine.store
        assert store is not None
        return store.iter_interactions(cassette)
