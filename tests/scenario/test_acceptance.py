"""End to end, as a user has it: an agent with two tools in Python and in Node, simulator and judge, two processes.

The upstream is a scripted dialogue that refuses what it does not expect, and counts at its own door what arrives. It is recorded by one
process and replayed by another, with a proxy of its own, while the upstream is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider
from tests.scenario.shop import CALLS, CRITERIA, DONE, LOST, PLAIN, PLEASE, SHALL, dialogue, found, play, served
from tests.support import Listening, near

WAYS = ("node-lines", "node-http", "python")
"""How the agent is reached."""
TOOLS = [
    ["look_up_order", {"id": "A-1"}, {"item": "lamp", "status": "delivered on May 2", "paid": 30}],
    ["refund", {"id": "A-1", "amount": 30}, {"order": "A-1", "refunded": 30}],
]


@contextmanager
def agent_of(way: str, px: Listening, folder: Path) -> Iterator[str]:
    """Return what `run.py` calls this agent; the one behind HTTP runs meanwhile, started with its base URL at the proxy."""
    with ExitStack() as stack:
        yield stack.enter_context(served(folder, px.session_url("shop") + "/v1")) if way == "node-http" else way


def once(way: str, px: Listening, folder: Path, *options: str, judge: str = PLAIN, **env: str) -> dict[str, Any]:
    """Run the scenario in a process of its own and return what it found."""
    with agent_of(way, px, folder) as agent:
        return found(play(folder, agent, px.url, *options, judge=judge, env=env))


def both(provider: Provider) -> dict[str, str]:
    return {"openai": f"{provider.url}/v1", "anthropic": provider.url}


@pytest.mark.parametrize("way", [WAYS[0], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])])
def test_a_run_comes_back_offline_in_another_process(way: str, tmp_path: Path) -> None:
    """Same messages, verdict, evidence, tools and tokens; nothing reaches the upstream, which is asked itself."""
    with Provider(dialogue()) as provider:
        with near("record", tmp_path / "x.db", upstreams=both(provider)) as px:
            first = once(way, px, tmp_path, OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k")
        provider.finish()
        assert len(provider.requests) == CALLS
        assert provider.header_names().isdisjoint({"x-llmproxy-session", "x-llmproxy-party"})
    with Provider() as silent, near("replay", tmp_path / "x.db", upstreams=both(silent)) as px:
        second = once(way, px, tmp_path)
    assert (silent.connections, silent.requests) == (0, [])
    assert [message["content"] for message in first["messages"]] == [LOST, SHALL, PLEASE, DONE]
    assert (first["success"], [each["text"] for each in first["criteria"]]) == (True, list(CRITERIA))
    assert first["tools"] == TOOLS
    assert {party: use["calls"] for party, use in first["usage"].items()} == {"agent": 4, "judge": 2, "user": 2}
    assert (first.pop("replayed"), second.pop("replayed")) == (False, True)
    assert second == first


def test_a_changed_prompt_explains_itself(tmp_path: Path) -> None:
    """The run is an error, which names what differs from what was recorded, and what to type; no traceback of ours is in the way."""
    with Provider(dialogue()) as provider, near("record", tmp_path / "x.db", upstreams=both(provider)) as px:
        once("node-lines", px, tmp_path, ANTHROPIC_API_KEY="k", OPENAI_API_KEY="k")
    with near("replay", tmp_path / "x.db") as px:
        child = play(tmp_path, "node-lines", px.url, env={"SHOP_PROMPT": "You work for a lamp shop, and you are rude."})
    assert child.exit_code == 1
    said = child.stderr.splitlines()
    start = next(number for number, line in enumerate(said) if "MissError" in line and "Traceback" not in line)
    text = "\n".join(said[start:])
    assert "and you are rude" in text, text
    assert "differs at system prompt" in text or "differs at message" in text
    assert "--mode" in text or "record" in text
    assert child.stderr.count("Traceback") == 1
