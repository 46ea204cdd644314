"""Names and ids of a run. What a recording is found by must be the same tomorrow; the rest may be random.

cassette   `cassette=`, else slug of set and name, with a digest where slugging lost something
thread id  with a session: digest of (cassette, sample, scenario), so the same in record and replay; else random
run id     random;  batch id: SCENARIO_BATCH_RUN_ID, else one for the process
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets

DEFAULT_SET = "default"
_BATCH = "SCENARIO_BATCH_RUN_ID"
_LONGEST = 80
"""Characters of a slug: file systems take 255 bytes, and a sample and a suffix follow."""


def cassette_of(name: str, set_id: str | None = None) -> str:
    """Return the name of the cassette of a scenario."""
    parts = [name] if not set_id or set_id == DEFAULT_SET else [set_id, name]
    # Two hyphens are in no slug, so a set and a name never look like another name.
    slug = "--".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)))[:_LONGEST]
    if slug == "--".join(parts):
        return slug
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{slug or 'scenario'}-{digest}"


def thread_id(cassette: str = "", sample: int = 1, name: str = "") -> str:
    """Return the id of a conversation; random without a cassette."""
    if not cassette:
        return f"thread_{secrets.token_hex(14)}"
    return "thread_" + hashlib.sha256(f"{cassette}\0{sample}\0{name}".encode()).hexdigest()[:28]


def traceparent(thread: str, turn: int, place: int) -> str:
    """Return the W3C trace context of a call: one trace for a turn, one span for each agent; the same where the thread id is."""
    trace = hashlib.sha256(f"{thread}\0{turn}".encode()).hexdigest()[:32]
    return f"00-{trace}-{hashlib.sha256(f'{trace}{place}'.encode()).hexdigest()[:16]}-01"


def run_id() -> str:
    """Return a new id of a run."""
    return f"scenariorun_{secrets.token_hex(16)}"


def batch_run_id() -> str:
    """Return the id of the batch; made at the first call, and handed to child processes by the environment."""
    return os.environ.setdefault(_BATCH, f"scenariobatchrun_{secrets.token_hex(16)}")
