"""Models of suites, scenarios and their steps: a file's content after defaults were applied (`suite.reading.load`).

The one key of a step names its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from llmproxy.did_you_mean import suggest_name
from llmproxy.suite.matchers.registry import get_type_name, quote
from llmproxy.suite.schema.assertions import (
    AgentHistoryEditAssertions,
    Count,
    CreatedRowsAssertion,
    Entity,
    Evidence,
    FaultsGiven,
    Fields,
    Flag,
    JudgeAssertion,
    Milliseconds,
    MocksGiven,
    Pause,
    PauseFor,
    Reason,
    Response,
    SetupRow,
    Share,
    Text,
    Texts,
    Times,
    ToolExpect,
    Usage,
    Value,
    Verify,
    WaitForRows,
)
from llmproxy.suite.schema.base_nodes import SuiteModelBase, add_problem, build_type_error, build_value_error

Observe = Literal["wire", "none"]
"""Whether the agent's LLM traffic passes the proxy; with `none` it cannot be asserted."""
ABOUT_WIRE = (
    "tools", "onlyTools", "toolOrder", "serverTools", "serversAsAsked", "totalToolCalls", "toolsSnapshot", "usage",
    "messageProcessing",
)  # fmt: skip
"""Keys of a chat step that assert something about the agent's traffic."""
REFUSED = {
    "http": "steps that call HTTP are not part of the format: use a hook, or the store `http`",
    "sql": "steps that run SQL are not part of the format: use a hook, `setup` and `verify`",
}
"""Keys of other formats."""


def _validate_snapshot_mode(value: object) -> object:
    if isinstance(value, bool) or value in ("names", "arguments"):
        return value
    raise build_type_error(f"takes true, `names` or `arguments`, not {get_type_name(value)} {quote(value, 60)}")


Snapshot = Annotated[bool | Literal["names", "arguments"], BeforeValidator(_validate_snapshot_mode)]
"""Part of the calls that is compared with the snapshot of `--update`."""


class StepBase(SuiteModelBase):
    """Keys common to all steps."""

    kind: ClassVar[str] = ""
    label: Text | None = None
    """Name of the step in reports and for `--step`; unique in a scenario."""


class ChatOrSimulateStep(StepBase):
    """A step with an answer of the agent."""

    tools: Annotated[dict[str, ToolExpect], Field(min_length=1)] | None = None
    """Tool -> its expected calls in this step; `"*"` stands for every other tool."""
    only_tools: Flag = False
    """Whether tools that `tools` does not name must not be called."""
    tool_order: Annotated[tuple[Text, ...], Field(min_length=2)] | None = None
    """Tools that are called in this order in this step; others may be called in between, calls of one answer are
    concurrent."""
    server_tools: Annotated[dict[str, ToolExpect], Field(min_length=1)] | None = None
    """Tool -> calls that its MCP server received and its results in this step, by the server's name of it; `"*"`
    stands for every other."""
    servers_as_asked: Literal[True] | None = None
    """true: servers received exactly the calls that models asked for in this step, with the same arguments."""
    total_tool_calls: Count | None = None
    """Calls of all tools in this step."""
    include_hosted: Flag = False
    """Whether `totalToolCalls` counts tools that the provider runs, such as its web search."""
    tools_snapshot: Snapshot | None = None
    """The calls of this step equal those that `--update` stored, in order: their names, or (true) their arguments
    too."""
    response: Response | None = None
    """The agent's last answer in this step."""
    created: Annotated[tuple[CreatedRowsAssertion, ...], Field(min_length=1)] | None = None
    """Rows created in this step."""
    usage: Usage | None = None
    """Tokens, calls and costs of this step."""
    message_processing: AgentHistoryEditAssertions | None = None
    """Changes that the agent made to its history in this step."""
    continue_conversation: Flag = False
    """Whether it continues the conversation of the last chat step, instead of a new one."""
    conversation: Text | None = None
    """Name of the conversation, which begins at its first use."""
    timeout: Milliseconds | None = None
    """Time limit of the agent's answer."""
    observe: Observe | None = None
    """Default: the scenario's."""
    faults: FaultsGiven | None = None
    """Injected faults for the agent's calls in this step, in place of the scenario's."""

    @model_validator(mode="after")
    def _check_tool_rules(self, info: ValidationInfo) -> ChatOrSimulateStep:
        if self.only_tools and not self.tools:
            add_problem(info, self.at("onlyTools"), "`onlyTools` needs `tools`", "no tool at all: `totalToolCalls: 0`")
        if circle := _find_tool_order_cycle(self.tools or {}):
            what = f"`before` and `after` cannot all hold: {' before '.join(circle)}"
            add_problem(
                info, self.at("tools"), what, "remove one of them; a second call of the same tool: `count`, `toolOrder`"
            )
        return self

    @property
    def traffic_assertion_keys(self) -> tuple[str, ...]:
        return tuple(key for key in ABOUT_WIRE if key in self.given)


