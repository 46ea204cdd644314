"""A recorded cassette of a store, as spans, one by one; `trace.files.cassette` makes a trace of them.

The agent's own exchanges by default: what the user simulator and judges said is no behaviour of the agent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from llmproxy.core.cassettes.plain import to_json
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.advice import look
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound
from llmproxy.protocol import AGENT
from llmproxy.trace.reading.spans import build
from llmproxy.trace.values.model import Span


@contextmanager
def all_kept() -> Iterator[None]:
    """Look for no garbage while a trace is read: all of it stays, and looking through it again and again is a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def spans_of(path: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT) -> Iterator[Span]:
    """Give the spans of a recording one by one, in their order; memory does not grow with it.

    Raises:
        CassetteNotFound: no such store, or nothing recorded there.
        CassetteCorrupt, CassetteNewer, CassetteBusy: the store cannot be read.

    """
    # The clock is for writing; what is open for reading never asks it.
    with closing(open_store(path, writable=False, now=time.time)) as store:  # noqa: TID251 - never asked, as above
        if not store.has(cassette, sample):
            names = ", ".join(store.names(20)) or "none"
            raise CassetteNotFound(
                f"Nothing is recorded in {path} for cassette {cassette!r}, sample {sample}; there are: {names}.",
                hint=look("ls", path),
            )
        yield from build(_of(store, cassette, sample, party))


def lines_of(path: Path | str, *, cassette: str, sample: int = 1) -> Iterator[dict[str, Any]]:
    """Give the agent's recordings in the JSON form in which a proxy tells them, in their order. Raises as :func:`spans_of`."""
    with closing(open_store(path, writable=False, now=time.time)) as store:  # noqa: TID251 - as above
        for interaction in _of(store, cassette, sample, AGENT):
            yield to_json(interaction)


def _of(store: Store, cassette: str, sample: int, party: str | None) -> Iterator[Interaction]:
    for interaction in store.interactions(cassette, sample):
        if party is None or interaction.party == party:
            yield interaction
