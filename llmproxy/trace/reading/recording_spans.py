"""Spans of a cassette in a store, one by one, by default only of the agent's exchanges; a call's recording."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmproxy.advice import format_llmproxy_command
from llmproxy.calls_and_totals import Call
from llmproxy.core.cassettes.anonymized_export import build_interaction_from_json, convert_interaction_to_json
from llmproxy.core.store.file.store import open_store
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound
from llmproxy.protocol import AGENT
from llmproxy.trace.reading.span_builder import build_spans
from llmproxy.trace.span_models import Span


def spans_of(path: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT) -> Iterator[Span]:
    """Yield a recording's spans, one by one. Raises CassetteNotFound, CassetteCorrupt, CassetteNewer, CassetteBusy."""
    # The clock is for writing; what is open for reading never asks it.
    with open_store(path, writable=False, now=time.time) as store:  # noqa: TID251 - never asked, as above
        if not store.has_recordings(cassette, sample):
            names = ", ".join(store.list_cassette_names(20)) or "none"
            raise CassetteNotFound(
                f"Nothing is recorded in {path} for cassette {cassette!r}, sample {sample}; there are: {names}.",
                hint=f"See what is recorded, and name one: {format_llmproxy_command('ls', path)}",
            )
        found = store.iter_interactions(cassette, sample)
        yield from build_spans(each for each in found if party in (None, each.party))


def read_interactions_as_json(path: Path | str, *, cassette: str, sample: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the agent's recordings in the proxy's JSON form, in order. Raises as :func:`spans_of`."""
    with open_store(path, writable=False, now=time.time) as store:  # noqa: TID251 - as above
        yield from (
            convert_interaction_to_json(each)
            for each in store.iter_interactions(cassette, sample)
            if each.party == AGENT
        )


def parse_recording_json_of_call(call: Call) -> Interaction | None:
    """Return a call's recording, if any. Raises CassetteCorrupt for an invalid one."""
    if call.recording is None:
        return None
    made = build_interaction_from_json(call.recording, 1)
    return made if call.occurrence is None else replace(made, occurrence=call.occurrence)