def _find_tool_order_cycle(tools: Mapping[str, ToolExpect]) -> list[str]:
    """Return tools of which each must come before the next one, up to the first again; empty if there are none."""
    earlier: dict[str, set[str]] = {}
    for name, wanted in tools.items():
        if wanted.every is not False and wanted.count != 0:  # else one call is enough, before and after another
            if wanted.after is not None:
                earlier.setdefault(name, set()).add(wanted.after)
            if wanted.before is not None:
                earlier.setdefault(wanted.before, set()).add(name)
    try:
        TopologicalSorter(earlier).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


class ChatStep(ChatOrSimulateStep):
    """A message to the agent, and assertions about the results."""

    kind = "chat"
    chat: Text
    """The user's message; may refer to captured rows."""


class Persona(SuiteModelBase):
    """The simulated user's persona."""

    name: Text | None = None
    """Name of the persona."""
    description: Text
    """Their way of speaking, knowledge and wishes."""


class Simulation(SuiteModelBase):
    """A conversation with a model in the user's place."""

    goal: Text
    """The user's goal."""
    persona: Text | Persona | None = None
    """The user's persona."""
    max_turns: Times = 10
    """Maximum number of the user's messages."""
    first_message: Text | None = None
    """The user's first message; default: the model decides."""
    model: Text | None = None
    """Model of the simulated user, in litellm's spelling."""
    criteria: tuple[Text, ...] = ()
    """Criteria that a judge must find true at the end."""


class SimulateStep(ChatOrSimulateStep):
    """A simulated user talks with the agent until the goal is reached."""

    kind = "simulate"
    simulate: Simulation
    """The user."""


class JudgeStep(StepBase):
    """A judge evaluates the conversation so far."""

    kind = "judge"
    judge: JudgeAssertion
    """Criteria."""
    conversation: Text | None = None
    """Name of the conversation; default: that of the last chat step."""


class VerifyStep(StepBase):
    """Checks rows of the store."""

    kind = "verify"
    verify: Verify
    """Expected rows."""


def _tag_wait(value: object) -> str:
    if isinstance(value, (PauseFor, WaitForRows)):
        return "(pause)" if isinstance(value, PauseFor) else "(row)"
    return "(pause)" if isinstance(value, Mapping) and value.keys() & {"seconds", "ms"} else "(row)"


class WaitStep(StepBase):
    """Waits for rows of the store, or for a time."""

    kind = "wait"
    wait: Annotated[
        Annotated[PauseFor, Tag("(pause)")] | Annotated[WaitForRows, Tag("(row)")], Discriminator(_tag_wait)
    ]
    """Condition or time."""


class SetupStep(StepBase):
    """Inserts rows into the store between other steps."""

    kind = "setup"
    setup: Annotated[tuple[SetupRow, ...], Field(min_length=1)]
    """The rows, in this order."""


STEPS: dict[str, type[StepBase]] = {
    step.kind: step for step in (ChatStep, SimulateStep, JudgeStep, VerifyStep, WaitStep, SetupStep)
}
"""Key -> model of the step."""


def get_step_discriminator(value: object) -> str:
    if isinstance(value, StepBase):
        return f"({value.kind})"
    if not isinstance(value, Mapping):
        return "(?)"
    found = [key for key in value if key in STEPS]
    return f"({found[0]})" if len(found) == 1 else "(?)"


