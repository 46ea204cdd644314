"""Chats with their true keys in real stores, and the commands run on them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.core.keys.normalize import build_key, canonicalize_request
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.routing import route
from llmproxy.core.sessions.exchange import CallProgress, EffectiveRequest, Exchange, RoutedRequestHead
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.traffic.interaction import Chunk, Ending, Headers, Interaction, Request, Response, Usage
from llmproxy.protocol import AGENT

NOW = 1_800_000_000.0
EVIL = "\x1b]0;owned\x07\x1b[2J\u202e"
ODD = bytes(range(256))


def chat(text: str = "How are you?", answer: str = "Fine.", **changes: object) -> Interaction:
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    said = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]}).encode()
    request = Request("POST", "/v1/chat/completions", (("content-type", "application/json"),), body)
    rules = Rules()
    made = Interaction(
        provider="openai",
        operation="chat.completions",
        key=build_key(canonicalize_request(request, route(request.target, (), {}), rules, lambda _: None)),
        request=request,
        response=Response(200, "OK", (("content-type", "application/json"),), (Chunk(1500, said),), Ending.COMPLETE),
        started_at=NOW,
        model="gpt-4o",
        usage=Usage(11, 2),
        rules=rules.rules_digest,
        upstream="https://api.openai.com",
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def chat_exchange(session: Session, headers: Headers) -> Exchange:
    """Return a request for a chat that has arrived, and whose body is empty."""
    where = route("/v1/chat/completions", headers)
    place = RoutedRequestHead(AGENT, session.name, where, True, "POST", headers, where.operation, b"", 0, {})
    return Exchange(place, session, CallProgress(0, 1.0, NOW), EffectiveRequest(headers, b""))


def fill(path: Path, *interactions: Interaction, supersede: bool = False) -> None:
    with SqliteCassetteStore.open(path, writable=True, now=lambda: NOW) as store:
        for interaction in interactions:
            store.add_interaction(interaction, supersede=supersede)


def run(capsys: pytest.CaptureFixture[str], path: Path, *typed: str) -> tuple[int, str]:
    """Run a command on a store and return its exit code and everything it said."""
    return run_typed(capsys, typed[0], "--store", str(path), *typed[1:])


def run_typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command as it is typed; returns the same."""
    code = main(list(words))
    captured = capsys.readouterr()
    return int(code), captured.out + captured.err
