"""A shareable page with all its data embedded, so that it sends no requests.

A message is stored once, and a request as its difference from an earlier one. As in every file that leaves the machine,
names of persons and machines are replaced (`cassettes.anonymized_export`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import quote

from llmproxy.core.cassettes.anonymized_export import anonymize_interaction
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.session import remove_redundant_sample_suffix
from llmproxy.core.store.reader import CassetteInfo, StoreReader
from llmproxy.core.store.row_conversion import StoredCallSummary, extract_texts_and_cost
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT
from llmproxy.ui import queries
from llmproxy.ui.calls import (
    ExchangeLinker,
    ExchangeWithPrevious,
    attach_tool_results_to_calls,
    build_step_list_of_run,
    call_to_json,
    decode_utf8_or_none,
    encode_body_for_json,
    encode_viewer_text_from_base,
)

MARK = "llmproxy recording"
"""Kind of a page's data, by which our files are recognised."""
_DEEPEST = 50
"""Maximum number of requests that are combined to restore one."""
_ONE = 2
"""Maximum-size calls that fit into a page with a limit."""


def build_viewer_page_data(
    store: StoreReader,
    wanted: Sequence[CassetteInfo],
    title: str,
    most: int | None = None,
    redactor: Redactor | None = None,
) -> dict[str, Any]:
    """Return cassettes as a page's data; above `most` bytes without the last and huge calls, which are counted."""
    maker = PageDataBuilder(most, redactor)
    children, sums = queries.list_fork_origins(store), queries.summarize_cassettes(store)
    cassettes = []
    for info in wanted:
        found = list(maker.add_cassette(store, info))
        which = queries.CallFilter(info.name, info.sample)
        taken = {each.id for each in found}
        own = [each for each in found if each.party == AGENT] or found
        told = list(
            queries.take_interactions_until_byte_limit(islice(own, queries.MAX_RUN_CALLS), queries.MAX_RUN_BYTES)
        )
        stored = {row.id: row for row in store.list_summaries(info.name, info.sample, superseded=True)}
        listed = [_build_call_row(stored[each.id], each) for each in found if each.id in stored]
        cassettes.append(
            {
                **asdict(info),
                "holder": None,
                **children.get((info.name, info.sample), queries.NO_CHILD),
                **sums[info.name, info.sample],
                "asked": listed[0]["asked"] if listed else "",
                "rows": listed,
                "left": info.live - len(found),
                "sums": queries.compute_totals_of_filtered_calls(store, which),
                "strip": [each for each in queries.list_calls_for_timeline(store, which) if each[0] in taken],
                "steps": {"steps": build_step_list_of_run(told), "calls": len(told), "of": info.live},
            }
        )
    only = remove_redundant_sample_suffix(f"{wanted[0].name}~{wanted[0].sample}") if len(wanted) == 1 else ""
    start = f"#/c/{quote(only, safe='')}" if only else ""
    pools = {"messages": maker.messages.values, "tools": maker.tools.values}
    data = {"calls": maker.calls, "bodies": maker.bodies, **pools}
    return {"kind": MARK, "title": title, "start": start, "cassettes": cassettes, **data}


def _build_call_row(row: StoredCallSummary, interaction: Interaction) -> dict[str, Any]:
    """Return a call's row with the file's texts: the store's contain names that are replaced here."""
    asked, answered, cost = extract_texts_and_cost(interaction)
    return queries.convert_call_summary_to_json(replace(row, last_user_text=asked, answer_text=answered, cost_usd=cost))


@dataclass(slots=True)
class _ValuePool:
    numbers: dict[str, int] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    size: int = 0

    def add(self, value: Any) -> int:
        if (name := json.dumps(value)) not in self.numbers:
            self.numbers[name] = len(self.values)
            self.values.append(value)
            self.size += len(name)
        return self.numbers[name]


@dataclass(slots=True)
class PageDataBuilder:
    most: int | None = None
    redactor: Redactor | None = None
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    bodies: dict[int, dict[str, Any]] = field(default_factory=dict)
    messages: _ValuePool = field(default_factory=_ValuePool)
    tools: _ValuePool = field(default_factory=_ValuePool)
    depth: dict[int, int] = field(default_factory=dict)
    """Number of other requests needed to restore a request."""
    size: int = 0

    def add_cassette(self, store: StoreReader, info: CassetteInfo) -> Iterator[Interaction]:
        """Add a cassette and sample, with the calls that fit, each party's conversations separately."""
        readers: dict[str, ExchangeLinker] = {}
        for each in store.iter_interactions(info.name, info.sample):
            if self.most is not None and self.size + self.messages.size + self.tools.size >= self.most:
                return
            if self.most is None or queries.count_interaction_bytes(each) <= self.most // _ONE:
                taken = anonymize_interaction(self.redactor.interaction(each) if self.redactor else each)
                self._add_call(readers.setdefault(taken.party, ExchangeLinker()).read(taken))
                yield taken

    def _add_call(self, told: ExchangeWithPrevious) -> None:
        made = call_to_json(told)
        made |= {"messages": list(map(self.messages.add, made["messages"])), "tools": self.tools.add(made["tools"])}
        interaction = told.exchange.interaction
        self.calls[made["id"]] = made
        attach_tool_results_to_calls(self.calls, told.results)
        found = {"request": self._build_request_body(told), "response": encode_body_for_json(interaction.response.body)}
        self.bodies[made["id"]] = found
        if self.most is not None:
            self.size += len(json.dumps(made)) + len(json.dumps(found))

    def _build_request_body(self, told: ExchangeWithPrevious) -> dict[str, Any]:
        interaction, previous = told.exchange.interaction, told.previous
        text = decode_utf8_or_none(interaction.request.body)
        base = None if previous is None else decode_utf8_or_none(previous.interaction.request.body)
        of = previous.interaction.id if previous else None
        depth = self.depth.get(of or 0, 0) + 1
        if text is None or base is None or of is None or depth > _DEEPEST:
            return encode_body_for_json(interaction.request.body)
        made = encode_viewer_text_from_base((of, base), text)
        if "of" in made:
            self.depth[interaction.id or 0] = depth
        return made


def find_cassettes_by_name_and_sample(
    store: StoreReader, cassette: str | None, sample: int | None
) -> Iterator[CassetteInfo]:
    for info in store.cassettes():
        if info.live and cassette in (None, info.name) and sample in (None, info.sample):
            yield info
