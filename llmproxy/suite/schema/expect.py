"""What a step may assert about what came of it: created rows, usage, message processing.

Numbers and matchers stay as they are written (`matchers.check` takes them so).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from llmproxy.suite.schema.response import Asserting
from llmproxy.suite.schema.types import Node
from llmproxy.suite.schema.values import Capture, Count, Entity, Fields, Flag, Pause, Texts

Evidence = Literal["declared", "proven", "inferred"]
"""How sure a finding about the agent's message processing has to be, surest first."""


class Created(Node):
    """Rows that did not exist when the step began."""

    entity: Entity
    """Whose rows."""
    fields: Fields | None = None
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
    """Milliseconds that models took, from request to the end of the answer, all calls together; in replay as they were recorded."""
    first_token_ms: Count | None = None
    """Milliseconds until the first bytes of an answer, of the call that took longest; in replay as they were recorded."""
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
