"""What a suite runs around its scenarios: a command, or a Python function. One that fails is an error of the environment."""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.errors import LLMProxyError, MachineError, SuiteError
from llmproxy.scenario.values.run import describe_exit
from llmproxy.suite.stores.config import load_attribute

if TYPE_CHECKING:
    from llmproxy.suite.schema.suite import Hook, Teardown

_TAIL = 1000
"""Characters of its output that an error shows."""


async def run_hook(hook: Hook | Teardown, folder: Path, env: Mapping[str, str], name: str) -> None:
    """Run a hook in the suite's folder; `env` is added to the environment, `name` says which one it is in errors.

    Raises:
        SuiteError: it cannot be found.
        MachineError: it failed, or took too long.

    """
    limit = hook.timeout / 1000
    try:
        async with asyncio.timeout(limit):
            if hook.python:
                await _function(hook.python, folder, env, name)
            elif hook.command:
                await _command(hook.command, folder, env, name)
    except TimeoutError as error:
        raise MachineError(
            f"{name}: the hook did not end within {limit:g} s.", hint="`timeout:` beside it allows more."
        ) from error


async def _function(target: str, folder: Path, env: Mapping[str, str], name: str) -> None:
    found: Any = load_attribute(target, folder, name)
    if not callable(found):
        raise SuiteError(f"{name}: {target} is no function.")
    given = (dict(env),) if _takes_one(found) else ()
    try:
        value = found(*given) if inspect.iscoroutinefunction(found) else await asyncio.to_thread(found, *given)
        if inspect.isawaitable(value):
            await value
    except LLMProxyError:
        raise
    except SystemExit as error:
        raise MachineError(f"{name}: {describe_exit(target, error)}.") from error
    except Exception as error:
        raise MachineError(f"{name}: {target} failed: {type(error).__name__}: {error}") from error


def _takes_one(function: Any) -> bool:  # noqa: ANN401 - anything that can be called
    with suppress(TypeError, ValueError):
        return bool(inspect.signature(function).parameters)
    return False


async def _command(command: str | tuple[str, ...], folder: Path, env: Mapping[str, str], name: str) -> None:
    words = shlex.split(command) if isinstance(command, str) else list(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env={**os.environ, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(f"{name}: {words[0]} cannot be executed: {error.strerror or error}") from error
    try:
        said, _ = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await process.wait()
        raise
    if process.returncode:
        tail = said.decode("utf-8", "replace")[-_TAIL:].strip()
        raise MachineError(
            f"{name}: `{shlex.join(words)}` ended with {process.returncode}" + (f":\n{tail}" if tail else "")
        )
