"""What a session's calls were, told while it is open: `report` adds them up, `walk` gives every recording, `spans` what they said.

Recordings are read from the store when they are asked for. What was not recorded (passed through, refused, lost) has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmproxy.core.cassettes.plain import to_json
from llmproxy.core.control.values import BadControl, Json
from llmproxy.core.engine.engine import Engine
from llmproxy.core.providers.table import channel_of
from llmproxy.core.sessions.outcomes.calls import CallEnded
from llmproxy.core.sessions.session import Session, check_party
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import AGENT

LISTED = 100
"""Rows of a listing unless `limit` says otherwise."""
SpansOf = Callable[[Sequence[Interaction]], list[Json]]
"""Makes spans of the interactions of a session; the floor above knows how."""


def report(engine: Engine, session: Session) -> dict[str, Json]:
    """Return what a session comes to so far. `unused` lists the first; None where recordings are not looked at."""
    unused = engine.questions.unused_of(session) if session.policy.uses_store else None
    rows = [
        {"id": row.id, "operation": row.operation, "model": row.model, "text": row.last_user_text}
        for row in (unused or ())[:LISTED]
    ]
    return {
        "name": session.name,
        "cassette": session.cassette,
        "sample": session.sample,
        "mode": str(session.mode),
        "speed": session.speed,
        "exhausted": str(session.exhausted),
        "opened": session.opened,
        "arrived": session.calls.arrived,
        **session.tally.to_json(),
        "bind": str(session.bound.scope if session.bound is not None else engine.config.bind),
        "circumstances": _list_circumstances(engine, session),
        "overrides": None if session.forking is None else session.forking.to_json(),
        **({} if session.living is None else {"live": session.living.to_json()}),
        **({} if session.faulting is None else {"faults": faults_told(session)}),
        "unused": None if unused is None else rows,
        "unused_total": None if unused is None else len(unused),
    }


def _list_circumstances(engine: Engine, session: Session) -> list[Json]:
    """Return the circumstances of a session; one that is a secret without its value."""
    if session.bound is None:
        return []
    text = engine.redactor.text
    return [{name: text(value) for name, value in each.to_dict().items()} for each in session.bound.declared.values()]


def faults_told(session: Session) -> dict[str, Json]:
    """Return the faults of a session and how often each struck."""
    return (
        {"name": "", "seed": 0, "faults": [], "struck": 0} if session.faulting is None else session.faulting.to_json()
    )


def number(text: str) -> int:
    """Return the number of a call, as a query says it. Raises BadControl."""
    if not text.isdecimal() or not text.isascii() or len(text) > len("1000000000000"):
        raise BadControl(f"llmproxy: after is {text[:20]!r}; it can be the number of a call, or 0.")
    return int(text)


def walk(engine: Engine, session: Session, after: int) -> dict[str, Json]:
    """Return the calls that arrived after the `after`-th and have ended, and how many are still open. Raises CallsGone."""
    calls = session.calls
    return {
        "session": session.name,
        "arrived": calls.arrived,
        "open": calls.open,
        "calls": [_call(engine, session, outcome) for outcome in calls.after(after)],
    }


def _call(engine: Engine, session: Session, call: CallEnded) -> dict[str, Json]:
    interaction = engine.read_call(session, call)
    return {
        **call._asdict(),
        "channel": channel_of(call.provider, call.operation),
        "note": engine.redactor.text(session.calls.text(call)),
        "recording": None if interaction is None else to_json(interaction),
    }


def spans(engine: Engine, session: Session, party: str, make: SpansOf | None) -> dict[str, Json]:
    """Return the spans of a party's calls so far; `party` empty for the agent, ``*`` for everybody."""
    if make is None:
        raise BadControl("llmproxy: this proxy makes no spans.")
    wanted = None if party == "*" else check_party(party or AGENT)
    made: list[Interaction] = []
    for outcome in session.calls.after(0):
        interaction = engine.read_call(session, outcome)
        if interaction is not None and wanted in (None, outcome.party):
            # The same recording may be played twice: two calls, so two sets of spans.
            made.append(replace(interaction, occurrence=outcome.occurrence or interaction.occurrence))
    return {"session": session.name, "spans": make(made)}
