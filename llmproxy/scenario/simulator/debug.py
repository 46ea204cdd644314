"""Debug mode: before the simulator speaks, a person may write in its place.

Enter             the simulator speaks
any text          is what the user says; it joins the conversation
/pass [reason]    ends the scenario as passed
/fail [reason]    ends it as failed
/judge            demands a verdict now
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from llmproxy.errors import MachineError

HELP = "[Debug Mode] Press enter to continue or type a message to send (/pass, /fail, /judge)"
_ONE_AT_A_TIME = threading.Lock()
"""Scenarios that run in parallel share one terminal."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a person typed."""

    text: str = ""
    """A message, or the reason of a verdict; empty: nothing."""
    success: bool | None = None
    judge: bool = False


def parse(line: str) -> Said:
    """Return what a line means. A line that begins with another word after a slash is a message like any other."""
    word, _, rest = line.strip().partition(" ")
    if word in {"/pass", "/fail"}:
        return Said(rest.strip(), success=word == "/pass")
    if word == "/judge" and not rest:
        return Said(judge=True)
    return Said(line if line.strip() else "")


async def ask(name: str = "", read: Callable[[str], str] = input) -> Said:
    """Ask at the terminal, without blocking the loop. Raises MachineError where there is none."""
    prefix = f"[Scenario: {name}] " if name else ""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def work() -> None:
        try:
            with _ONE_AT_A_TIME:
                line, error = read(f"\n{prefix}{HELP}\n{prefix}User: "), None
        except Exception as caught:  # noqa: BLE001 (raised where it is awaited)
            line, error = "", caught
        try:
            loop.call_soon_threadsafe(_settle, answer, line, error)
        except RuntimeError:
            return  # nobody waits any more

    threading.Thread(target=work, name="llmproxy-debug", daemon=True).start()
    try:
        return parse(await answer)
    except (EOFError, OSError) as error:
        raise MachineError(
            f"debug=True asks at the terminal, and there is none ({type(error).__name__}).",
            hint="Run it in a terminal (pytest: with -s), or leave debug out.",
        ) from error


def _settle(answer: asyncio.Future[str], line: str, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(line)
    else:
        answer.set_exception(error)
