"""One request on its way."""

from __future__ import annotations

import ast
from dataclasses import fields, replace

import pytest

from llmproxy.core.sessions.exchange import Config, Exchange, Harmless
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.interaction import Key
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_accounts import exchange
from tests.support.process import ROOT


def test_who_asks_what_is_party_and_key() -> None:
    """Before the body is here there is no key."""
    made = exchange(Decision.REPLAY)
    assert made.walker == ("agent", Key(""))
    made.identity = replace(made.identity, key=Key("v1:1"))
    assert made.walker == ("agent", Key("v1:1"))
    assert made.family == "openai"


def test_defaults_spend_nothing() -> None:
    """An engine that is told nothing replays, from this folder, and reaches nobody."""
    config = Config()
    assert (config.mode, config.allow_live, config.allow_host, config.miss_status) == (Mode.REPLAY, False, (), None)
    assert Harmless.status == 204


@pytest.mark.parametrize("kind", [Exchange, Session])
def test_a_call_and_a_session_hold_what_every_one_has(kind: type) -> None:
    """What a feature knows of them is a value of its own (`Slots`, `Interceptor`)."""
    assert len(fields(kind)) <= 15


def test_no_stage_of_a_call_is_long() -> None:
    """Nor does one begin to ask who has what."""
    for name in ("stages", "decide", "identity", "fast_path", "accounts", "answer_writer"):
        for node in ast.walk(ast.parse((ROOT / f"llmproxy/core/engine/{name}.py").read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, node.name
