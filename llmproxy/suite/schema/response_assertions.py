"""What a step may assert about what the agent says and calls: tool calls, and the response.

Short forms (``createTask: 1``) become the long one. An assertion that asserts nothing is refused here, so that it can
never pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from llmproxy.suite.matchers.apply import COMPARISONS, NOTHING_ASSERTED, validate_matcher
from llmproxy.suite.matchers.compare import is_reference
from llmproxy.suite.matchers.json_values import quote
from llmproxy.suite.matchers.match import MODIFIERS
from llmproxy.suite.schema.base_nodes import Node, add_problem, bad_kind
from llmproxy.suite.schema.values import (
    Capture,
    Count,
    Entity,
    Every,
    Fields,
    Flag,
    Matcher,
    PathFields,
    Pause,
    Text,
    Texts,
    Times,
)
from llmproxy.yaml_reader import Map, Problems


class Asserting(Node):
    """A node that has to assert something."""

    quiet: ClassVar[frozenset[str]] = frozenset()
    """Keys that say how to look, and assert nothing by themselves."""

    @model_validator(mode="after")
    def _require_assertion(self, info: ValidationInfo) -> Asserting:
        if self._source is None and isinstance(info.context, Problems):
            return self  # a model that holds itself is looked at twice, and knows its place the second time
        said = frozenset(self._source if self._source is not None else self.given) - self.quiet
        if not said or (said == {"snapshot"} and getattr(self, "snapshot", None) is False):
            known = [key for key in self.known_keys() if key not in self.quiet]
            add_problem(info, self.place, "nothing is asserted here", f"takes {', '.join(known)}")
        return self


class Judging(Node):
    """What a judge has to find in the conversation."""

    criteria: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Statements, each of which must be true of the conversation."""
    model: Text | None = None
    """Of the judge, in litellm's spelling; default: the suite's `judge.model`."""
    judges: Times = 1
    """How many judges vote; a criterion passes by more than half of them."""

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        """Take one criterion or a list of them as well."""
        if isinstance(data, str):
            return {"criteria": [data]}
        return {"criteria": data} if isinstance(data, list) else super().prepare_value(data, info)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "anyOf": [
                handler(schema),
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
            ]
        }


class ToolExpect(Asserting):
    """What is expected of the calls of one tool in this step."""

    nullable = frozenset({"output", "error"})
    hints: ClassVar[Mapping[str, str]] = {
        key: f"write it below `count`: {{count: {{{key}: ...}}, ...}}" for key in COMPARISONS
    }

    @model_validator(mode="after")
    def _require_more_than_status(self, info: ValidationInfo) -> ToolExpect:
        if self.given == {"status"} and self.status == "requested":
            add_problem(
                info, self.place, "nothing is asserted here", "every call is requested; write a count: {gte: 1}"
            )
        if isinstance(self.every, bool) and self.given <= {"every", "status"}:
            add_problem(
                info, self.at("every"), "`every` says of how many calls something must hold, and nothing else is said"
            )
        return self

    count: Count | None = None
    """How many calls there are, whatever their input. Without it: at least one."""
    input: PathFields | None = None
    """Path in the arguments -> matcher; at least one call must match (with ``count: 0``: none may)."""
    every: Every | None = None
    """As `input`, of every call. true: `input` too must hold of every call; false: `output`, `error` and `status` of
    one only.
    """
    output: Matcher | None = None
    """What the tool returned, as the agent passed it on; of every call."""
    error: Matcher | None = None
    """What the tool reported as an error; true: some error, false: none; of every call."""
    before: Text | None = None
    """Another tool: it is called too, and every call of this one comes before its first."""
    after: Text | None = None
    """Another tool: every call of this one has a call of it before."""
    offered: Flag | None = None
    """Whether a request of the step offers the tool to the model; false: nor may it be called."""
    status: Literal["requested", "executed", "errored"] = "requested"
    """How far every call came: the model asked for it, its result came back, its result is an error.

    With ``count: 0``: no call did.
    """

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        """Take a number or comparisons as well: they are the count."""
        plain = not isinstance(data, Mapping)
        if plain and not isinstance(data, (str, list, type(None))):
            return {"count": data}
        if is_reference(data) or (isinstance(data, Mapping) and data and data.keys() <= set(COMPARISONS)):
            return {"count": data}
        if plain:
            raise bad_kind(
                f"takes how often the tool is called, or {{count, input, ...}}; not {quote(data, 60)}",
                "mind the quotes"
                if isinstance(data, str) and data.isdecimal()
                else "write 1, or {gte: 1}, or {input: {...}}",
            )
        return super().prepare_value(data, info)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"$comment": "Count"}, handler(schema)]}


_TEXT_MATCHERS = ("contains", "containsAny", "notContains", "regex", "eq", "jsonSchema", "anyOf", "allOf", "not")