class UnrecognizedStep(StepBase):
    """Model of a mapping that is no step, for its error."""

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:  # noqa: ARG003 - as pydantic calls it
        """Raise an error that names missing or surplus keys."""
        if not isinstance(data, Mapping):
            raise build_value_error(
                f"a step is a mapping with one of {', '.join(STEPS)}; not {get_type_name(data)} {quote(data, 60)}"
            )
        if found := [key for key in data if key in STEPS]:
            raise build_value_error(
                f"a step is one thing, and this is {' and '.join(f'`{key}`' for key in found)}", "make it several steps"
            )
        for key in data:
            if key in REFUSED:
                raise build_value_error(REFUSED[key])
        hint = next(filter(None, (suggest_name(str(key), STEPS, listing=False) for key in data)), "")
        raise build_value_error(
            f"a step has one of {', '.join(STEPS)}, and this has {', '.join(map(str, data)) or 'nothing'}", hint
        )


Step = Annotated[
    Annotated[ChatStep, Tag("(chat)")]
    | Annotated[SimulateStep, Tag("(simulate)")]
    | Annotated[JudgeStep, Tag("(judge)")]
    | Annotated[VerifyStep, Tag("(verify)")]
    | Annotated[WaitStep, Tag("(wait)")]
    | Annotated[SetupStep, Tag("(setup)")]
    | Annotated[UnrecognizedStep, Tag("(?)")],
    Discriminator(get_step_discriminator),
]
"""One step; its key names the kind."""


VERSION = 1
"""Version of the format."""


class CommandOrPythonHook(SuiteModelBase):
    command: Text | Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """A command line, or its words; run in the suite's folder. Exit code 0 is success, anything else an error."""
    python: Text | None = None
    """``module:function``."""
    timeout: Milliseconds = 60_000
    """Time limit."""


class SuiteHook(CommandOrPythonHook):
    """Your own action before or after: a command or a Python function."""

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> SuiteHook:
        if len(self.given & {"command", "python"}) != 1:
            add_problem(info, self.place, "a hook has either `command` or `python`")
        return self


class SuiteHooks(SuiteModelBase):
    """Actions around scenarios. A failing one is an error of the environment."""

    before_all: tuple[SuiteHook, ...] = ()
    """Once, before the first scenario."""
    before_each: tuple[SuiteHook, ...] = ()
    """Before each run of a scenario, before its setup."""
    after_each: tuple[SuiteHook, ...] = ()
    """After each run, also a failed one."""
    after_all: tuple[SuiteHook, ...] = ()
    """Once, after the last scenario."""


class Teardown(CommandOrPythonHook):
    """Cleanup after a scenario, whatever its result: deletes rows, or runs a hook."""

    delete: Entity | None = None
    """Entity of the rows."""
    id: Value | None = None
    """The row with this id."""
    filters: Fields | None = None
    """Column -> matcher; all rows that match them."""

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> Teardown:
        if len(self.given & {"delete", "command", "python"}) != 1:
            add_problem(info, self.place, "an item of `teardown` has one of `delete`, `command` and `python`")
        elif self.delete and not self.given & {"id", "filters"}:
            hint = "all rows: `filters: {id: {exists: true}}`"
            add_problem(info, self.place, "`delete` needs `id` or `filters`", hint)
        return self


class Defaults(SuiteModelBase):
    """Defaults of the suite's scenarios."""

    user_id: Text | None = None
    """User of scenarios."""
    runs: Times | None = None
    """Number of runs of each scenario."""
    min_pass_rate: Share | None = None
    """Share of the runs that must pass."""
    timeout: Milliseconds | None = None
    """Time limit of a whole run."""
    step_timeout: Milliseconds | None = None
    """Time limit of the agent's answer."""
    wait_timeout: Milliseconds | None = None
    """Time limit of `wait`."""
    poll_interval: Milliseconds | None = None
    """Polling interval of `wait`."""
    settle: Pause | None = None
    """Time without traffic of the agent after its answer before anything is evaluated."""
    observe: Observe | None = None
    """Whether the agent's LLM traffic passes the proxy."""
    ignore_case: Flag | None = None
    """Ignores case of texts in `response`."""
    min_evidence: Evidence | None = None
    """Least evidence required for `messageProcessing`."""
    judge_model: Text | None = None
    """Model of judges, in litellm's spelling."""
    simulator_model: Text | None = None
    """Model of simulated users."""


