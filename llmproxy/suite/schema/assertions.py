"""Models of a suite's values and of assertions, with plain error messages. One that asserts nothing is refused.

Nothing is converted: the text "5" is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from llmproxy.core.forks.overrides import InvalidMock, parse_mocks
from llmproxy.suite.matchers.apply import (
    COMPARISONS,
    NOTHING_ASSERTED,
    WRONG_KIND,
    is_zero_count_allowed,
    validate_expected_count,
    validate_matcher,
)
from llmproxy.suite.matchers.compare import is_reference
from llmproxy.suite.matchers.registry import MODIFIERS, explain_invalid_json_path, quote
from llmproxy.suite.matchers.variable_references import BUILT_IN, strip_dollar
from llmproxy.suite.schema.base_nodes import (
    SuiteModelBase,
    add_problem,
    build_type_error,
    build_value_error,
    describe_value,
)
from llmproxy.yaml_reader import Problems, YamlMapping, get_yaml_place

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNIT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_LONGEST = 24 * 3_600_000
_TIME = {"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$", "minimum": 0}
Value = Annotated[Any, WithJsonSchema({"$comment": "Json"})]
"""A literal, ``{ref: $name.field}``, or a text with references."""


def _read_text(value: object) -> object:
    if isinstance(value, str):
        if not value.strip():
            raise build_type_error("takes a text that is not empty")
        return value
    hint = "put it in quotes" if isinstance(value, (bool, int, float)) else ""
    raise build_type_error(f"takes a text, not {describe_value(value)}", hint)


def _read_flag(value: object) -> object:
    if isinstance(value, bool):
        return value
    hint = "only true and false are booleans in YAML 1.2" if isinstance(value, str) else ""
    raise build_type_error(f"takes true or false, not {describe_value(value)}", hint)


def _read_flag_or_reason(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.casefold() in {"no", "yes", "on", "off", "y", "n", "true", "false", ""}:
        hint = "only true and false are booleans in YAML 1.2"
        raise build_type_error(f"takes true, false or a reason, not {quote(value)}", hint)
    return _read_text(value)


def _parse_repeat_count(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    hint = "mind the quotes" if isinstance(value, str) and value.isdecimal() else ""
    raise build_type_error(f"takes a whole number from 1, not {describe_value(value)}", hint)


def _parse_share(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    hint = "0 is reached whatever the agent does" if value == 0 and not isinstance(value, bool) else ""
    raise build_type_error(f"takes a number above 0, up to 1, not {describe_value(value)}", hint)


def _build_duration_reader(least: float) -> Callable[[object], object]:
    def read(value: object) -> object:
        made: float | None = None
        if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
            made = float(found[1]) * _UNIT[found[2]]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            made = float(value)
        if made is None or not least <= made <= _LONGEST:
            more = "more than 0" if least else "0 or more"
            wanted = f'milliseconds ({more}) or a text such as "30s", "500ms", "2m"'
            raise build_type_error(f"takes {wanted}; not {describe_value(value)}")
        return made

    return read


def _read_capture_name(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(r"\$?[A-Za-z_]\w*", value, re.ASCII):
        raise build_type_error(f"takes a name such as $task, not {quote(value, 60)}")
    if strip_dollar(value) in BUILT_IN:
        raise build_type_error(f"takes a name of your own; {value} is built in: {BUILT_IN[strip_dollar(value)]}")
    return strip_dollar(value)


def _read_matcher(value: object, info: ValidationInfo) -> object:
    return _report_problems(value, info, validate_matcher)


def _read_count(value: object, info: ValidationInfo) -> object:
    return _report_problems(value, info, validate_expected_count)


def _report_problems(value: object, info: ValidationInfo, look: Callable[[object, Problems, None], None]) -> object:
    """Collect errors with a place; raise those without, for which pydantic knows it."""
    found = Problems()
    look(value, found, None)
    for problem in found:
        if problem.place is None:
            raise (build_type_error if problem.code == WRONG_KIND else build_value_error)(problem.message, problem.hint)
        add_problem(info, problem.place, problem.message, problem.hint)
    return value


def _refuse_empty_mapping(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        raise build_value_error("asserts nothing: it is empty")
    return value


def _check_paths(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Mapping):
        for path in value:
            if objection := explain_invalid_json_path(str(path)):
                at = get_yaml_place(value, path, key=True)
                add_problem(info, at, objection, "it is like task.tags[0].name; $ is the whole")
    return _refuse_empty_mapping(value)


def _read_path_matchers(value: object, info: ValidationInfo) -> object:
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise build_type_error(f"takes a mapping of paths to matchers, true or false; not {describe_value(value)}")
    for each in cast("Mapping[str, object]", _check_paths(value, info)).values():
        _read_matcher(each, info)
    return value


def _validate_faults(value: object) -> object:
    """Parse injected faults; a file of them is read when the scenario runs."""
    from llmproxy.core.faults.parsing import BadFaults, is_faults_file_path, parse_session_faults

    if not is_faults_file_path(value):
        try:
            parse_session_faults(value)
        except BadFaults as error:
            raise build_value_error(error.message, error.hint) from error
    return value


def _validate_mock(value: object) -> object:
    try:
        parse_mocks(value)
    except InvalidMock as error:
        raise build_value_error(error.inner, error.hint) from error
    return value


Text = Annotated[str, BeforeValidator(_read_text)]
"""A text that is not empty."""
Texts = Annotated[
    tuple[Text, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]
"""One text or several."""
Entity = Text
"""Name of an entity of the store."""
Flag = Annotated[bool, BeforeValidator(_read_flag)]
Reason = Annotated[bool | str, BeforeValidator(_read_flag_or_reason)]
"""True, or the reason."""
Times = Annotated[int, BeforeValidator(_parse_repeat_count), WithJsonSchema({"type": "integer", "minimum": 1})]
Share = Annotated[
    float, BeforeValidator(_parse_share), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
]
Milliseconds = Annotated[float, BeforeValidator(_build_duration_reader(0.001)), WithJsonSchema(_TIME)]
"""Milliseconds; more than 0."""
Pause = Annotated[float, BeforeValidator(_build_duration_reader(0)), WithJsonSchema(_TIME)]
"""Milliseconds; 0 or more."""
Capture = Annotated[
    str, BeforeValidator(_read_capture_name), WithJsonSchema({"type": "string", "pattern": r"^\$?[A-Za-z_]\w*$"})
]
"""A name, stored without its dollar sign."""
Matcher = Annotated[Any, BeforeValidator(_read_matcher), WithJsonSchema({"$comment": "Matcher"})]
"""As written; `llmproxy.suite.matchers.apply.check_value` evaluates it."""
Count = Annotated[Any, BeforeValidator(_read_count), WithJsonSchema({"$comment": "Count"})]
"""A number, ``{gte: 1, lt: 5}``, or a reference; as written."""
Fields = Annotated[dict[str, Matcher], BeforeValidator(_refuse_empty_mapping)]
"""Column -> matcher; at least one."""
PathFields = Annotated[dict[str, Matcher], BeforeValidator(_check_paths)]
"""Path in JSON -> matcher; at least one."""
FaultsGiven = Annotated[
    Any,
    BeforeValidator(_validate_faults),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "object"]}}, {"type": "object"}]}
    ),
]
"""Injected faults: a preset, a kind, ``http-429@2``, rules, a file."""
MocksGiven = Annotated[
    Any,
    BeforeValidator(_validate_mock),
    WithJsonSchema({"type": "object", "minProperties": 1, "additionalProperties": {"$comment": "Json"}}),
]
"""Tool -> result for the model, or a list of rules."""
Every = Annotated[
    Any,
    BeforeValidator(_read_path_matchers),
    WithJsonSchema(
        {"anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": {"$comment": "Matcher"}}]}
    ),
]
"""As `Fields`; or whether all keys must hold of every call (true), or of one (false)."""


class SetupRow(SuiteModelBase):
    """A row that is inserted into the store before the scenario begins."""

    insert: Entity
    """Entity of the row."""
    data: dict[str, Any]
    """Column -> value; values may refer to earlier rows."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the stored row."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""


