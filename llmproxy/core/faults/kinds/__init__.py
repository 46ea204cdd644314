"""The kinds of faults, a file for each sort and a row for each kind; `KINDS` has them all.

Another sort is one more tuple of rows, and its name in `_SORTS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmproxy.core.faults.kinds import bad_model_answers, connections, mcp, statuses_and_bodies
from llmproxy.core.faults.rules import FaultKind

_SORTS = (
    statuses_and_bodies.STATUSES,
    connections.CONNECTIONS,
    connections.HANDSHAKES,
    connections.LATE,
    connections.CUTS,
    statuses_and_bodies.BODIES,
    bad_model_answers.ROWS,
    mcp.ROWS,
)

KINDS: Mapping[str, FaultKind] = {kind.name: kind for sort in _SORTS for kind in sort}
"""In the order in which they are shown."""
