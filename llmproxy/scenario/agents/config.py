"""Agents from their description in a file: one key for the kind, with its parameters (docs/agents.md).

agent: {http: {url: "http://127.0.0.1:8000/ask", body: {question: $message}, reply: $.answer}}
agent: {command: [node, agent.mjs]}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.agents.command import CommandAgent
from llmproxy.scenario.agents.function import FunctionAgent
from llmproxy.scenario.agents.http import HttpAdapter, HttpAgent, OpenAIAgent, ServiceAgent, fill_env_variables

_TEXT, _NUMBER, _TRUTH, _TABLE = "a text", "a number", "true or false", "a table of texts"
_WORDS, _ANY = "a text or a list of words", "any JSON"

_HTTP = {"url": _TEXT, "headers": _TABLE, "timeout": _NUMBER}
_OPENAI = {**_HTTP, "model": _TEXT, "stream": _TRUTH}
_JSON = {**_HTTP, "method": _TEXT, "body": _ANY, "reply": _TEXT, "conversation": _TEXT, "processing": _TEXT}
_SERVICE = {"session": _TEXT, "propagates": _TEXT}

KEYS: Mapping[str, Mapping[str, str]] = {
    "http": {**_OPENAI, **_JSON},
    "url": {**_OPENAI, **_JSON, **_SERVICE},
    "command": {"run": _WORDS, "cwd": _TEXT, "env": _TABLE, "lines": _TRUTH, "process": _TEXT, "timeout": _NUMBER},
    "python": {"call": _TEXT, "timeout": _NUMBER},
}
"""Kinds of agents -> keys -> their types."""
_FIRST = {"http": "url", "command": "run", "python": "call"}
"""Key of a kind's value if that is no table."""


def build_agent(mapping: Mapping[str, Any], folder: Path) -> AgentAdapter:
    """Return the agent that a mapping describes; its paths are relative to `folder`. Raises SuiteError: invalid."""
    if not isinstance(mapping, Mapping):
        raise SuiteError("agent: this is no table.", hint=_KINDS)
    kinds = [kind for kind in KEYS if kind in mapping]
    if len(kinds) != 1:
        unknown = [str(key) for key in mapping if key not in KEYS]
        what = f"{' and '.join(kinds)} are two agents" if kinds else "there is none of the kinds of agents"
        near = "" if kinds or not unknown else did_you_mean(unknown[0], KEYS)
        raise SuiteError(f"agent: {what}{near}", hint=_KINDS)
    kind = kinds[0]
    where = f"agent.{kind}"
    if kind == "url":
        given, where = dict(mapping), "agent"
    else:
        _refuse_unknown(mapping, {kind: ""}, "agent")
        value = mapping[kind]
        given = dict(value) if isinstance(value, Mapping) else {_FIRST[kind]: value}
    given = fill_env_variables(given, where, os.environ)
    _refuse_unknown(given, KEYS[kind], where)
    first = _FIRST.get(kind, kind)
    if first not in given:
        raise SuiteError(f"{where}: `{first}` is missing.", hint=_KINDS)
    for key, value in given.items():
        want = KEYS[kind][key]
        if not _IS[want](value):
            shown = "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
            raise SuiteError(f"{where}.{key} is {shown}; it must be {want}.", hint=_KINDS if key == first else "")
    return _MAKERS[kind](given, folder)


_KINDS = "An agent is one of http: {url: ...}, url: http://..., command: [node, agent.mjs], python: module:callable"


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, str], where: str) -> None:
    for key in given:
        if key not in known:
            raise SuiteError(
                f"{where}: there is no key {key!r}{did_you_mean(str(key), known)}", hint=f"It takes {', '.join(known)}."
            )


_IS: Mapping[str, Callable[[object], bool]] = {
    _TEXT: lambda value: isinstance(value, str) and bool(value),
    _NUMBER: lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0,
    _TRUTH: lambda value: isinstance(value, bool),
    _TABLE: lambda value: (
        isinstance(value, Mapping) and all(isinstance(each, str) for row in value.items() for each in row)
    ),
    _WORDS: lambda value: (
        value != [] and all(isinstance(word, str) and word for word in (value if isinstance(value, list) else [value]))
    ),
    _ANY: lambda _value: True,
}


def _build_http_agent(given: dict[str, Any], _folder: Path) -> HttpAdapter:
    json_only = [key for key in given if key in _JSON and key not in _HTTP]
    openai_only = [key for key in given if key in _OPENAI and key not in _HTTP]
    if json_only and openai_only:
        raise SuiteError(
            f"agent: {openai_only[0]!r} belongs to an OpenAI-compatible endpoint, {json_only[0]!r} to one with a "
            f"template."
        )
    return HttpAgent(**given) if json_only else OpenAIAgent(**given)


_MAKERS: Mapping[str, Callable[[dict[str, Any], Path], AgentAdapter]] = {
    "http": _build_http_agent,
    "url": lambda given, folder: ServiceAgent(
        _build_http_agent({key: value for key, value in given.items() if key not in _SERVICE}, folder),
        **{key: value for key, value in given.items() if key in _SERVICE},
    ),
    "command": lambda given, folder: CommandAgent(given.pop("run"), cwd=folder / given.pop("cwd", "."), **given),
    "python": lambda given, folder: FunctionAgent(given.pop("call"), folder=folder, **given),
}