class RowSelection(SuiteModelBase):
    entity: Entity
    """Entity of the rows."""
    id: Value | None = None
    """The row with this id; `wait` also waits for its creation."""
    filters: Fields = Field(default_factory=dict)
    """Column -> matcher; selects rows."""


class Verify(RowSelection):
    """Expected rows in the store."""

    fields: Fields = Field(default_factory=dict)
    """Column -> matcher; every selected row must match them, and there must be one."""
    count: Count | None = None
    """Number of selected rows."""
    exists: Flag | None = None
    """Whether any such row exists."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the row; there must be exactly one."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""

    @model_validator(mode="after")
    def _require_selection(self, info: ValidationInfo) -> Verify:
        if not self.given & {"id", "filters", "count", "exists"}:
            add_problem(info, self.place, "`verify` selects nothing", "it needs `id`, `filters`, `count` or `exists`")
        if self.fields and self.count is not None and is_zero_count_allowed(self.count):
            message = "`count` may be 0, and then `fields` would hold for no row at all"
            hint = "select by `filters`, or let `count` be at least 1: {gte: 1, lte: 3}"
            add_problem(info, self.at("fields"), message, hint)
        if self.exists is False and self.fields:
            message = "`exists: false` leaves no row whose fields could be checked"
            add_problem(info, self.at("fields"), message, "use `filters`")
        return self


class WaitForRows(RowSelection):
    """Polls the store until the rows match."""

    until: Fields
    """Column -> matcher; each selected row must match all of them."""
    timeout: Milliseconds = 30_000
    """Time limit."""
    poll_interval: Milliseconds = 1_000
    """Polling interval."""


class PauseFor(SuiteModelBase):
    """Waits for a fixed time."""

    seconds: Pause | None = None
    ms: Pause | None = None

    @model_validator(mode="after")
    def _require_one(self, info: ValidationInfo) -> PauseFor:
        if len(self.given & {"seconds", "ms"}) != 1:
            add_problem(info, self.place, "a pause has either `seconds` or `ms`")
        return self

    @property
    def milliseconds(self) -> float:
        return self.ms if self.ms is not None else (self.seconds or 0) * 1000


_TEXT_MATCHERS = ("contains", "containsAny", "notContains", "regex", "eq", "jsonSchema", "anyOf", "allOf", "not")
Evidence = Literal["declared", "proven", "inferred"]
"""Evidence of a finding about the agent's message processing, strongest first."""


