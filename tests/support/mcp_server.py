"""A server of tools by the official SDK: `python mcp_server.py http PORT LOG`, `python mcp_server.py stdio LOG`; each call adds a line to LOG."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

LOG = Path(sys.argv[-1])
server = FastMCP("tools", port=int(sys.argv[2]) if sys.argv[1] == "http" else 0)
counted = 0


class Consent(BaseModel):
    """What a client is asked."""

    yes: bool


def note(text: str) -> None:
    """Write down that a tool really ran."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(text + "\n")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    note(f"echo {text}")
    return f"echo: {text}"


@server.tool()
def count() -> int:
    """Count calls: a tool with a state."""
    global counted  # noqa: PLW0603 - a server's state
    counted += 1
    note("count")
    return counted


@server.tool()
def where() -> str:
    """Name the folder that the server runs in."""
    note("where")
    return f"I am in {Path.cwd()}"


@server.tool()
def environment(name: str) -> str:
    """Name the value of a variable."""
    note(f"environment {name}")
    return os.environ.get(name, "(not set)")


@server.tool()
def fail() -> str:
    """Fail."""
    note("fail")
    raise ValueError("it failed")


@server.tool()
async def steps(number: int, context: Context) -> str:  # type: ignore[type-arg]
    """Report progress."""
    note(f"steps {number}")
    for n in range(number):
        await context.report_progress(n + 1, number, f"step {n + 1}")
    return f"{number} steps"


@server.tool()
async def delete_all(context: Context) -> str:  # type: ignore[type-arg]
    """Ask first."""
    note("delete_all")
    answer = await context.elicit("Delete everything?", Consent)
    if answer.action == "accept" and answer.data.yes:
        return "everything is deleted"
    return f"nothing is deleted ({answer.action})"


@server.tool()
async def poem(about: str, context: Context) -> str:  # type: ignore[type-arg]
    """Let the client's model write."""
    note(f"poem {about}")
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=f"a poem about {about}"))
    answer = await context.session.create_message([asked], max_tokens=100, related_request_id=context.request_id)
    return f"poem: {answer.content.text if isinstance(answer.content, TextContent) else '?'}"


if __name__ == "__main__":
    server.run("streamable-http" if sys.argv[1] == "http" else "stdio")
