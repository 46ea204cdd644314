"""What a scenario says about the store by itself: rows to put in, rows that must be there, rows to wait for."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, model_validator

from llmproxy.suite.matchers.table import may_be_zero
from llmproxy.suite.schema.types import Node, complain
from llmproxy.suite.schema.values import Capture, Count, Entity, Fields, Flag, Milliseconds, Pause, Value


class SetupItem(Node):
    """A row that is put into the store before the scenario begins."""

    insert: Entity
    """Whose row."""
    data: dict[str, Any]
    """Column -> value; values may refer to rows before."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the row as the store has it."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""


class Verify(Node):
    """What the store must hold now."""

    entity: Entity
    """Whose rows."""
    id: Value | None = None
    """The row with this id."""
    filters: Fields | None = None
    """Column -> matcher; selects rows."""
    fields: Fields | None = None
    """Column -> matcher; every selected row has to satisfy them, and there has to be one."""
    count: Count | None = None
    """How many rows are selected."""
    exists: Flag | None = None
    """Whether there is any such row."""
    as_: Capture | None = Field(default=None, alias="as")
    """Name for the row; there must be exactly one."""
    overwrite: Flag = False
    """Whether `as` may replace an earlier row of that name."""

    @model_validator(mode="after")
    def _selects(self, info: ValidationInfo) -> Verify:
        if not self.given & {"id", "filters", "count", "exists"}:
            complain(info, self.place, "`verify` selects nothing", "it needs `id`, `filters`, `count` or `exists`")
        if self.fields and self.count is not None and may_be_zero(self.count):
            complain(
                info,
                self.at("fields"),
                "`count` may be 0, and then `fields` would hold for no row at all",
                "select by `filters`, or let `count` be at least 1: {gte: 1, lte: 3}",
            )
        if self.exists is False and self.fields:
            complain(
                info, self.at("fields"), "`exists: false` leaves no row whose fields could be checked", "use `filters`"
            )
        return self


class WaitFor(Node):
    """Looks into the store again and again until a row is as it should be."""

    entity: Entity
    """Whose rows."""
    id: Value | None = None
    """The row with this id; it may come into being while we wait."""
    filters: Fields | None = None
    """Column -> matcher; selects rows."""
    until: Fields
    """Column -> matcher; one selected row has to satisfy all of them."""
    timeout: Milliseconds = 30_000
    """How long to wait."""
    poll_interval: Milliseconds = 1_000
    """How long between two looks."""


class PauseFor(Node):
    """Waits, whatever happens."""

    seconds: Pause | None = None
    ms: Pause | None = None

    @model_validator(mode="after")
    def _one(self, info: ValidationInfo) -> PauseFor:
        if len(self.given & {"seconds", "ms"}) != 1:
            complain(info, self.place, "a pause has either `seconds` or `ms`")
        return self

    @property
    def milliseconds(self) -> float:
        """How long."""
        return self.ms if self.ms is not None else (self.seconds or 0) * 1000
