"""Models of assertions about the answer and tool calls of an agent. One that asserts nothing is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from llmproxy.suite.matchers.apply import COMPARISONS, NOTHING_ASSERTED, validate_matcher
from llmproxy.suite.matchers.compare import is_reference
from llmproxy.suite.matchers.match import MODIFIERS, quote
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

_TEXT_MATCHERS = ("contains", "containsAny", "notContains", "regex", "eq", "jsonSchema", "anyOf", "allOf", "not")
Evidence = Literal["declared", "proven", "inferred"]
"""Evidence of a finding about the agent's message processing, strongest first."""


class NonEmptyAssertions(Node):
    """A node that must assert something."""

    quiet: ClassVar[frozenset[str]] = frozenset()
    """Keys that modify a check, and assert nothing by themselves."""

    @model_validator(mode="after")
    def _require_assertion(self, info: ValidationInfo) -> NonEmptyAssertions:
        if self._source is None and isinstance(info.context, Problems):
            return self  # a model that holds itself is looked at twice, and knows its place the second time
        said = frozenset(self._source if self._source is not None else self.given) - self.quiet
        if not said or (said == {"snapshot"} and getattr(self, "snapshot", None) is False):
            known = [key for key in self.known_keys() if key not in self.quiet]
            add_problem(info, self.place, "nothing is asserted here", f"takes {', '.join(known)}")
        return self


class Judging(Node):
    """Criteria for a judge about the conversation."""

    criteria: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Statements, each of which must be true of the conversation."""
    model: Text | None = None
    """Judge's model, in litellm's spelling; default: the suite's `judge.model`."""
    judges: Times = 1
    """Number of judges; a criterion passes by more than half of their votes."""

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        if isinstance(data, str):
            return {"criteria": [data]}
        return {"criteria": data} if isinstance(data, list) else super().prepare_value(data, info)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        texts = {"type": "array", "minItems": 1, "items": {"type": "string"}}
        return {"anyOf": [handler(schema), {"type": "string"}, texts]}


class ToolExpect(NonEmptyAssertions):
    """Expected calls of one tool in this step."""

    nullable = frozenset({"output", "error"})
    hints: ClassVar[Mapping[str, str]] = {
        key: f"write it below `count`: {{count: {{{key}: ...}}, ...}}" for key in COMPARISONS
    }

    @model_validator(mode="after")
    def _require_more_than_status(self, info: ValidationInfo) -> ToolExpect:
        if self.given == {"status"} and self.status == "requested":
            hint = "every call is requested; write a count: {gte: 1}"
            add_problem(info, self.place, "nothing is asserted here", hint)
        if isinstance(self.every, bool) and self.given <= {"every", "status"}:
            message = "`every` says of how many calls something must hold, and nothing else is said"
            add_problem(info, self.at("every"), message)
        return self

    count: Count | None = None
    """Number of calls, whatever their input. Default: at least one."""
    input: PathFields | None = None
    """Path in the arguments -> matcher; at least one call must match (with ``count: 0``: none may)."""
    every: Every | None = None
    """As `input`, of every call. true: `input` must hold of every call too; false: `output`, `error` and `status` of
    one call only."""
    output: Matcher | None = None
    """Result of the tool, as the agent passed it on; of every call."""
    error: Matcher | None = None
    """Error reported by the tool; true: any error, false: none; of every call."""
    before: Text | None = None
    """Another tool: it is called too, and every call of this one comes before its first."""
    after: Text | None = None
    """Another tool: every call of this one has an earlier call of it."""
    offered: Flag | None = None
    """Whether a request of the step offers the tool to the model; false: nor may it be called."""
    status: Literal["requested", "executed", "errored"] = "requested"
    """Progress of every call: the model asked for it, its result came back, its result is an error.

    With ``count: 0``: no call reached it."""

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        if is_reference(data) or not isinstance(data, (Mapping, str, list, type(None))):
            return {"count": data}
        if isinstance(data, Mapping) and data and data.keys() <= set(COMPARISONS):
            return {"count": data}
        if not isinstance(data, Mapping):
            quoted = isinstance(data, str) and data.isdecimal()
            hint = "mind the quotes" if quoted else "write 1, or {gte: 1}, or {input: {...}}"
            raise bad_kind(f"takes how often the tool is called, or {{count, input, ...}}; not {quote(data, 60)}", hint)
        return super().prepare_value(data, info)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"$comment": "Count"}, handler(schema)]}


