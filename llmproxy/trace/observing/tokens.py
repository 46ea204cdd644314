"""What the answers of a step took: tokens, cost and time, by the names that suites use.

Every prompt token is input, cached or not, whatever the provider calls so (`core.usage` has one arithmetic for all). A
sum of which a part is unknown is a lower bound (`Tokens.complete`), never a number to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from llmproxy.core.dialects.table import CHAT
from llmproxy.core.dialects.usage import cost_of
from llmproxy.core.traffic.interaction import Chunk, Usage
from llmproxy.trace.observing.seen import Seen


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sum of something over a step."""

    known: int | Decimal | None
    """What is known of it; None if nothing is."""
    complete: bool
    """Whether that is all; else it is a lower bound."""

    @property
    def value(self) -> int | Decimal | None:
        """The sum, None if any part of it is unknown."""
        return self.known if self.complete else None


def usage_of(chosen: Sequence[Seen]) -> dict[str, Tokens]:
    """Add up what the counted answers took; every prompt token is input, cached or not."""
    counted = [each for each in chosen if _costs(each)]
    usages = [Usage() if each.exchange is None else each.exchange.interaction.usage for each in counted]
    given, said = [each.input for each in usages], [each.output for each in usages]
    fresh = [
        None if each.input is None else max(each.input - (each.cached or 0) - (each.cache_written or 0), 0)
        for each in usages
    ]
    total = [None if None in pair else sum(each or 0 for each in pair) for pair in zip(given, said, strict=True)]
    return {
        "callCount": Tokens(
            sum(1 for each in chosen if each.answered and not _is_noise(each)),
            complete=not any(each.broken or _is_noise(each) for each in chosen),
        ),
        "inputTokens": _sum(given),
        "outputTokens": _sum(said),
        "totalTokens": _sum(total),
        "cacheReadTokens": _sum([each.cached for each in usages]),
        "cacheCreationTokens": _sum([each.cache_written for each in usages]),
        "uncachedInputTokens": _sum(fresh),
        "reasoningTokens": _sum([each.reasoning for each in usages]),
        "costUsd": _sum([_cost(each) for each in counted]),
        "latencyMs": _sum([_took(each) for each in chosen]),
        "firstTokenMs": _longest([_until_first(each) for each in counted]),
    }


def _is_noise(seen: Seen) -> bool:
    """Return whether something was answered that is no answer of a model, as far as anybody can read it."""
    exchange = seen.exchange
    return seen.answered and exchange is not None and exchange.answer is None and bool(seen.unread)


def _costs(seen: Seen) -> bool:
    """Return whether an exchange is a model's call that went well: an answer that counts, or embeddings etc."""
    if seen.call.operation in CHAT:
        return seen.answered
    exchange = seen.exchange
    return exchange is not None and not exchange.failed and exchange.interaction.usage != Usage()


def _cost(seen: Seen) -> Decimal | None:
    if seen.exchange is None:
        return None
    interaction = seen.exchange.interaction
    models = (interaction.model, seen.exchange.answer_model)
    costs = (cost_of(interaction.provider, model, interaction.usage) for model in models)
    return next((cost for cost in costs if cost is not None), None)


def _took(seen: Seen) -> int | None:
    """Return an exchange's time on the wire, milliseconds, as recorded: a replay's own pace says nothing."""
    chunks = _chunks(seen)
    return round(chunks[-1].offset / 1000) if chunks else None


def _until_first(seen: Seen) -> int | None:
    chunks = _chunks(seen)
    return round(chunks[0].offset / 1000) if chunks else None


def _chunks(seen: Seen) -> Sequence[Chunk]:
    return () if seen.exchange is None else seen.exchange.interaction.response.chunks


def _longest(values: Sequence[int | None]) -> Tokens:
    known = [value for value in values if value is not None]
    return Tokens(max(known, default=None), complete=bool(values) and len(known) == len(values))


def _sum(values: Sequence[int | None] | Sequence[Decimal | None]) -> Tokens:
    known: list[int | Decimal] = [value for value in values if value is not None]
    total = sum(known) if known or not values else None
    return Tokens(total, complete=len(known) == len(values))
