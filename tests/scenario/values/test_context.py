"""Which scenario runs here."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from llmproxy import scenario
from llmproxy.scenario.values.context import context_scenario
from tests.scenario.people import Agent, executor


def test_outside_a_scenario_there_is_none() -> None:
    """No LookupError: a decorated function calls through."""
    assert context_scenario.get() is None


def test_inside_it_is_the_executor() -> None:
    """For agents and steps, also in tasks and threads that asyncio starts; not in threads of one's own."""
    seen: list[Any] = []

    async def look(_given: object) -> str:
        seen.append(context_scenario.get())
        seen.append(await asyncio.to_thread(context_scenario.get))
        thread = threading.Thread(target=lambda: seen.append(context_scenario.get()))
        thread.start()
        thread.join()
        return "x"

    made = executor(Agent(look), script=[scenario.agent(), lambda _state: seen.append(context_scenario.get())])
    asyncio.run(made.run())
    assert seen == [made, made, None, made]


def test_afterwards_it_is_what_it_was() -> None:
    """A run leaves nothing behind in the caller's context, nor does making an executor."""

    async def go() -> None:
        made = executor(Agent(), max_turns=1)
        assert context_scenario.get() is None
        await made.run()
        assert context_scenario.get() is None
        await made.agent()
        assert context_scenario.get() is None

    asyncio.run(go())
