"""An agent that is a command: one JSON object a line in, one a line out (docs/agents.md).

The process lives for one run (or for one conversation), in a group of its own that is killed with all its children.
Threads and blocking pipes talk with it rather than an event loop's: a conversation may continue in another loop than it
started in. A process that cannot be started was never reached; one that then dies, hangs or errs is the agent's error.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, Self

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import AgentError, AgentUnreachable, LLMProxyError, SuiteError, printable
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.run_session import RunSession, copy_env_without_proxy_changes
from llmproxy.scenario.types import AdapterModelAccessThroughProxy, AgentInput, AgentReturnTypes
from llmproxy.scenario.values.messages import (
    format_value_as_short_json,
    join_user_texts,
    keep_text_end,
    validate_agent_answer,
)

_PLAIN_PROGRAM = "A program that reads its input to the end and prints an answer: `command: {run: ..., lines: false}`."
_LIVES = ("run", "conversation")
_SHELL_NOT_FOUND = (126, 127)  # a shell's, or `env`'s, for a missing program
_LAST_WORDS = 0.5  # seconds to wait for the exit code after the end of the output
_LONGEST = 32 << 20  # bytes of a line
_KEPT = 200  # lines of standard error
_PIECE = 4096
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_GRACE = 3.0  # seconds to exit once the input is closed, and again after a signal


class ProcessEnded(Exception): ...


class LineTooLong(Exception): ...


class AgentProcess:
    def __init__(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> None:
        """Start it. Raises AgentUnreachable if the program does not exist, or is not executable."""
        found = shutil.which(words[0], path=env.get("PATH"))
        if found is None and cwd is not None and os.sep in words[0]:
            found = shutil.which(str(cwd / words[0]))
        try:
            self.popen = subprocess.Popen(
                [found or words[0], *words[1:]],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a group of its own: what it started ends with it
            )
        except (OSError, ValueError) as error:
            where = f" in {cwd}" if cwd and not cwd.is_dir() else ""
            hint = "Is it installed, and on the PATH?"
            if " " in words[0]:
                hint = (
                    'Write the command as a list of words, ["node", "agent.mjs"], or as one text that is split like a '
                    "shell's."
                )
            raise AgentUnreachable(
                f"the agent `{printable(' '.join(words))}` cannot be started{where}: {error}", hint=hint
            ) from error
        self._lines: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._complaints: deque[bytes] = deque(maxlen=_KEPT)
        name = f"agent {self.popen.pid}"
        works = (self._read_stdout, self._read_stderr)
        self._readers = [threading.Thread(target=work, daemon=True, name=name) for work in works]
        for reader in self._readers:
            reader.start()

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def stderr_tail(self) -> str:
        return b"".join(self._complaints).decode("utf-8", "replace")

    def write_stdin(self, data: bytes) -> None:
        """Write to its standard input; blocks while it does not read. Raises OSError when it has exited."""
        if (pipe := self.popen.stdin) is None or pipe.closed:
            raise BrokenPipeError("its input is closed")
        pipe.write(data)
        pipe.flush()

    def take_unread_line(self) -> bytes | None:
        with suppress(queue.Empty):
            found = self._lines.get_nowait()
            if isinstance(found, bytes):
                return found
            self._lines.put(found)
        return None

    def read_next_line(self, timeout: float) -> bytes:
        """Wait for the next non-empty line. Raises TimeoutError, ProcessEnded, LineTooLong."""
        try:
            found = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(found, bytes):
            return found
        self._lines.put(found)  # it stays at its end
        raise found

    def wait_for_exit(self, timeout: float) -> int | None:
        """Return its exit code once it has exited and its output is read; None if it continues."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join(timeout=1.0)
        return code

    def end_process(self, grace: float = _GRACE) -> None:
        with suppress(OSError):
            if self.popen.stdin is not None:
                self.popen.stdin.close()
        if self.wait_for_exit(grace) is None:
            self._signal_group(signal.SIGTERM)
            if self.wait_for_exit(grace) is None:
                self._signal_group(_KILL)
                self.popen.wait()
        self._signal_group(_KILL)
        for reader in self._readers:
            reader.join(timeout=1.0)
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None and not any(reader.is_alive() for reader in self._readers):
                pipe.close()

    def kill_group(self) -> None:
        self._signal_group(_KILL)
        self.end_process(grace=1.0)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.popen.pid, number)
            elif self.alive:
                self.popen.send_signal(number)

    def _read_stdout(self) -> None:
        pipe = self.popen.stdout
        assert pipe is not None  # noqa: S101 - asked for above
        problem: Exception = ProcessEnded()
        while line := _read_line_or_empty(pipe):
            if len(line) >= _LONGEST:
                problem = LineTooLong()
                break
            if line.strip():
                self._lines.put(line)
        self._lines.put(problem)

    def _read_stderr(self) -> None:
        pipe = self.popen.stderr
        assert pipe is not None  # noqa: S101 - the type's, not the user's
        while piece := _read_line_or_empty(pipe, _PIECE):
            self._complaints.append(piece)


