"""A coding agent whose model gives its work to two sub-agents, each with requests of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.provider import Script, Seen, load

from .agents import ASK, Agent
from .dialogue import NOTE

PROMPTS = {"Read the first line of the notes.": "head -1", "Read the last line of the notes.": "tail -1"}
"""What each sub-agent is told to do, and the command that it asks for."""
SAID = f"It says {NOTE}."


@dataclass(frozen=True, slots=True)
class Delegation:
    """How an agent's model starts a sub-agent."""

    tool: str
    prompt: str = "prompt"
    """The argument that holds what it is told."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments that the tool wants."""
    named: str = ""
    """The argument that wants a name of its own."""
    ends: Mapping[str, Any] = field(default_factory=lambda: {"say": SAID})
    """How the sub-agent ends."""
    awaits: tuple[Mapping[str, Any], ...] = ()
    """What the parent asks for until they are done, if the tool does not wait for them."""


_CLAUDE = Delegation(
    "Agent", arguments={"description": "read", "subagent_type": "general-purpose", "run_in_background": False}
)
_COPILOT = Delegation(
    "task", arguments={"description": "read", "agent_type": "general-purpose", "mode": "sync"}, named="name"
)
_WAITED = r'(?s)\A(?:.*?"agent_id"){NUMBER}:\s*"([^"]+)"'
DELEGATIONS = {
    "claude": _CLAUDE,
    "codex": Delegation(
        "multi_agent_v1__spawn_agent", "message",
        awaits=tuple(
            {
                "call": [{"name": "multi_agent_v1__wait_agent", "arguments": {"targets": ["{id}"]}}],
                "takes": {"id": _WAITED.replace("NUMBER", str(number))},
            }
            for number, _ in enumerate(PROMPTS, 1)
        ),
    ),
    "copilot": _COPILOT,
    "copilot-responses": _COPILOT,
    "copilot-anthropic": _COPILOT,
    "gemini": Delegation(
        "invoke_agent", arguments={"agent_name": "generalist"},
        ends={"call": [{"name": "complete_task", "arguments": {"result": {"response": SAID}}}]},
    ),
    "qwen": replace(_CLAUDE, tool="agent"),
    "opencode": Delegation("task", arguments={"description": "read", "subagent_type": "general"}),
    "claude-sdk-py": replace(_CLAUDE, arguments={**_CLAUDE.arguments, "subagent_type": "reader"}),
    "claude-sdk-node": replace(_CLAUDE, arguments={**_CLAUDE.arguments, "subagent_type": "reader"}),
    "openai-agents": Delegation("reader", "input"),
    "deepagents": Delegation("task", "description", {"subagent_type": "reader"}),
    "strands": Delegation("reader", "request"),
    "adk": Delegation("reader", "request"),
}  # fmt: skip
"""By agent; those that are not here have no sub-agents."""


def script(agent: Agent, cwd: str, _: int) -> Script:
    """Return the dialogue; a sub-agent does not see what its parent was asked, and is known by that."""
    delegation = DELEGATIONS[agent.name]
    calls = []
    for number, prompt in enumerate(PROMPTS, 1):
        name = {delegation.named: f"reader-{number}"} if delegation.named else {}
        arguments = {delegation.prompt: prompt, **delegation.arguments, **name}
        calls.append({"name": delegation.tool, "arguments": arguments})
    parent: list[Mapping[str, Any]] = [{"call": calls}, *delegation.awaits, {"say": f"The notes say: {NOTE}."}]
    steps: list[dict[str, Any]] = [{"times": None, **aside} for aside in agent.aside]
    results = [0, *range(len(calls), len(calls) + len(parent))]
    steps += [{"contains": ASK, "results": number, **each} for number, each in zip(results, parent, strict=False)]
    for prompt, command in PROMPTS.items():
        words = f"{command} {cwd}/notes.txt{agent.pause}"
        call = {"name": agent.tool, "arguments": {agent.argument: words, **agent.arguments}}
        replies: tuple[Mapping[str, Any], ...] = ({"call": [call]}, delegation.ends)
        steps += [{"contains": prompt, "results": number, **each} for number, each in enumerate(replies)]
    return load({"ordered": False, "steps": steps})


def list_silent(seen: Sequence[Seen]) -> list[str]:
    """Return the prompts for which no request of a sub-agent came."""
    own = [each.body for each in seen if ASK.encode() not in each.body]
    return [prompt for prompt in PROMPTS if not any(prompt.encode() in body for body in own)]
