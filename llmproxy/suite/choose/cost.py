"""What a live run may spend, estimated from the last recording before anything is asked: ``--max-cost``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.amounts import dollars
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.protocol import OFFLINE
from llmproxy.suite.choose.cassettes import cassette_name

if TYPE_CHECKING:
    from llmproxy.suite.choose.options import Options
    from llmproxy.suite.reading.load import SuiteCase


@dataclass(frozen=True, slots=True)
class Estimate:
    usd: Decimal
    """Of what was recorded before."""
    unknown: tuple[str, ...] = ()
    """Cases that were never recorded, or whose price is not known."""


def estimate(store: Path, cases: Sequence[SuiteCase], runs: int | None = None) -> Estimate:
    """Add up what the recordings of these cases cost; of several samples the dearest stands for each run."""
    total, unknown = Decimal(0), list[str]()
    for case in cases:
        found = _cost(store, cassette_name(case.suite.name, case.id)) if store.is_file() else None
        if found is None:
            unknown.append(case.id)
        else:
            total += found * (runs or case.scenario.runs)
    return Estimate(total, tuple(unknown))


def _cost(store: Path, cassette: str) -> Decimal | None:
    """Return what the first sample of a cassette cost; None if that is not known."""
    from llmproxy.trace.reading.recording import spans_of

    with suppress(LLMProxyError):
        total = Decimal(0)
        for span in spans_of(store, cassette=cassette, party=None):
            if span.token_usage is not None:
                if span.cost_usd is None:
                    return None
                total += Decimal(str(span.cost_usd))
        return total
    return None


def refuse_costs(store: Path, cases: Sequence[SuiteCase], options: Options) -> list[str]:
    """Refuse to begin what would cost more than it may; return what should be said about it.

    Raises:
        SuiteError: the estimate is above the limit.

    """
    if options.max_cost is None or options.mode is None or (options.mode in OFFLINE and not options.live):
        return []
    found = estimate(store, cases, options.runs)
    if found.usd > options.max_cost:
        raise SuiteError(
            f"--max-cost {options.max_cost}: by the last recording this would cost {dollars(found.usd)}; nothing was run.",
            hint="Select fewer scenarios, or allow more.",
        )
    if not found.unknown:
        return []
    names = ", ".join(found.unknown[:5]) + (" ..." if len(found.unknown) > 5 else "")
    return [
        f"--max-cost: nothing is known about the cost of {names}; runs end as soon as {dollars(options.max_cost)} are spent"
    ]
