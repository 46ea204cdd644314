"""The steps of a scenario. Each is told by its one key: chat, simulate, judge, verify, wait, setup."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.matchers.json_values import name_kind, quote
from llmproxy.suite.schema.base_nodes import Node, add_problem, bad_kind, bad_value
from llmproxy.suite.schema.response_assertions import Created, Judging, MessageProcessing, Response, ToolExpect, Usage
from llmproxy.suite.schema.values import (
    Count,
    FaultsGiven,
    Flag,
    Milliseconds,
    PauseFor,
    SetupItem,
    Text,
    Times,
    Verify,
    WaitFor,
)

Observe = Literal["wire", "none"]
"""Whether the agent's LLM traffic passes the proxy; with `none` nothing can be asserted about it."""


def _read_snapshot(value: object) -> object:
    if isinstance(value, bool) or value in {"names", "arguments"}:
        return value
    raise bad_kind(f"takes true, `names` or `arguments`, not {name_kind(value)} {quote(value, 60)}")


ABOUT_WIRE = (
    "tools", "onlyTools", "toolOrder", "serverTools", "serversAsAsked", "totalToolCalls", "toolsSnapshot", "usage",
    "messageProcessing",
)  # fmt: skip
"""The keys of a chat step that assert something about the agent's traffic."""
Snapshot = Annotated[bool | Literal["names", "arguments"], BeforeValidator(_read_snapshot)]
"""What of the calls is compared with what `--update` stored."""


class StepBase(Node):
    """What all steps have."""

    kind: ClassVar[str] = ""
    label: Text | None = None
    """Names the step in reports and for `--step`; once in a scenario."""


class Talk(StepBase):
    """A step in which the agent talks."""

    tools: Annotated[dict[str, ToolExpect], Field(min_length=1)] | None = None
    """Tool -> how it is called in this step; `"*"` stands for every tool that is not named."""
    only_tools: Flag = False
    """Whether tools that `tools` does not name must not be called."""
    tool_order: Annotated[tuple[Text, ...], Field(min_length=2)] | None = None
    """Tools that are called one after the other in this step; others may be called in between, calls of one answer are
    at once.
    """
    server_tools: Annotated[dict[str, ToolExpect], Field(min_length=1)] | None = None
    """Tool -> what its server (MCP) really got and returned in this step, by the server's name for it; `"*"` stands for
    every other.
    """
    servers_as_asked: Literal[True] | None = None
    """true: servers got what models asked for in this step, call by call with the same arguments, and nothing else."""
    total_tool_calls: Count | None = None
    """Calls of all tools in this step."""
    include_hosted: Flag = False
    """Whether `totalToolCalls` counts tools that the provider runs, such as its web search."""
    tools_snapshot: Snapshot | None = None
    """The calls of this step in order are those that `--update` stored: their names, or (true) their arguments too."""
    response: Response | None = None
    """The agent's last answer in this step."""
    created: Annotated[tuple[Created, ...], Field(min_length=1)] | None = None
    """Rows that come into being in this step."""
    usage: Usage | None = None
    """Tokens, calls and costs of this step."""
    message_processing: MessageProcessing | None = None
    """How the agent changed its history in this step."""
    continue_conversation: Flag = False
    """Whether it goes on in the conversation of the last chat step, instead of a new one."""
    conversation: Text | None = None
    """Name of the conversation: begun when it is first named, continued after."""
    timeout: Milliseconds | None = None
    """For one answer of the agent."""
    observe: Observe | None = None
    """Default: the scenario's."""
    faults: FaultsGiven | None = None
    """Injected faults that the agent's calls meet in this step, in place of the scenario's."""

    @model_validator(mode="after")
    def _check_tool_rules(self, info: ValidationInfo) -> Talk:
        if self.only_tools and not self.tools:
            add_problem(info, self.at("onlyTools"), "`onlyTools` needs `tools`", "no tool at all: `totalToolCalls: 0`")
        if circle := _find_order_cycle(self.tools or {}):
            what = f"`before` and `after` cannot all hold: {' before '.join(circle)}"
            add_problem(
                info, self.at("tools"), what, "remove one of them; a second call of the same tool: `count`, `toolOrder`"
            )
        return self

    @property
    def wire_keys(self) -> tuple[str, ...]:
        """The assertions that need the agent's traffic, as the file names them."""
        return tuple(key for key in ABOUT_WIRE if key in self.given)


