"""Models of suites and scenarios: the content of a file after defaults were applied (`llmproxy.suite.reading.load`)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationInfo, model_validator

from llmproxy.suite.schema.base_nodes import Node, add_problem
from llmproxy.suite.schema.response_assertions import Evidence, Usage
from llmproxy.suite.schema.steps import Observe, Step
from llmproxy.suite.schema.values import (
    Entity,
    FaultsGiven,
    Fields,
    Flag,
    Milliseconds,
    MocksGiven,
    Pause,
    Reason,
    SetupItem,
    Share,
    Text,
    Texts,
    Times,
    Value,
)

VERSION = 1
"""Version of the format."""


class HookAction(Node):
    command: Text | Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """A command line, or its words; run in the suite's folder. Exit code 0 is success, anything else an error."""
    python: Text | None = None
    """``module:function``."""
    timeout: Milliseconds = 60_000
    """Time limit."""


class Hook(HookAction):
    """Your own action before or after: a command or a Python function."""

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> Hook:
        if len(self.given & {"command", "python"}) != 1:
            add_problem(info, self.place, "a hook has either `command` or `python`")
        return self


class Hooks(Node):
    """Actions around scenarios. A failing one is an error of the environment."""

    before_all: tuple[Hook, ...] = ()
    """Once, before the first scenario."""
    before_each: tuple[Hook, ...] = ()
    """Before each run of a scenario, before its setup."""
    after_each: tuple[Hook, ...] = ()
    """After each run, also a failed one."""
    after_all: tuple[Hook, ...] = ()
    """Once, after the last scenario."""


class Teardown(HookAction):
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


class Defaults(Node):
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


class Scenario(Node):
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
    setup: tuple[SetupItem, ...] = ()
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


def _choose_entry_kind(value: object) -> str:
    return "(path)" if isinstance(value, str) else "(scenario)"


class Part(Node):
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
    hooks: Hooks | None = None
    """Actions around scenarios."""


class Suite(Part):
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
                Discriminator(_choose_entry_kind),
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