class NodeRequiringAnAssertion(SuiteModelBase):
    """A node that must assert something."""

    quiet: ClassVar[frozenset[str]] = frozenset()
    """Keys that modify a check, and assert nothing by themselves."""

    @model_validator(mode="after")
    def _require_assertion(self, info: ValidationInfo) -> NodeRequiringAnAssertion:
        if self._source is None and isinstance(info.context, Problems):
            return self  # a model that holds itself is looked at twice, and knows its place the second time
        said = frozenset(self._source if self._source is not None else self.given) - self.quiet
        if not said or (said == {"snapshot"} and getattr(self, "snapshot", None) is False):
            known = [key for key in self.known_keys() if key not in self.quiet]
            add_problem(info, self.place, "nothing is asserted here", f"takes {', '.join(known)}")
        return self


class JudgeAssertion(SuiteModelBase):
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


class ToolExpect(NodeRequiringAnAssertion):
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
            raise build_type_error(
                f"takes how often the tool is called, or {{count, input, ...}}; not {quote(data, 60)}", hint
            )
        return super().prepare_value(data, info)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"$comment": "Count"}, handler(schema)]}


class Response(NodeRequiringAnAssertion):
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
    judge: JudgeAssertion | None = None
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
        if isinstance(data, YamlMapping):
            found, part = Problems(), data.copy_with_places()
            for key in data.keys() - {*_TEXT_MATCHERS, *MODIFIERS}:
                del part[key]
            if part:
                validate_matcher(part, found, data.place)
            for problem in found:
                if problem.code != NOTHING_ASSERTED:
                    add_problem(info, problem.place, problem.message, problem.hint)
        return super().prepare_value(data, info)


class CreatedRowsAssertion(SuiteModelBase):
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


class Usage(NodeRequiringAnAssertion):
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


class HistoryEditAssertions(NodeRequiringAnAssertion):
    """One kind of change that an agent makes to its history before sending it."""

    activated: Flag | None = None
    """Whether it was active in this step."""


class CondenserAssertions(HistoryEditAssertions):
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


class PrunerAssertion(HistoryEditAssertions):
    """Parts of messages were removed."""

    parts_removed: Count | None = None
    """Number of parts."""


class DroppedOldMessagesAssertion(HistoryEditAssertions):
    """The oldest messages were dropped without a replacement."""

    dropped_messages: Count | None = None
    """Number of messages."""


class AgentHistoryEditAssertions(NodeRequiringAnAssertion):
    """Changes that the agent made to its history, by its requests."""

    quiet = frozenset({"minEvidence"})

    condenser: CondenserAssertions | None = None
    """Replaces old messages by a summary."""
    pruner: PrunerAssertion | None = None
    """Removes parts of messages."""
    token_limiter: DroppedOldMessagesAssertion | None = None
    """Drops the oldest messages."""
    min_evidence: Evidence = "proven"
    """Least evidence required."""
