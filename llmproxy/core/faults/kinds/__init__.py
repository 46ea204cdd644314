"""All kinds of faults in `KINDS`: one module for each category, one row for each kind.

To add a category, write a tuple of rows and add its name to `_SORTS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmproxy.core.faults.kinds import bad_model_answers, connections, mcp, statuses_and_bodies
from llmproxy.core.faults.rules import FaultKind

_SORTS = (statuses_and_bodies.STATUSES, connections.ROWS, statuses_and_bodies.BODIES, bad_model_answers.ROWS, mcp.ROWS)

KINDS: Mapping[str, FaultKind] = {kind.name: kind for sort in _SORTS for kind in sort}
"""Kinds by name, in the order of display."""
