"""Whose fault an exception is: the status that a run gets, by what was raised and who was at work.

AgentError                         the agent's           any other product error     the environment's
AssertionError in a step           a failed check        anything else in the agent  the agent's
anything else in a user or judge   the environment's     anything else in a step     the environment's (the test is broken)
"""

from __future__ import annotations

import asyncio

from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.report.events import Status
from llmproxy.scenario.types import AgentRole

_ENGINE = ("llmproxy.", "asyncio.", "threading", "concurrent.", "contextlib")


def status_of(error: BaseException, role: AgentRole | None) -> Status:
    """Return the status of a run that `error` ended while somebody of `role` was called; None: a step or a callback."""
    if isinstance(error, AgentError):
        return Status.AGENT_ERROR
    if isinstance(error, LLMProxyError) or not isinstance(error, Exception):
        return Status.ENVIRONMENT_ERROR
    if role is AgentRole.AGENT:
        return Status.AGENT_ERROR
    return Status.FAILED if role is None and isinstance(error, AssertionError) else Status.ENVIRONMENT_ERROR


def describe_exit(who: str, error: SystemExit) -> str:
    """Return what to say of somebody who ended the whole program, which must not end as if all were well."""
    return f"{who} called sys.exit({'' if error.code is None else repr(error.code)})"


def describe_error(error: BaseException) -> str:
    """Return an error in words: its own, after its kind where it is not one of ours."""
    if isinstance(error, LLMProxyError):
        return str(error)
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted: the run was cancelled before it ended"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shorten_traceback[E: BaseException](error: E) -> E:
    """Return an error whose traceback begins with the first frame that is its author's: not those of the engine, loops and threads.

    Of one that comes from us there is no such frame: its text explains it.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_ENGINE):
        frame = frame.tb_next
    if isinstance(error, LLMProxyError | asyncio.CancelledError) or frame is not None:
        return error.with_traceback(frame)
    return error
