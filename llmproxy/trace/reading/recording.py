"""A recorded cassette of a store, as spans: all at once, or one by one.

The agent's own exchanges by default: what the user simulator and judges said is no behaviour of the agent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound
from llmproxy.protocol import AGENT
from llmproxy.trace.files.cassette import Cassette
from llmproxy.trace.reading.spans import build
from llmproxy.trace.values.model import Span, SpanKind


def from_store(path: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT) -> Cassette:
    """Turn what is recorded under (cassette, sample) into a trace; `party` None takes everybody's exchanges.

    Raises:
        CassetteNotFound: no such store, or nothing recorded there.
        CassetteCorrupt, CassetteNewer, CassetteBusy: the store cannot be read.

    """
    header = Header(cassette, sample)
    with _all_kept():
        for span in spans_of(path, cassette=cassette, sample=sample, party=party):
            header.see(span)
            header.trace.spans.append(span)
    return header.closed()


def from_interactions(interactions: Iterable[Interaction], name: str, *, party: str | None = AGENT) -> Cassette:
    """Turn interactions, in the order of their requests, into a trace of this name."""
    header = Header(name, 1)
    with _all_kept():
        for span in build(each for each in interactions if party in (None, each.party)):
            header.see(span)
            header.trace.spans.append(span)
    return header.closed()


@contextmanager
def _all_kept() -> Iterator[None]:
    """Look for no garbage: everything that is made here stays, and looking through it again and again is a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def spans_of(path: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT) -> Iterator[Span]:
    """Give the spans of a recording one by one, in their order; memory does not grow with it. Raises as `from_store`."""
    # The clock is for writing; what is open for reading never asks it.
    with closing(Store.open(path, writable=False, now=time.time)) as store:  # noqa: TID251
        if not store.has(cassette, sample):
            names = ", ".join(sorted({info.name for info in store.cassettes()})) or "none"
            raise CassetteNotFound(
                f"Nothing is recorded in {path} for cassette {cassette!r}, sample {sample}; there are: {names}.",
                hint=f"llmproxy ls --store {path}",
            )
        yield from build(_of(store, cassette, sample, party))


def _of(store: Store, cassette: str, sample: int, party: str | None) -> Iterator[Interaction]:
    for interaction in store.interactions(cassette, sample):
        if party is None or interaction.party == party:
            yield interaction


class Header:
    """The head of a trace, while its spans go by."""

    def __init__(self, cassette: str, sample: int) -> None:
        """Start a trace without spans."""
        self.trace = Cassette(
            id=f"{cassette}~{sample}", name=cassette, framework="llmproxy", created_at=0.0, created_at_unknown=True,
            metadata={"llmproxy.cassette": cassette, "llmproxy.sample": sample},
        )  # fmt: skip
        self._root: set[str] = set()

    def see(self, span: Span) -> None:
        """Add a span to the totals, and see whether it is what the whole run began or ended with."""
        trace = self.trace
        trace.count(span)
        if trace.created_at_unknown:
            trace.created_at, trace.created_at_unknown = span.timestamp, False
        if span.kind is SpanKind.AGENT_STEP and span.name == "conversation":
            self._root.add(span.metadata["gen_ai.conversation.id"])
        elif span.metadata.get("gen_ai.conversation.id") in self._root:
            if span.kind is SpanKind.USER_INPUT and not trace.input_text:
                trace.input_text = span.input
            elif span.kind is SpanKind.AGENT_OUTPUT:
                trace.output_text = span.output

    def closed(self) -> Cassette:
        """Return the trace with its fingerprint."""
        self.trace.compute_fingerprint()
        return self.trace