def _accept_file_name_in_schema(schema: dict[str, Any]) -> None:
    """Let editors accept a file name; the file is read before validation."""
    schema["anyOf"] = [*schema["anyOf"], {"type": "string", "minLength": 1}]


class Scenario(SuiteModelBase):
    """One test case: existing rows, steps in order, assertions about the results."""

    id: Text
    """Unique among all scenarios of a test."""
    name: Text | None = None
    """Name in reports; default: the id."""
    description: Text | None = None
    """Subject of the scenario."""
    tags: Texts = ()
    """Tags for selecting scenarios."""
    user_id: Text | None = None
    """Its user; default: the suite's, else `test-user`."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Names with values, for `$name`."""
    setup: tuple[SetupRow, ...] = ()
    """Rows to insert into the store first, in this order."""
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    """Steps, in this order."""
    teardown: tuple[Teardown, ...] = ()
    """Its own cleanup, in addition to the store's."""
    runs: Times = 1
    """Number of runs."""
    min_pass_rate: Share = 1.0
    """Share of the runs that must pass."""
    timeout: Milliseconds | None = None
    """Time limit of a whole run."""
    settle: Pause | None = None
    """Time without traffic of the agent after its answer before anything is evaluated."""
    observe: Observe = "wire"
    """Whether the agent's LLM traffic passes the proxy."""
    resources: dict[Text, Annotated[float, Field(gt=0)]] | None = None
    """Required resources on a cluster (`--on ray`): `cpu`, `gpu`, `memory` in megabytes, or a name of its nodes;
    default one cpu."""
    skip: Reason = False
    """True or a reason: it is not run."""
    xfail: Reason = False
    """True or a reason: it is expected to fail, and an unexpected pass is a failure."""
    parametrize: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = Field(
        default=None, json_schema_extra=_accept_file_name_in_schema
    )
    """Sets of names with values, or a file of them (csv, jsonl, yaml); the scenario runs with each.

    The key `id` names the set.
    """
    matrix: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Variable -> values; the scenario runs with every combination of them."""
    usage: Usage | None = None
    """Total usage of all its steps."""
    faults: FaultsGiven | None = None
    """Injected faults for the agent's calls: a preset, `http-429@2`, rules, or a file of them."""
    mock: MocksGiven | None = None
    """Tool -> result for the model, in place of the tool's; a list has rules with `when`, `nth` and `returns`."""

    @model_validator(mode="after")
    def _check_id(self, info: ValidationInfo) -> Scenario:
        if "$" in self.id:
            hint = "parametrize adds what tells its sets apart"
            add_problem(info, self.at("id"), "an id is a plain text without $names", hint)
        return self

    @property
    def title(self) -> str:
        return self.name or self.id


class IncludedPart(SuiteModelBase):
    """Content that suites may share by `include`."""

    nullable = frozenset({"agent", "store", "proxy"})

    vars: dict[str, Any] = Field(default_factory=dict)
    """Names with values, for `$name` in all scenarios."""
    include: Texts = ()
    """Files with more of these keys; this file takes precedence."""
    agent: Any = None
    """The agent under test."""
    store: Any = None
    """The store of entities."""
    proxy: Any = None
    """The proxy of the agent's traffic."""
    defaults: Defaults | None = None
    """Defaults of scenarios."""
    default_tags: Texts = ()
    """Tags of every scenario."""
    hooks: SuiteHooks | None = None
    """Actions around scenarios."""


class Suite(IncludedPart):
    """Related scenarios, with their agent and store."""

    name: Text
    """Name in reports."""
    version: Times = VERSION
    """Version of the format."""
    base_dir: Text = "."
    """Base of paths in `scenarios`, relative to this file."""
    scenarios: Annotated[
        tuple[
            Annotated[
                Annotated[Text, Tag("(path)")] | Annotated[Scenario, Tag("(scenario)")],
                Discriminator(lambda value: "(path)" if isinstance(value, str) else "(scenario)"),
            ],
            ...,
        ],
        Field(min_length=1),
    ]
    """Scenarios, or files and globs of them."""

    @model_validator(mode="after")
    def _check_version(self, info: ValidationInfo) -> Suite:
        if self.version != VERSION:
            message = f"this is version {self.version} of the format, and version {VERSION} is known"
            add_problem(info, self.at("version"), message)
        return self
