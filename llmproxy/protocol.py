"""Names that more than one part, or more than one process, must spell alike: modes, decisions, headers, paths."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What a session does with a hit and with a miss (see `core.engine.decide`)."""

    REPLAY = "replay"
    AUTO = "auto"
    RECORD = "record"
    ONCE = "once"
    PASSTHROUGH = "passthrough"


VCR_MODES = {"none": Mode.REPLAY, "new_episodes": Mode.AUTO, "all": Mode.RECORD, "once": Mode.ONCE}
"""VCR's names, accepted as aliases."""


class Exhausted(StrEnum):
    """What answers the request after a key's last recording."""

    LAST = "last"
    CYCLE = "cycle"
    MISS = "miss"


class Scope(StrEnum):
    """What may be bound between a recorded run and this one (``--bind``)."""

    ALL = "all"
    PATHS = "paths"
    """cwd, home and tmp; no slots."""
    NONE = "none"
    """Only equal requests are hits, and every answer is the recorded one."""


class Decision(StrEnum):
    """What becomes of one request."""

    REPLAY = "REPLAY"
    RECORD = "RECORD"
    PASS = "PASS"  # noqa: S105 - a name, no password
    REFUSE = "REFUSE"


AGENT = "agent"
"""The party of every call that does not say otherwise."""

DEFAULT_SESSION = "default"

# Request headers of ours; stripped before anything goes upstream, never part of a key.
SESSION_HEADER = "x-llmproxy-session"
PARTY_HEADER = "x-llmproxy-party"
TOKEN_HEADER = "x-llmproxy-token"  # noqa: S105 - a name, no password
OUR_HEADERS_PREFIX = "x-llmproxy-"

# Response headers of ours.
CACHE_HEADER = "x-llmproxy-cache"
"""``hit``, ``miss``, ``recorded`` or ``passed``."""
BOUND_HEADER = "x-llmproxy-bound"
"""Of a bound hit: the names of what was bound."""
KEY_HEADER = "x-llmproxy-key"
RECORDED_RETRY_AFTER_HEADER = "x-llmproxy-recorded-retry-after"

SESSION_PREFIX = "/s/"
CONTROL_PREFIX = "/_llmproxy/"
HEALTH_PATH = "/_llmproxy/health"

STARTED_BY_VARIABLE = "LLMPROXY_STARTED_BY"
PYTEST = "pytest"
"""What the plugin says there: its advice has a flag of its own for the mode."""
"""What was typed where a command started the proxy, such as ``llmproxy run``: what a miss advises to type begins so."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
DEFAULT_STORE = "llmproxy.db"

TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses that may be different a moment later; with every 5xx. Recorded and replayed in turn, never a hit in `auto`."""
AUTHENTICATION = frozenset({401, 403})
"""A bad key stays a bad key: recorded and replayed in turn, never a hit in `auto`."""


def is_good(status: int) -> bool:
    """Tell whether an answer of this status may stand for the provider's answer in `auto`, or be repeated as the last."""
    return status < 500 and status not in TRANSIENT and status not in AUTHENTICATION
