"""``llmproxy test --init``: a first working suite, from nothing but the agent's address."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.advice import format_command
from llmproxy.errors import SuiteError
from llmproxy.scenario.values.run_ids_and_options import name_cassette
from llmproxy.suite.reading.json_schema import SCHEMA_COMMENT
from llmproxy.trace.reading.recording_spans import spans_of
from llmproxy.trace.spans import Span, SpanKind

_HEAD = 60
"""Characters of an answer that a step asserts."""
_SCALARS = (str, int, float, bool)


@dataclass(slots=True)
class SuiteTurn:
    """A user message, and its results."""

    text: str
    conversation: str
    at: float
    tools: list[tuple[str, Mapping[str, Any] | None]] = field(default_factory=list)
    answer: str = ""
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SuiteScaffold:
    text: str
    slug: str
    """File and scenario name, from the recording's name."""
    turns: int
    notes: tuple[str, ...] = ()

    @property
    def summary_line(self) -> str:
        return f"1 scenario, {self.turns} {'message' if self.turns == 1 else 'messages'}"


def scaffold_suite(store: Path, name: str, *, sample: int = 1, agent: Mapping[str, Any] | None = None) -> SuiteScaffold:
    """Create a suite from the recording `name`. Raises SuiteError: no user message; CassetteError."""
    turns, notes = read_suite_turns(spans_of(store, cassette=name, sample=sample))
    if not turns:
        raise SuiteError(
            f"{name}: nobody speaks with an agent in this recording, so there is nothing to test.",
            hint=format_command("ls", store),
        )
    slug = name_cassette(name)
    if agent is None:
        notes.append("AGENT: an address, a command, module:function; or write `agent:` into the file")
    return SuiteScaffold(_write_suite(name, slug, turns, agent), slug, len(turns), tuple(notes))


def read_suite_turns(spans: Iterable[Span]) -> tuple[list[SuiteTurn], list[str]]:
    """Return the turns of conversations with a user, in order of time, and the omitted ones.

    A conversation with a user is not started by a tool call, and its agent has the tools of the first one: a summary
    that an agent requests looks like a conversation, too.
    """
    roots: dict[str, frozenset[str]] = {}  # the tools that a conversation's first request declares
    others: set[str] = set()
    turns: dict[str, list[SuiteTurn]] = {}
    for span in spans:
        name = str(span.metadata.get("gen_ai.conversation.id") or "")
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation":
            turns[name] = []
        elif span.kind is SpanKind.AGENT_STEP and span.name == "sub-agent":
            others.add(name)
        if name not in turns:
            continue
        if span.kind is SpanKind.LLM_REQUEST:
            found = span.metadata.get("gen_ai.tool.definitions") or span.metadata.get("llmproxy.tools") or ()
            names = (str(each.get("name") if isinstance(each, Mapping) else each) for each in found)
            roots.setdefault(name, frozenset(names))
        _add_span(span, name, turns[name])
    first = next(iter(roots.values()), frozenset())
    kept = [name for name in turns if turns[name] and roots.get(name, frozenset()) == first]
    left = len([name for name in turns if turns[name]]) - len(kept) + len(others)
    notes = [f"{left} more conversations (sub-agents, summaries) are recorded, in which no user speaks"] if left else []
    return sorted((turn for name in kept for turn in turns[name]), key=lambda turn: turn.at), notes


def _add_span(span: Span, name: str, turns: list[SuiteTurn]) -> None:
    if span.kind is SpanKind.USER_INPUT:
        if turns and not turns[-1].calls:  # two messages of one request
            turns[-1].text += f"\n{span.input}"
        else:
            turns.append(SuiteTurn(str(span.input), name, span.timestamp))
    elif not turns:
        return
    elif span.kind is SpanKind.TOOL_CALL and span.tool_name:
        turns[-1].tools.append((span.tool_name, span.tool_args))
    elif span.kind is SpanKind.LLM_RESPONSE and span.error is None:
        turns[-1].calls += 1
    elif span.kind is SpanKind.AGENT_OUTPUT:
        turns[-1].answer = str(span.output or "")


