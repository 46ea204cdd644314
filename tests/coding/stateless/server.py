"""A server of tools of the stateless era by the official SDK: `server.py http PORT LOG`, `server.py stdio LOG`; each call adds a line to LOG."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import ToolAnnotations
from pydantic import BaseModel

LOG = Path(sys.argv[-1])
server = MCPServer("tools")
counted = 0


class Consent(BaseModel):
    """What a client is asked."""

    yes: bool


def note(text: str) -> None:
    """Write down that a tool really ran."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(text + "\n")


@server.tool()
def count() -> int:
    """Count calls: a tool with a state."""
    global counted  # noqa: PLW0603 - a server's state
    counted += 1
    note("count")
    return counted


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    """Tell the state, and change nothing."""
    note("look")
    return f"counted {counted}"


@server.tool()
async def steps(number: int, context: Context) -> str:
    """Report progress."""
    note(f"steps {number}")
    for n in range(number):
        await context.report_progress(n + 1, number, f"step {n + 1}")
    return f"{number} steps"


async def ask() -> Elicit[Consent]:
    """Ask first: the call's result is a question, and the client calls again with its answer."""
    return Elicit("Delete everything?", Consent)


@server.tool()
async def delete_all(consent: Annotated[ElicitationResult[Consent], Resolve(ask)]) -> str:
    """Delete, if that is wanted."""
    note("delete_all")
    if isinstance(consent, AcceptedElicitation) and consent.data.yes:
        return "everything is deleted"
    return f"nothing is deleted ({consent.action})"


if sys.argv[1] == "http":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()
