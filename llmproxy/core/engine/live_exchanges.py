"""Some channels live, the others recorded: what of a request's way is different then.

The state is `live_channels.LiveSession`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from llmproxy.core.bindings.answer_bodies import list_parts
from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.dialects.table import envelope, status_of_miss
from llmproxy.core.engine.decide import Decided, MissReason
from llmproxy.core.engine.dispatch import check_upstream
from llmproxy.core.engine.interaction_builder import InteractionBuilder
from llmproxy.core.engine.misses import Misses
from llmproxy.core.engine.state import State
from llmproxy.core.live_channels import (
    LISTS,
    TOOLS,
    LiveSession,
    RequestedTool,
    ToolPath,
    ToolRow,
    asks_a_model,
    depends,
    may_change,
    name_of_call,
    read_path,
    same_call,
    tools_that_only_read,
)
from llmproxy.core.mcp import refuse
from llmproxy.core.providers.table import SAFE
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.rows import RowSummary
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Chunk, Key, Response, Usage, header
from llmproxy.errors import MissError
from llmproxy.protocol import AGENT, Channel, Decision, UnknownTool


def goes_live(exchange: Exchange, living: LiveSession, body: bytes) -> bool:
    """Return whether a request is sent to its real provider or tool.

    Telemetry never is, nor what may be a tool under a name of the user's.
    """
    channel = exchange.channel
    if exchange.route.not_llm or not living.is_live(channel):
        return False
    return channel is not Channel.LLM or asks_a_model(exchange.route.provider.name, exchange.operation, body)


def choose_recorded(
    exchange: Exchange, living: LiveSession, slots: Sequence[KeyedRecording], store: Store, key: Key
) -> Decided[KeyedRecording] | None:
    """Return what becomes of a call of a tool.

    None for what depends on no state, which is decided as in every replay.
    """
    channel, operation = exchange.channel, exchange.operation
    lists = channel is Channel.MCP and operation in LISTS
    if channel is Channel.LLM or not (lists or depends(channel, operation)):
        return None
    path = living.path
    if path is None:
        path = living.path = _path_of(living, store)
    chosen = living.choose(
        path,
        key,
        slots,
        alike=lambda some: _alike(store, some),
        announced=lambda id_: _is_announced(living, store, id_),
        loose=lists,
    )
    if chosen.recording is not None:
        return Decided(Decision.REPLAY, chosen.recording)
    if slots:
        exchange.unbound = chosen.why or "it was not recorded as a call of a tool"
    return Decided(Decision.REFUSE, reason=MissReason.STATE if slots else MissReason.NEVER)


def changes_something(exchange: Exchange, living: LiveSession) -> bool:
    """Return whether a call that goes to the real tool may change something there."""
    if exchange.channel is Channel.HTTP and exchange.method in SAFE:
        return False
    return depends(exchange.channel, exchange.operation) and not living.asked.declares(_name(exchange))


def record_unanswered(exchange: Exchange, living: LiveSession) -> str:
    """Note a call that no recording answers, and return its name."""
    living.record_unanswered(name := _name(exchange))
    return name


def refusal_of(exchange: Exchange, text: str, miss_status: int | None) -> Response:
    """Return the answer that tells a tool's caller why there is none, as it is sent."""
    if exchange.channel is Channel.MCP:
        status, headers, body = refuse(exchange.operation, exchange.body or b"", text)
    else:
        status = miss_status or status_of_miss(exchange.family, exchange.operation)
        headers, body = envelope(exchange.family, status, MissError.code, text)
    return Response(status, "", headers, (Chunk(0, body),) if body else ())


def announce(exchange: Exchange, living: LiveSession, response: Response) -> None:
    """Hear which tools the agent's model asks for."""
    if exchange.channel is not Channel.LLM or exchange.party != AGENT:
        return
    said = read_answer(
        exchange.family, exchange.operation, header(response.headers, "content-type") or "", response.body
    )
    if said is not None:
        living.announced = tuple(RequestedTool(call.name, call.arguments) for call in said.tool_calls)