def _find_order_cycle(tools: Mapping[str, ToolExpect]) -> list[str]:
    """Return tools each of which is to come before the next one, up to the first again; empty where there are none.

    Where one call is enough (`every: false`) a tool may come before and after another one, and after itself.
    """
    earlier: dict[str, set[str]] = {}
    for name, wanted in tools.items():
        if wanted.every is not False and wanted.count != 0:
            if wanted.after is not None:
                earlier.setdefault(name, set()).add(wanted.after)
            if wanted.before is not None:
                earlier.setdefault(wanted.before, set()).add(name)
    try:
        TopologicalSorter(earlier).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


class ChatStep(Talk):
    """A message to the agent, and what must come of it."""

    kind = "chat"
    chat: Text
    """What the user says; may refer to captured rows."""


class Persona(Node):
    """Who the simulated user is."""

    name: Text | None = None
    """Of the persona."""
    description: Text
    """How they speak, what they know and want."""


class Simulation(Node):
    """A conversation that a model leads in the user's place."""

    goal: Text
    """What the user wants to reach."""
    persona: Text | Persona | None = None
    """Who the user is."""
    max_turns: Times = 10
    """How many messages they may send."""
    first_message: Text | None = None
    """What they say first; default: the model decides."""
    model: Text | None = None
    """Of the simulated user, in litellm's spelling."""
    criteria: tuple[Text, ...] = ()
    """What a judge has to find true when it ends."""


class SimulateStep(Talk):
    """A simulated user talks with the agent until the goal is reached."""

    kind = "simulate"
    simulate: Simulation
    """The user."""


class JudgeStep(StepBase):
    """A judge looks at the conversation so far."""

    kind = "judge"
    judge: Judging
    """What must be true of it."""
    conversation: Text | None = None
    """Which one; default: that of the last chat step."""


class VerifyStep(StepBase):
    """Looks into the store."""

    kind = "verify"
    verify: Verify
    """What must be there."""


def _tag_wait(value: object) -> str:
    if isinstance(value, (PauseFor, WaitFor)):
        return "(pause)" if isinstance(value, PauseFor) else "(row)"
    return "(pause)" if isinstance(value, Mapping) and value.keys() & {"seconds", "ms"} else "(row)"


class WaitStep(StepBase):
    """Waits for the store, or for a time."""

    kind = "wait"
    wait: Annotated[Annotated[PauseFor, Tag("(pause)")] | Annotated[WaitFor, Tag("(row)")], Discriminator(_tag_wait)]
    """For what."""


class SetupStep(StepBase):
    """Puts rows into the store between other steps."""

    kind = "setup"
    setup: Annotated[tuple[SetupItem, ...], Field(min_length=1)]
    """The rows, in this order."""


STEPS: dict[str, type[StepBase]] = {
    step.kind: step for step in (ChatStep, SimulateStep, JudgeStep, VerifyStep, WaitStep, SetupStep)
}
"""Key -> step."""
REFUSED = {
    "http": "steps that call HTTP are not part of the format: use a hook, or the store `http`",
    "sql": "steps that run SQL are not part of the format: use a hook, `setup` and `verify`",
}
"""Keys that other formats have."""


def step_kind(value: object) -> str:
    """Return which step a mapping is, as the name of a union's branch; an unknown one is told by what it lacks."""
    if isinstance(value, StepBase):
        return f"({value.kind})"
    if not isinstance(value, Mapping):
        return "(?)"
    found = [key for key in value if key in STEPS]
    return f"({found[0]})" if len(found) == 1 else "(?)"


class NoStep(StepBase):
    """Stands for a mapping that is no step, to say why."""

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:  # noqa: ARG003 - as pydantic calls it
        """Raise an error that names what is missing or too much."""
        if not isinstance(data, Mapping):
            raise bad_value(
                f"a step is a mapping with one of {', '.join(STEPS)}; not {name_kind(data)} {quote(data, 60)}"
            )
        found = [key for key in data if key in STEPS]
        if found:
            raise bad_value(
                f"a step is one thing, and this is {' and '.join(f'`{key}`' for key in found)}", "make it several steps"
            )
        for key in data:
            if key in REFUSED:
                raise bad_value(REFUSED[key])
        hint = next(filter(None, (suggest_name(str(key), STEPS, listing=False) for key in data)), "")
        raise bad_value(
            f"a step has one of {', '.join(STEPS)}, and this has {', '.join(map(str, data)) or 'nothing'}", hint
        )


Step = Annotated[
    Annotated[ChatStep, Tag("(chat)")]
    | Annotated[SimulateStep, Tag("(simulate)")]
    | Annotated[JudgeStep, Tag("(judge)")]
    | Annotated[VerifyStep, Tag("(verify)")]
    | Annotated[WaitStep, Tag("(wait)")]
    | Annotated[SetupStep, Tag("(setup)")]
    | Annotated[NoStep, Tag("(?)")],
    Discriminator(step_kind),
]
"""One step; which one, its key says."""