def _read_line_or_empty(pipe: IO[bytes], limit: int = _LONGEST) -> bytes:
    try:
        return pipe.readline(limit)
    except (OSError, ValueError):  # closed under our feet
        return b""


class CommandAgent(AgentAdapter):
    in_process: ClassVar[bool] = False
    child: ClassVar[type[AgentProcess]] = AgentProcess

    @property
    def process_env_and_folder(self) -> tuple[Mapping[str, str], Path]:
        """Environment and folder of its process, without the proxy's variables."""
        return {**os.environ, **self.env}, self.cwd or Path.cwd()

    def __init__(
        self, command: str | Sequence[str], cwd: str | Path | None = None, env: Mapping[str, str] | None = None,
        lines: bool = True, timeout: float = 120.0,  # noqa: FBT001, FBT002 - written as lines=False
        process: Literal["run", "conversation"] = "run",
    ) -> None:  # fmt: skip
        """Prepare a command: words, or a text that is split like a shell's (no shell runs it).

        `env` adds variables; the proxy's take precedence. `lines=False` starts it for each message, with text in and
        text out. `timeout`: seconds for one answer. `process`: its lifetime.

        Raises SuiteError: the command is empty, or `process` is invalid.
        """
        try:
            self.words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(map(str, command))
        except ValueError as error:
            raise SuiteError(f"command: {command!r} cannot be split into words: {error}") from error
        if not self.words or not self.words[0]:
            raise SuiteError("command: there is no program to start.", hint='It is like ["node", "agent.mjs"]')
        if process not in _LIVES:
            raise SuiteError(f"process: {process!r} is not one of {', '.join(_LIVES)}{did_you_mean(process, _LIVES)}")
        self.cwd = None if cwd is None else Path(cwd)
        self.env = dict(env or {})
        self.lines, self.timeout, self.process = lines, timeout, process
        self.declared_processing: Any = None
        self._children: dict[str, AgentProcess] = {}
        self._closed = 0
        """Number of closes: a process being started in a thread meanwhile is discarded."""
        self._asked = 0
        self._heard = False

    @property
    def silence_hint(self) -> str:
        if self._heard or not self.lines:
            return ""
        opened = (
            "It was given a line of JSON and its input stays open; it answers with a line of JSON (docs/agents.md)."
        )
        return f"{opened} {_PLAIN_PROGRAM}"

    @property
    def who(self) -> str:
        return f"the agent `{printable(shlex.join(self.words))[:200]}`"

    async def open(self, session: RunSession | None) -> None:  # noqa: ARG002 - it comes with each input
        await self.close()

    async def close(self) -> None:
        self._closed += 1  # before the processes are taken: `_start_process` looks behind its own note
        children, self._children = list(self._children.values()), {}
        if children:
            loop = asyncio.get_running_loop()
            # No tasks, which Ctrl-C cancels all: what is under way is neither lost nor complained about.
            await asyncio.shield(asyncio.gather(*(loop.run_in_executor(None, child.end_process) for child in children)))

    def clone(self) -> Self:
        made = super().clone()
        made._children, made._asked = {}, 0  # noqa: SLF001 (its own kind; processes that run are somebody else's)
        return made

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        self._asked += 1
        closed = self._closed
        if not self.lines:
            name = f"message {self._asked}"
            return await asyncio.to_thread(
                self._run_program, name, join_user_texts(input.new_messages) or "", input.llm, closed
            )
        name = input.thread_id if self.process == "conversation" else ""
        frame = {
            "id": self._asked,
            "conversation": input.thread_id,
            "message": join_user_texts(input.new_messages),
            "messages": input.messages,
            "userId": getattr(input.scenario_state, "user_id", None),
            "llm": input.llm.to_dict() if input.llm else None,
        }
        said = await asyncio.to_thread(self._exchange_json, name, frame, input.llm, closed)
        self._heard = True
        self.declared_processing = said.get("processors")
        return validate_agent_answer(said, self.who)

    def _start_process(self, name: str, llm: AdapterModelAccessThroughProxy | None, closed: int) -> AgentProcess:
        """Start a process; ended at once if closed since `closed` was counted. Raises AgentError."""
        env = {**copy_env_without_proxy_changes(), **self.env}
        child = self._children[name] = self.child(self.words, self.cwd, llm.environment(env) if llm else env)
        if self._closed != closed:
            child.kill_group()
            raise AgentError(f"{self.who} was ended while it was being started.")
        return child

    def _exchange_json(
        self, name: str, frame: Mapping[str, Any], llm: AdapterModelAccessThroughProxy | None, closed: int
    ) -> Any:
        child = self._children.get(name) or self._start_process(name, llm, closed)
        if (early := child.take_unread_line()) is not None:
            raise self._build_output_error(child, early, "said something that nobody asked for")
        deadline = time.monotonic() + self.timeout
        try:
            child.write_stdin(json.dumps(frame, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            line = child.read_next_line(max(deadline - time.monotonic(), 0.0))
        except (ProcessEnded, OSError) as error:
            if isinstance(error, TimeoutError):
                raise self._kill_and_build_timeout_error(child) from error
            raise self._build_end_error(child) from error
        except LineTooLong as error:
            child.kill_group()
            raise AgentError(f"{self.who} wrote a line that has no end.") from error
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise self._build_output_error(child, line, "wrote a line on standard output that is no JSON") from None
        if not isinstance(value, dict):
            raise self._build_output_error(child, line, "wrote a line on standard output that is no object")
        if "id" in value and value["id"] != frame["id"]:
            other = format_value_as_short_json(value["id"])
            raise AgentError(f"{self.who} answered message {other} when it was asked message {frame['id']}.")
        return value

    def _run_program(self, name: str, message: str, llm: AdapterModelAccessThroughProxy | None, closed: int) -> Any:
        child = self._start_process(name, llm, closed)
        deadline = time.monotonic() + self.timeout
        said = b""
        try:
            with suppress(BrokenPipeError):  # it need not read what it was told
                child.write_stdin(message.encode("utf-8", "backslashreplace"))
            if child.popen.stdin is not None:
                with suppress(BrokenPipeError):
                    child.popen.stdin.close()
            with suppress(ProcessEnded):
                while True:
                    said += child.read_next_line(max(deadline - time.monotonic(), 0.0))
            if child.wait_for_exit(_LAST_WORDS):
                raise self._build_end_error(child)
            return validate_agent_answer(said.decode("utf-8", "replace").strip(), self.who)
        except TimeoutError as error:
            raise self._kill_and_build_timeout_error(child) from error
        finally:
            child.kill_group()
            self._children.pop(name, None)

    def _kill_and_build_timeout_error(self, child: AgentProcess) -> AgentError:
        child.kill_group()
        return _build_error(AgentError, child, f"{self.who} did not answer within {self.timeout:g} s, and was killed.")

    def _build_end_error(self, child: AgentProcess) -> AgentError | AgentUnreachable:
        if (code := child.wait_for_exit(_LAST_WORDS)) is None:
            child.kill_group()
            return _build_error(AgentError, child, f"{self.who} closed its standard output in the middle.")
        child.end_process()
        if code in _SHELL_NOT_FOUND:
            return _build_error(AgentUnreachable, child, f"{self.who} could not be started (exit code {code}).")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return _build_error(AgentError, child, f"{self.who} {how} without an answer.")

    def _build_output_error(self, child: AgentProcess, line: bytes, what: str) -> AgentError:
        said = f"{self.who} {what}: {keep_text_end(line.decode('utf-8', 'replace'), 500)}"
        hint = "Standard output is for one JSON object a message; print everything else on standard error."
        return _build_error(AgentError, child, said, hint if self._heard else f"{hint}\n{_PLAIN_PROGRAM}")


def _build_error[E: LLMProxyError](kind: type[E], child: AgentProcess, said: str, hint: str = "") -> E:
    text = keep_text_end(child.stderr_tail)
    error = kind(f"{said}\nOn standard error, at the end:\n{text}" if text else said, hint=hint)
    error.stderr = text
    return error
