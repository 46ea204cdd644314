"""All kinds, by name."""

from __future__ import annotations

from collections.abc import Mapping

from llmproxy.core.faults.kinds import bodies, connections, contents, cutting, handshakes, mcp, statuses, timing
from llmproxy.core.faults.values import FaultKind

_SORTS = (statuses, connections, handshakes, timing, cutting, bodies, contents, mcp)

KINDS: Mapping[str, FaultKind] = {kind.name: kind for sort in _SORTS for kind in sort.ROWS}
"""In the order in which they are shown."""


def kinds_table() -> str:
    """Return all kinds as a Markdown table, for docs/faults.md."""
    lines = ["| kind | what the client sees | takes (default) |", "|---|---|---|"]
    for kind in KINDS.values():
        takes = ", ".join(f"`{name}` ({value:g})" for name, value in kind.defaults.items())
        lines.append(f"| `{kind.name}` | {kind.about} | {takes} |")
    return "\n".join(lines) + "\n"