class LiveHandler:
    """Refuses, sends and keeps, in sessions of one engine that have live channels."""

    def __init__(self, state: State, builder: InteractionBuilder, misses: Misses) -> None:
        """Share the engine's state."""
        self._state, self._builder, self._misses = state, builder, misses

    def send_live(self, exchange: Exchange, living: LiveSession) -> None:
        """Send a request to its real provider or tool, and keep the answer in the session's child."""
        session = exchange.session
        exchange.nth = session.arrive(exchange.walker, 1)
        self._state.sessions.renew(session)
        session.record(exchange.walker)
        exchange.into, exchange.decision = (living.child, 1), Decision.RECORD
        check_upstream(exchange)
        self._state.pending.reserve(exchange, ())

    def refuse(self, exchange: Exchange, living: LiveSession, why: MissReason, recordings: int) -> None:
        """Refuse what no recording answers beside live channels; a tool's call as its user wanted."""
        if exchange.channel is Channel.LLM:
            exchange.error = self._misses.miss(exchange, why, recordings)
            return
        name = record_unanswered(exchange, living)
        if living.asked.unknown is UnknownTool.LIVE:
            living.parted = living.parted or (name if changes_something(exchange, living) else "")
            self.send_live(exchange, living)
            return
        exchange.expected = living.asked.unknown is UnknownTool.ERROR
        exchange.error = self._misses.miss(exchange, why, recordings)
        exchange.note = exchange.note or f"no recording of {name} holds here"
        self._state.sessions.renew(exchange.session)
        exchange.into = living.child, 1
        response = refusal_of(exchange, str(exchange.error), self._state.config.miss_status)
        made = self._builder.interaction(exchange, response, Usage(), redacted=False)
        living.made[exchange.seq] = made
        living.waiting.append(made)

    def keep_answer(self, exchange: Exchange, response: Response) -> None:
        """Put an answer that was served beside live channels into the session's child, soon."""
        if (living := exchange.session.live) is None or exchange.slot is None or self._state.stores.opened is None:
            return
        self._state.sessions.renew(exchange.session)
        exchange.into = living.child, 1
        recorded = self._state.stores.opened.load(exchange.slot.id)
        living.served += 1
        living.waiting.append(self._builder.interaction(exchange, response, recorded.usage, redacted=recorded.redacted))
        announce(exchange, living, response)


def _name(exchange: Exchange) -> str:
    return name_of_call(exchange.operation, exchange.route.provider.name, exchange.method, exchange.route.target)


def _path_of(living: LiveSession, store: Store) -> ToolPath:
    rows = [row for row in store.summaries(*living.parent) if row.channel is not Channel.LLM]
    reading = _read_only_tools(store, rows)

    def changes(row: ToolRow) -> bool:
        return may_change(row, reading, living.asked.declares)

    return read_path((row for row in rows if not living.is_live(row.channel)), changes)


def _read_only_tools(store: Store, rows: Sequence[RowSummary]) -> dict[str, frozenset[str]]:
    """Return for each server the tools that it calls read-only wherever it lists them."""
    found: dict[str, frozenset[str]] = {}
    for provider in {row.provider for row in rows if row.operation == TOOLS}:
        listed = (row.id for row in rows if row.provider == provider and row.operation == TOOLS)
        found[provider] = frozenset(tools_that_only_read(each for id_ in listed for each in _messages(store, id_))[0])
    return found


def _messages(store: Store, id_: int) -> Iterator[object]:
    response = store.response(id_)
    return (part.value for part in list_parts(header(response.headers, "content-type") or "", response.body))


def _alike(store: Store, slots: Sequence[KeyedRecording]) -> bool:
    """Return whether recorded answers say the same; ids of messages are no difference."""
    return len({_format_answer(store, slot.id) for slot in slots}) <= 1


def _format_answer(store: Store, id_: int) -> str:
    response = store.response(id_)
    messages = list(_messages(store, id_))
    if not messages or not all(isinstance(each, dict) and "jsonrpc" in each for each in messages):
        return f"{response.status} {response.body!r}"
    bare = [
        {name: value for name, value in each.items() if name != "id"} for each in messages if isinstance(each, dict)
    ]
    return json.dumps([response.status, bare], sort_keys=True)


def _is_announced(living: LiveSession, store: Store, id_: int) -> bool:
    """Return whether the model asked for a recorded call in its last answer."""
    if not living.announced:
        return False
    request = store.load(id_).request.body
    return any(same_call(request, call.name, call.arguments) for call in living.announced)
