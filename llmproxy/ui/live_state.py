"""The state of a running proxy for the page.

In two steps: `take_live_snapshot` runs in the engine's thread, between two of its events, and is fast; `state_to_json`
converts the snapshot to plain values in any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import JournaledMiss
from llmproxy.protocol import Decision
from llmproxy.proxy_calls import Call, CallLog

MOST = 500
"""Maximum rows of one answer."""
Json = Any
_WORDS = {
    Decision.REPLAY: "hit", Decision.RECORD: "recorded", Decision.PASS: "passed", Decision.REFUSE: "refused",
    Decision.FAULT: "fault",
}  # fmt: skip


def take_live_snapshot(engine: Engine, watch: CallLog, opened: Iterable[Exchange], after: int) -> dict[str, Json]:
    """Take the changes after call number `after`: plain values, except `rows`, the calls with their numbers."""
    sessions = [
        {
            "name": each.name,
            "cassette": each.cassette,
            "sample": each.sample,
            "mode": str(each.settings.mode),
            **{
                name: value
                for name, value in each.calls.totals.to_json().items()
                if name not in ("parties", "miss_texts")
            },
        }
        for each in engine.sessions.open_sessions.values()
    ]
    waiting = [
        {"at": each.progress.started_at, "party": each.party, "operation": each.operation, "model": each.identity.model}
        for each in opened
    ]
    return {
        "now": engine.now(),
        "mode": str(engine.config.mode),
        "store": engine.config.shown_store_path,
        "count": watch.count,
        "rows": [
            (n, o._replace(note=engine.redactor.text(o.note)) if o.note else o) for n, o in watch.since(after, MOST)
        ],
        "sessions": sessions,
        "open": waiting,
    }


def state_to_json(seen: Mapping[str, Json]) -> dict[str, Json]:
    return {**seen, "rows": [_call_to_row(number, each) for number, each in seen["rows"]]}


def find_miss(misses: Sequence[JournaledMiss], at: float, session: str, key: str) -> dict[str, Json] | None:
    """Return a miss for the page: text, places, commands; None if dropped. Repeated ones are kept once."""
    own = [each for each in misses if each.data.get("session") == session]
    found = next((each for each in own if each.at == at), None)
    found = found or next((each for each in reversed(own) if key and each.data.get("key") == key), None)
    if found is None:
        return None
    near = found.data.get("nearest") or {}
    return {
        "at": found.at,
        "text": found.text,
        "reason": found.data.get("reason"),
        "cassette": found.data.get("cassette"),
        "nearest": near.get("id"),
        "places": list(found.places) or near.get("differences") or [],
        "steps": list(found.steps),
        "suggestion": near.get("suggestion"),
    }


def classify_call(call: Call) -> str:
    """Return the outcome in one word: hit, bound, carried, miss, recorded, passed, fault, refused."""
    if call.fault:
        return "fault"
    if call.miss and call.decision is Decision.REFUSE:
        return "miss"
    if call.carried and call.decision is Decision.REPLAY:
        return "carried"
    return "bound" if call.bound and call.decision is Decision.REPLAY else _WORDS[call.decision]


def _call_to_row(number: int, o: Call) -> dict[str, Json]:
    return {
        "n": number, "at": o.at, "what": classify_call(o), "session": o.session, "party": o.party,
        "provider": o.provider, "model": o.model, "operation": o.operation or f"{o.method} {o.target}",
        "channel": o.channel.value, "status": o.status, "ms": o.ms, "first": o.first_ms, "in": o.input, "out": o.output,
        "cost": None if o.cost is None else float(o.cost), "id": o.interaction, "nearest": o.nearest, "key": o.key,
        "bound": list(o.bound), "carried": list(o.carried), "fault": o.fault or "", "lost": o.lost, "note": o.note,
        "asked": o.asked, "answered": o.answered,
    }  # fmt: skip
