"""A running service without knowledge of runs: its base URLs name one session of the proxy for all its callers.

It is tested one message at a time: while it answers, that session is bound to the run's. A service that forwards a
header of the request to its LLM calls can be tested in parallel (`propagates`), once a probe has proven it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from secrets import token_hex
from typing import Any, ClassVar, Self

from llmproxy.client.control import Control, ControlError
from llmproxy.errors import AgentError, SuiteError
from llmproxy.protocol import DEFAULT_SESSION, Mode
from llmproxy.scenario.agent_adapter import AdapterAttributes, AgentAdapter
from llmproxy.scenario.agents.http import HttpAdapter
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.turn_taking import bind_service
from llmproxy.scenario.types import AgentInput, AgentReturnTypes

PROBE = "llmproxy-probe"
PROBING = 20.0  # seconds; its answer does not matter


class ServiceAgent(AgentAdapter):
    in_process: ClassVar[bool] = False

    def __init__(self, agent: HttpAdapter, session: str = DEFAULT_SESSION, propagates: str | None = None) -> None:
        """Call the service by `agent`; `session` is the one in its base URLs, ``default`` without one.

        `propagates`: name of a header that it forwards, as ``x-llmproxy-session``, with each of its LLM calls.
        """
        if propagates is not None and not (propagates.isascii() and propagates.replace("-", "").isalnum()):
            raise SuiteError(f"propagates: {propagates!r} cannot be the name of a header.")
        self.agent = agent
        self.session = session
        self.propagates = propagates
        self.notes: tuple[str, ...] = ()
        self._run: RunSession | None = None
        self._proven: dict[str, bool] = {}
        """Probe results by proxy; shared with clones."""

    @property
    def session_to_bind(self) -> str | None:
        if self._run is None or self.agent.sends_session or self._proven.get(self._run.proxy):
            return None
        return self.session

    @property
    def declared_processing(self) -> Any:
        return AdapterAttributes.of_adapter(self.agent).declared_processing

    async def open(self, session: RunSession | None) -> None:
        self.notes, self._run = (), session
        await self.agent.open(session)
        if session is None or self.agent.sends_session:
            return
        if self.propagates is not None and session.proxy not in self._proven:
            await self._probe_header_propagation(session.control)
        if self.session_to_bind is None:
            self.agent.more_headers = {str(self.propagates): session.name}
            return
        await session.watch_service_session(self.session)
        if self.propagates is not None:
            did_not = f"{self.agent.who} did not send {self.propagates!r} on with its LLM calls"
            self.notes = (f"{did_not}, so it was tested one message at a time.",)

    async def close(self) -> None:
        self._run = None
        await self.agent.close()

    def clone(self) -> Self:
        made = super().clone()
        made.agent = self.agent.clone()
        return made

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Send one message and return the service's answer; the caller has the turn (`RunSession.speaking_turn`)."""
        return await self.agent.call(input)

    async def _probe_header_propagation(self, control: Control) -> None:
        """Send one message under a probe session, and check whether its LLM calls arrive there.

        Other destinations are bound to a second probe session meanwhile. Both replay an empty cassette: whatever the
        service does with the header, no call goes to a provider, and no model makes the agent act.
        """
        told, otherwise = (f"{PROBE}-{token_hex(8)}" for _ in range(2))
        for name in (told, otherwise):
            await asyncio.to_thread(control.open_session, name, mode=Mode.REPLAY.value)
        trial = self.agent.clone()
        trial.more_headers = {str(self.propagates): told}
        trial.timeout = min(trial.timeout, PROBING)
        try:
            async with bind_service(control, self.session, otherwise):
                if control.url in self._proven:
                    return  # another run tried it while this one waited
                with suppress(AgentError):  # the model's answer is a miss, which the service may take as it likes
                    await trial.call(_build_probe_input(told))
                reports = [await asyncio.to_thread(control.report, name) for name in (told, otherwise)]
                self._proven[control.url] = bool(reports[0].calls) and not reports[1].calls
        finally:
            await trial.close()
            for name in (told, otherwise):
                with suppress(ControlError):
                    await asyncio.to_thread(control.close_session, name)


def _build_probe_input(thread: str) -> AgentInput:
    hello = {"role": "user", "content": "Hello"}
    return AgentInput(thread_id=thread, messages=[hello], new_messages=[hello], scenario_state=None)
