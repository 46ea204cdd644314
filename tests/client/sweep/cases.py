"""Calls and runs to try a sweep on."""

from __future__ import annotations

from typing import Any

from llmproxy.client.control.values import Call
from llmproxy.client.sweep import Trial, Went
from llmproxy.core.faults import KINDS


def call(seq: int, key: str, *, decision: str = "REPLAY", **more: Any) -> Call:  # noqa: ANN401 - as Call takes them
    """Return a call of the agent; answered from its recording unless something else is said."""
    given: dict[str, Any] = {
        "seq": seq,
        "at": 0.0,
        "ms": 1.0,
        "first_ms": None,
        "party": "agent",
        "decision": decision,
        "status": 200,
        "miss": False,
        "note": "",
        "key": key,
        "occurrence": 1 if decision == "REPLAY" else None,
        "provider": "openai",
        "operation": "chat.completions",
        "model": "gpt-4o",
        "interaction": seq,
    }
    return Call(**given | more)


def struck(seq: int, key: str) -> Call:
    """Return a call that met a fault."""
    return call(seq, key, decision="FAULT", fault="http-500", status=500)


def miss(seq: int, key: str = "new") -> Call:
    """Return a call that was never recorded."""
    return call(seq, key, decision="REFUSE", miss=True, status=404)


def trial(kind: str = "http-500", number: int = 2, key: str = "b") -> Trial:
    """Return a trial at the second call."""
    return Trial(KINDS[kind], number, key, 1, {"kind": kind})


BASELINE = Went(calls=[call(1, "a"), call(2, "b"), call(3, "c")], seconds=1.0, said="one\ntook 3 ms\ntwo\n")
