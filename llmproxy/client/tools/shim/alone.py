"""The shim without a proxy: an engine of its own on the store, for one client of one server."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.client.tools.shim.hosts import HeardLine

if TYPE_CHECKING:
    from llmproxy.core.control.tool_lines import ToolLine
    from llmproxy.core.engine.engine import Engine
    from llmproxy.core.sessions.exchange import Exchange
    from llmproxy.settings import Settings


class _OwnShell:
    """Carries out what the engine decides, at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._over: list[Exchange] = []

    def begin(self, exchange: Exchange) -> None:
        """Note nothing: there is no other who could wait for it."""

    def settle(self, exchange: Exchange, status: int) -> None:
        self._engine.outcome(exchange, status)

    def keep(self, exchange: Exchange, *, proper: bool = True) -> None:
        """Store an answer; it is reported when its client has it. Raises LLMProxyError."""
        from llmproxy.protocol import Decision

        if exchange.decision is Decision.RECORD:
            self._engine.store_answer(exchange, proper=proper)
        self._over.append(exchange)

    def report(self) -> None:
        while self._over:
            exchange = self._over.pop(0)
            self._engine.outcome(exchange, exchange.recording.status)


class OwnHost:
    """Decides by itself."""

    def __init__(self, settings: Settings, server: str, env: Mapping[str, str], secrets: Sequence[str]) -> None:
        """Open store and session; `secrets` are values that must not be kept. Raises LLMProxyError."""
        from llmproxy.client.environment.circumstances import gather_circumstances
        from llmproxy.core.bindings import check_circumstance
        from llmproxy.core.control.tool_lines import ToolLine
        from llmproxy.core.engine.engine import Engine
        from llmproxy.core.faults import load_faults
        from llmproxy.core.keys.scrub import Rules
        from llmproxy.core.misses.again import Again
        from llmproxy.core.secrets.redact import Redactor
        from llmproxy.core.sessions.exchange import Config
        from llmproxy.core.sessions.outcomes.journal import Journal
        from llmproxy.settings import shown_path

        config = Config(
            mode=settings.mode,
            cassette=settings.cassette,
            exhausted=settings.exhausted,
            bind=settings.bind,
            store=settings.store,
            shown=shown_path(settings.store),
            again=Again("llmproxy mcp", " -- ..."),
            rules=Rules.from_config(settings.normalize.as_config()),
            faults=load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed) if settings.faults else None,
        )
        self._journal = Journal.open(Path(f"{config.store}.state.db"), time.time)
        holder = f"llmproxy mcp {os.getpid()} on {platform.node()}"
        self._engine = Engine(
            config, redactor=Redactor(), journal=self._journal, now=time.time, clock=time.monotonic, holder=holder
        )
        found = [check_circumstance(**each) for each in gather_circumstances(env, Path.cwd(), git=False)]
        session = self._engine.sessions.open(settings.cassette, mode=settings.mode, circumstances=found)
        self._shell = _OwnShell(self._engine)
        self._line: ToolLine = ToolLine(self._engine, self._shell, session.name, server)
        self._line.learn(secrets)

    def hear(self, line: bytes) -> HeardLine:
        """Say what becomes of a line of the client's. Raises LLMProxyError."""
        heard = self._line.hear(line)
        return HeardLine(heard.out, heard.forward, heard.late, heard.gone)

    def hear_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        """Keep an answer. Raises LLMProxyError."""
        self._line.hear_answer(number, lines, left=left)

    def catch_up(self) -> None:
        """Read the last line, report the last answer."""
        self._line.catch_up()
        self._shell.report()

    def hear_loss(self, number: int, why: str) -> None:
        """Keep nothing."""
        self._line.hear_loss(number, why)

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        """Close everything."""
        try:
            self._line.end(unasked)
            self._shell.report()
        finally:
            self._engine.close()
            self._journal.close()