class Response(Asserting):
    """What the agent's answer must be like. All keys must hold."""

    quiet = frozenset({"ignoreCase", "flags"})
    nullable = frozenset(
        {"contains", "containsAny", "notContains", "regex", "eq", "not"}
    )  # the matchers say what they take

    contains: Matcher | None = None
    """A text, or a list of which all are in the answer."""
    contains_any: Matcher | None = None
    """A list of which at least one is in the answer."""
    not_contains: Matcher | None = None
    """A text, or a list of which none is in the answer."""
    regex: Matcher | None = None
    """A pattern, or a list of which all are found in the answer."""
    eq: Matcher | None = None
    """The whole answer."""
    ignore_case: Flag = False
    """For the keys above."""
    flags: Text | None = None
    """Of `regex`: letters of i, m, s, x."""
    json_: PathFields | None = Field(default=None, alias="json")
    """The answer is JSON (a code fence around it is taken off): path -> matcher; `$` is the whole."""
    json_schema: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    """The answer is JSON that keeps to this JSON Schema."""
    any_of: Annotated[tuple[Matcher, ...], Field(min_length=1)] | None = None
    """Matchers of which at least one holds."""
    all_of: Annotated[tuple[Matcher, ...], Field(min_length=1)] | None = None
    """Matchers that all hold."""
    not_: Matcher | None = Field(default=None, alias="not")
    """A matcher that does not hold."""
    judge: Judging | None = None
    """Statements that a judge must find true of the conversation so far."""
    snapshot: Flag = False
    """Equal to the answer that `--update` stored."""

    @property
    def matcher(self) -> dict[str, Any]:
        """The part that `matchers.apply.check_value` evaluates on the text of the answer; empty if there is none."""
        source = {field.alias: getattr(self, name) for name, field in type(self).model_fields.items()}
        made = {key: source[key] for key in _TEXT_MATCHERS if key in self.given}
        made = {key: list(value) if isinstance(value, tuple) else value for key, value in made.items()}
        if made and self.ignore_case:
            made["ignoreCase"] = True
        if "regex" in made and self.flags:
            made["flags"] = self.flags
        return made

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        """Let the matchers themselves say what is wrong with their operands."""
        if isinstance(data, Map):
            found, part = Problems(), Map(data.place)
            for key in data:
                if key in _TEXT_MATCHERS or key in MODIFIERS:
                    part.put(key, data[key], data.keys_at[key], data.values_at[key])
            if part:
                validate_matcher(part, found, data.place)
            for problem in found:
                if problem.code != NOTHING_ASSERTED:
                    add_problem(info, problem.place, problem.message, problem.hint)
        return super().prepare_value(data, info)


Evidence = Literal["declared", "proven", "inferred"]
"""How sure a finding about the agent's message processing has to be, surest first."""


class Created(Node):
    """Rows that did not exist when the step began."""

    entity: Entity
    """Whose rows."""
    fields: Fields = Field(default_factory=dict)
    """Column -> matcher; a new row has to satisfy all of them."""
    count: Count | None = None
    """How many new rows satisfy `fields`. Without it: at least one."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the row; there must be exactly one."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""
    within: Pause | None = None
    """How long to wait for it after the answer, for agents that write later."""


class Usage(Asserting):
    """What the step's LLM calls used, as the provider reported it. What is not reported is an error, never 0."""

    quiet = frozenset({"estimate"})

    input_tokens: Count | None = None
    """All input, cached input too."""
    output_tokens: Count | None = None
    """All output, reasoning too."""
    total_tokens: Count | None = None
    """Input and output."""
    call_count: Count | None = None
    """Answers of a model; retries count once."""
    cache_read_tokens: Count | None = None
    """Input that the provider read from its cache."""
    cache_creation_tokens: Count | None = None
    """Input that the provider wrote to its cache."""
    uncached_input_tokens: Count | None = None
    """Input that was not read from a cache."""
    reasoning_tokens: Count | None = None
    """Output that is reasoning."""
    cost_usd: Count | None = None
    """US dollars by litellm's prices; an unknown price is an error."""
    latency_ms: Count | None = None
    """Milliseconds that models took, from request to the end of the answer, all calls together; in replay as they were
    recorded.
    """
    first_token_ms: Count | None = None
    """Milliseconds until the first bytes of an answer, of the call that took longest; in replay as they
    were recorded.
    """
    any_of: Annotated[tuple[Usage, ...], Field(min_length=1)] | None = None
    """At least one of these holds, beside the keys above."""
    all_of: Annotated[tuple[Usage, ...], Field(min_length=1)] | None = None
    """All of these hold."""
    estimate: Flag = False
    """Whether tokens may be counted by us where the provider reports none."""

    @property
    def numbers(self) -> dict[str, Any]:
        """What is wanted by the names of the file, without anyOf, allOf and estimate."""
        quiet = {"anyOf", "allOf", "estimate"}
        return {
            field.alias or name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.alias in self.given - quiet
        }


class Processor(Asserting):
    """One way in which an agent changes its history before it sends it."""

    activated: Flag | None = None
    """Whether it was at work in this step."""


class Condenser(Processor):
    """Older messages were replaced by a summary."""

    condensed_messages: Count | None = None
    """How many messages the summary replaced."""
    recent_messages: Count | None = None
    """How many were kept after it."""
    total_messages: Count | None = None
    """How many there would have been."""
    summary_contains: Texts | None = None
    """All of them are in the summary, in upper or lower case."""
    summary_not_contains: Texts | None = None
    """None of them is in the summary."""


class Pruner(Processor):
    """Parts of messages were left out."""

    parts_removed: Count | None = None
    """How many."""


class TokenLimiter(Processor):
    """Oldest messages were dropped, nothing put in their place."""

    dropped_messages: Count | None = None
    """How many."""


class MessageProcessing(Asserting):
    """What the agent did to its history, as its requests show it."""

    quiet = frozenset({"minEvidence"})

    condenser: Condenser | None = None
    """Replaces old messages by a summary."""
    pruner: Pruner | None = None
    """Leaves out parts of messages."""
    token_limiter: TokenLimiter | None = None
    """Drops the oldest messages."""
    min_evidence: Evidence = "proven"
    """How sure it has to be."""