# -- the text ----------------------------------------------------------------------------------------------------------


def _write_suite(name: str, slug: str, turns: Sequence[SuiteTurn], agent: Mapping[str, Any] | None) -> str:
    first = " ".join(turns[0].text.replace("$", "").split())
    numbers = {each: f"c{n}" for n, each in enumerate(dict.fromkeys(turn.conversation for turn in turns), 1)}
    lines = [
        SCHEMA_COMMENT,
        "# Made from a recorded conversation: it says what happened.",
        "# Take out what does not matter, and write what should have happened.",
        f"name: {_quote_text(name)}",
        f"agent: {write_flow_value(agent)}"
        if agent
        else '# agent: {http: "http://127.0.0.1:8000/v1"}   # or {command: [python, agent.py]}',
        "scenarios:",
        f"  - id: {_quote_text(slug)}",
        f"    name: {_quote_text('Recorded: ' + (first if len(first) <= 50 else first[:49] + '…'))}",
        "    steps:",
    ]
    for n, turn in enumerate(turns):
        lines.append(f"      - chat: {_quote_text(turn.text.replace('$', '$$'))}")
        if len(numbers) > 1:
            lines.append(f"        conversation: {numbers[turn.conversation]}")
        elif n:
            lines.append("        continueConversation: true")
        lines += [f"        {line}" for line in _write_assertions(turn)]
    return "\n".join(lines) + "\n"


def _write_assertions(turn: SuiteTurn) -> list[str]:
    made: list[str] = []
    names = list(dict.fromkeys(name for name, _ in turn.tools))
    if names:
        made.append("tools:")
        made += [
            f"  {_quote_text(name)}: {write_flow_value(_expect_calls([args for n, args in turn.tools if n == name]))}"
            for name in names
        ]
    made.append(f"totalToolCalls: {len(turn.tools)}")
    if head := _shorten_answer(turn.answer):
        made.append(f"response: {{contains: {_quote_text(head.replace('$', '$$'))}}}")
    if turn.calls:
        made.append(f"usage: {{callCount: {turn.calls}}}")
    return made


def _expect_calls(calls: Sequence[Mapping[str, Any] | None]) -> Any:
    """Return assertions about the calls of one tool: their number, and the plain arguments of a single one."""
    if len(calls) > 1 or not calls[0]:
        return len(calls)
    plain = {
        name: value.replace("$", "$$") if isinstance(value, str) else value
        for name, value in calls[0].items()
        if isinstance(value, _SCALARS) and re.fullmatch(r"[A-Za-z_]\w*", name)
    }
    return {"count": 1, "input": plain} if plain else 1


def _shorten_answer(answer: str) -> str:
    """Return the beginning of an answer: whole words of its first line."""
    first = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    if len(first) <= _HEAD:
        return first
    return first[:_HEAD].rpartition(" ")[0] or first[:_HEAD]


def _quote_text(text: str) -> str:
    """Return a text as JSON, which is valid YAML, with terminal control characters escaped."""
    return re.sub(
        r"[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        json.dumps(text, ensure_ascii=False),
    )


def write_flow_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_write_key(name)}: {write_flow_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_flow_value, value)) + "]"
    return _quote_text(value) if isinstance(value, str) else json.dumps(value)


def _write_key(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_]\w*", name) and name.lower() not in ("true", "false", "null")
    return name if is_plain else _quote_text(name)


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


def rebase_agent_paths(agent: Mapping[str, Any], here: Path, folder: Path) -> Mapping[str, Any]:
    """Return an agent's description for a suite in `folder`, with its paths relative to that."""
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


def starter_suite(agent: Mapping[str, Any]) -> str:
    return f"{SCHEMA_COMMENT}\nname: My agent\nagent: {write_flow_value(agent)}\n{_STEPS}"
