"""One request on its way."""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.sessions.exchange import Config, Harmless
from llmproxy.core.traffic.interaction import Key
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_accounts import exchange


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
