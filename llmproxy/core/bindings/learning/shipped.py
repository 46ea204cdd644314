"""Slots that ship with us: what coding agents themselves write into every result, derived from real pairs of runs (scripts/lab/derive-slots)."""

from __future__ import annotations

import json
from functools import cache

from llmproxy.core.bindings.values.slots import Slot, read_slot
from llmproxy.files import DATA


@cache
def list_shipped() -> tuple[Slot, ...]:
    """Return the slots of all agents; each is anchored by a tool and a text that only its agent has."""
    rows = json.loads((DATA / "slots.json").read_bytes())
    return tuple(read_slot(slot) for row in rows for slot in row["slots"])