class Response(NonEmptyAssertions):
    """Assertions about the agent's answer. All keys must hold."""

    quiet = frozenset({"ignoreCase", "flags"})
    nullable = frozenset({"contains", "containsAny", "notContains", "regex", "eq", "not"})

    contains: Matcher | None = None
    """A text in the answer, or a list of texts that are all in it."""
    contains_any: Matcher | None = None
    """A list of texts, at least one of which is in the answer."""
    not_contains: Matcher | None = None
    """A text that is not in the answer, or a list of texts, none of which is in it."""
    regex: Matcher | None = None
    """A pattern, or a list of patterns that are all found in the answer."""
    eq: Matcher | None = None
    """The whole answer."""
    ignore_case: Flag = False
    """Ignores case in the keys above."""
    flags: Text | None = None
    """Flags of `regex`: letters of i, m, s, x."""
    json_: PathFields | None = Field(default=None, alias="json")
    """The answer is JSON, also in a code fence: path -> matcher; `$` is the whole."""
    json_schema: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    """The answer is JSON that matches this JSON Schema."""
    any_of: Annotated[tuple[Matcher, ...], Field(min_length=1)] | None = None
    """Matchers, at least one of which holds."""
    all_of: Annotated[tuple[Matcher, ...], Field(min_length=1)] | None = None
    """Matchers that all hold."""
    not_: Matcher | None = Field(default=None, alias="not")
    """A matcher that does not hold."""
    judge: Judging | None = None
    """Criteria that a judge must find true of the conversation so far."""
    snapshot: Flag = False
    """Equal to the answer that `--update` stored."""

    @property
    def matcher(self) -> dict[str, Any]:
        given = self.given_values
        made = {key: given[key] for key in _TEXT_MATCHERS if key in given}
        made = {key: list(value) if isinstance(value, tuple) else value for key, value in made.items()}
        if made and self.ignore_case:
            made["ignoreCase"] = True
        if "regex" in made and self.flags:
            made["flags"] = self.flags
        return made

    @classmethod
    def prepare_value(cls, data: object, info: ValidationInfo) -> object:
        if isinstance(data, Map):
            found, part = Problems(), data.copy_with_places()
            for key in data.keys() - {*_TEXT_MATCHERS, *MODIFIERS}:
                del part[key]
            if part:
                validate_matcher(part, found, data.place)
            for problem in found:
                if problem.code != NOTHING_ASSERTED:
                    add_problem(info, problem.place, problem.message, problem.hint)
        return super().prepare_value(data, info)


class Created(Node):
    """Rows that did not exist when the step began."""

    entity: Entity
    """Entity of the rows."""
    fields: Fields = Field(default_factory=dict)
    """Column -> matcher; a new row must match all of them."""
    count: Count | None = None
    """Number of new rows that match `fields`. Default: at least one."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the row; there must be exactly one."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""
    within: Pause | None = None
    """Time to wait for it after the answer, for agents that write later."""


class Usage(NonEmptyAssertions):
    """Usage of the step's LLM calls, as reported by the provider. A value that is not reported is an error, never 0."""

    quiet = frozenset({"estimate"})

    input_tokens: Count | None = None
    """All input, including cached input."""
    output_tokens: Count | None = None
    """All output, including reasoning."""
    total_tokens: Count | None = None
    """Input and output."""
    call_count: Count | None = None
    """Model answers; retries count once."""
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
    """Milliseconds from request to the end of the answer, over all model calls; in replay as recorded."""
    first_token_ms: Count | None = None
    """Milliseconds to the first bytes of the slowest answer; in replay as recorded."""
    any_of: Annotated[tuple[Usage, ...], Field(min_length=1)] | None = None
    """At least one of these holds, in addition to the keys above."""
    all_of: Annotated[tuple[Usage, ...], Field(min_length=1)] | None = None
    """All of these hold."""
    estimate: Flag = False
    """Whether llmproxy may estimate tokens that the provider does not report."""

    @property
    def numbers(self) -> dict[str, Any]:
        return {key: value for key, value in self.given_values.items() if key not in {"anyOf", "allOf", "estimate"}}


class HistoryProcessor(NonEmptyAssertions):
    """One kind of change that an agent makes to its history before sending it."""

    activated: Flag | None = None
    """Whether it was active in this step."""


class CondenserAssertions(HistoryProcessor):
    """Older messages were replaced by a summary."""

    condensed_messages: Count | None = None
    """Number of messages replaced by the summary."""
    recent_messages: Count | None = None
    """Number of messages kept after it."""
    total_messages: Count | None = None
    """Number of messages without the summary."""
    summary_contains: Texts | None = None
    """Texts that are all in the summary; case is ignored."""
    summary_not_contains: Texts | None = None
    """Texts, none of which is in the summary."""


class PrunerAssertion(HistoryProcessor):
    """Parts of messages were removed."""

    parts_removed: Count | None = None
    """Number of parts."""


class TokenLimiter(HistoryProcessor):
    """The oldest messages were dropped without a replacement."""

    dropped_messages: Count | None = None
    """Number of messages."""


class MessageProcessing(NonEmptyAssertions):
    """Changes that the agent made to its history, by its requests."""

    quiet = frozenset({"minEvidence"})

    condenser: CondenserAssertions | None = None
    """Replaces old messages by a summary."""
    pruner: PrunerAssertion | None = None
    """Removes parts of messages."""
    token_limiter: TokenLimiter | None = None
    """Drops the oldest messages."""
    min_evidence: Evidence = "proven"
    """Least evidence required."""
