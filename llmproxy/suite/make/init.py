"""``llmproxy test --init``: a first suite that runs, from nothing but how the agent is reached."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmproxy.errors import SuiteError
from llmproxy.suite.make.from_session import flow
from llmproxy.suite.project import read_description

_STEPS = """\
scenarios:
  - id: hello
    name: The agent answers
    tags: [smoke]
    steps:
      - chat: "Hello! What can you do for me?"
        usage: {callCount: {gte: 1}}      # its LLM calls pass the proxy
        response: {notContains: ["Traceback", "Internal Server Error"], ignoreCase: true}

  # What suites can say, to be filled in:
  #
  # - id: create-task
  #   steps:
  #     - chat: "Create a task called 'Buy milk'"
  #       tools: {createTask: {count: 1, input: {title: {contains: milk}}}}
  #       response: {contains: created, ignoreCase: true}
  #     - chat: "Mark it as done"
  #       continueConversation: true
  #       tools: {updateTask: 1, deleteTask: 0}
  #       totalToolCalls: {lte: 3}
"""


def reached_by(text: str) -> Mapping[str, Any]:
    """Read how an agent is reached: an address, YAML, ``module:function``, else a command line.

    Raises:
        SuiteError: there is nothing.

    """
    text = text.strip()
    if not text:
        raise SuiteError("an agent is reached somehow: an address, a command, or module:function.")
    if text.startswith(("http://", "https://", "{")):
        return read_description(text, "--agent")
    module, colon, function = text.rpartition(":")
    if colon and " " not in text and module and function.isidentifier():
        return {"python": text}
    try:
        return {"command": shlex.split(text)}
    except ValueError as error:
        raise SuiteError(f"{text!r} is no command that a shell could read: {error}.") from error


def place_agent(agent: Mapping[str, Any], here: Path, folder: Path) -> Mapping[str, Any]:
    """Return how an agent that was named `here` is reached from a suite in `folder`, whose paths begin there."""
    if here.resolve() == folder.resolve():
        return agent
    up = Path(os.path.relpath(here.resolve(), folder.resolve()))
    command, python = agent.get("command"), agent.get("python")
    if command is not None:
        run = dict(command) if isinstance(command, Mapping) else {"run": command}
        return {"command": {**run, "cwd": (up / run.get("cwd", ".")).as_posix()}}
    if isinstance(python, str) and python.rpartition(":")[0].endswith(".py") and not Path(python).is_absolute():
        return {"python": (up / python).as_posix()}
    return agent


def first_suite(agent: Mapping[str, Any]) -> str:
    """Return the text of a suite for this agent."""
    from llmproxy.suite.reading.json_schema import header

    return f"{header().rstrip()}\nname: My agent\nagent: {flow(agent)}\n{_STEPS}"
