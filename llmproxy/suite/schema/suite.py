"""The format of a suite: suites and scenarios. Assertions are in `response`, steps in `steps`.

A file holds suites or bare scenarios. What a model holds is what its file says after defaults were put in
(`llmproxy.suite.reading.load`): a runner looks nowhere else.
"""

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
"""Of the format."""


class OwnAction(Node):
    command: Text | Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """A command line, or its words; run in the suite's folder. Exit code 0 is success, anything else an error."""
    python: Text | None = None
    """``module:function``."""
    timeout: Milliseconds = 60_000
    """For how long it may run."""


class Hook(OwnAction):
    """Something of your own that runs before or after: a command or a Python function."""

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> Hook:
        if len(self.given & {"command", "python"}) != 1:
            add_problem(info, self.place, "a hook has either `command` or `python`")
        return self


class Hooks(Node):
    """What runs around scenarios. One that fails is an error of the environment."""

    before_all: tuple[Hook, ...] = ()
    """Once, before the first scenario."""
    before_each: tuple[Hook, ...] = ()
    """Before each run of a scenario, before its setup."""
    after_each: tuple[Hook, ...] = ()
    """After each run, also a failed one."""
    after_all: tuple[Hook, ...] = ()
    """Once, after the last scenario."""


class Teardown(OwnAction):
    """Cleans up after a scenario, whatever came out: deletes rows, or runs a hook."""

    delete: Entity | None = None
    """Whose rows."""
    id: Value | None = None
    """The row with this id."""
    filters: Fields | None = None
    """Column -> matcher; all rows that satisfy them."""

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> Teardown:
        if len(self.given & {"delete", "command", "python"}) != 1:
            add_problem(info, self.place, "an item of `teardown` has one of `delete`, `command` and `python`")
        elif self.delete and not self.given & {"id", "filters"}:
            add_problem(
                info, self.place, "`delete` needs `id` or `filters`", "all rows: `filters: {id: {exists: true}}`"
            )
        return self


class Defaults(Node):
    """What holds for every scenario of the suite that does not say otherwise."""

    user_id: Text | None = None
    """User that scenarios run as."""
    runs: Times | None = None
    """Number of runs of each scenario."""
    min_pass_rate: Share | None = None
    """Share of the runs that must pass."""
    timeout: Milliseconds | None = None
    """For a whole run."""
    step_timeout: Milliseconds | None = None
    """For one answer of the agent."""
    wait_timeout: Milliseconds | None = None
    """For `wait`."""
    poll_interval: Milliseconds | None = None
    """For `wait`."""
    settle: Pause | None = None
    """How long the agent's traffic must be quiet after its answer before anything is judged."""
    observe: Observe | None = None
    """Whether the agent's LLM traffic passes the proxy."""
    ignore_case: Flag | None = None
    """For texts in `response`."""
    min_evidence: Evidence | None = None
    """For `messageProcessing`."""
    judge_model: Text | None = None
    """Of judges, in litellm's spelling."""
    simulator_model: Text | None = None
    """Of simulated users."""


def _add_file_name_to_schema(schema: dict[str, Any]) -> None:
    """Let editors take the name of a file; it is read before a model sees it."""
    schema["anyOf"] = [*schema["anyOf"], {"type": "string", "minLength": 1}]


class Scenario(Node):
    """One story: rows that are there, steps one after the other, what must come of them."""

    id: Text
    """Unique among all scenarios of a run."""
    name: Text | None = None
    """For people; default: the id."""
    description: Text | None = None
    """What it is about."""
    tags: Texts = ()
    """To select scenarios by."""
    user_id: Text | None = None
    """User that it runs as; default: the suite's, else `test-user`."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Names with values, for `$name`."""
    setup: tuple[SetupItem, ...] = ()
    """Rows to put into the store first, in this order."""
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    """What happens."""
    teardown: tuple[Teardown, ...] = ()
    """Clean-up of its own, beside what the store does."""
    runs: Times = 1
    """How often it is executed."""
    min_pass_rate: Share = 1.0
    """Share of the runs that must pass."""
    timeout: Milliseconds | None = None
    """For a whole run."""
    settle: Pause | None = None
    """How long the agent's traffic must be quiet after its answer before anything is judged."""
    observe: Observe = "wire"
    """Whether the agent's LLM traffic passes the proxy."""
    resources: dict[Text, Annotated[float, Field(gt=0)]] | None = None
    """What it needs on a cluster (`--on ray`): `cpu`, `gpu`, `memory` in megabytes, or a name that its nodes have; else
    one cpu.
    """
    skip: Reason = False
    """True or a reason: it is not run."""
    xfail: Reason = False
    """True or a reason: it is expected to fail, and an unexpected pass is a failure."""
    parametrize: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = Field(
        default=None, json_schema_extra=_add_file_name_to_schema
    )
    """Sets of names with values, or a file of them (csv, jsonl, yaml); the scenario runs with each.

    The key `id` names the set.
    """
    matrix: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Variable -> values; the scenario runs with every combination of them."""
    usage: Usage | None = None
    """What all its steps used together."""
    faults: FaultsGiven | None = None
    """Injected faults that the agent's calls meet: a preset, `http-429@2`, rules, or a file of them."""
    mock: MocksGiven | None = None
    """Tool -> what the model reads as its result, whatever the tool returned; a list holds rules with `when`, `nth` and
    `returns`.
    """

    @model_validator(mode="after")
    def _check_id(self, info: ValidationInfo) -> Scenario:
        if "$" in self.id:
            add_problem(
                info,
                self.at("id"),
                "an id is a plain text without $names",
                "parametrize adds what tells its sets apart",
            )
        return self

    @property
    def title(self) -> str:
        return self.name or self.id


def _choose_entry_kind(value: object) -> str:
    return "(path)" if isinstance(value, str) else "(scenario)"


class Part(Node):
    """What suites may share by `include`."""

    nullable = frozenset({"agent", "store", "proxy"})

    vars: dict[str, Any] = Field(default_factory=dict)
    """Names with values, for `$name` in all scenarios."""
    include: Texts = ()
    """Files with more of these keys; what stands here goes first."""
    agent: Any = None
    """The agent under test."""
    store: Any = None
    """Where entities are."""
    proxy: Any = None
    """The proxy that the agent's traffic passes."""
    defaults: Defaults | None = None
    """For scenarios."""
    default_tags: Texts = ()
    """Tags of every scenario."""
    hooks: Hooks | None = None
    """What runs around scenarios."""


class Suite(Part):
    """Scenarios that belong together, with the agent and the store that they need."""

    name: Text
    """For people."""
    version: Times = VERSION
    """Of the format."""
    base_dir: Text = "."
    """Where paths in `scenarios` begin, relative to this file."""
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
            add_problem(
                info,
                self.at("version"),
                f"this is version {self.version} of the format, and version {VERSION} is known",
            )
        return self
