"""The tool server of `llmproxy demo --tools`: MCP over stdio, one tool, and a file that shows how often it ran."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
TOOL = {
    "name": "create_ticket",
    "description": "Create a ticket.",
    "inputSchema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
}


def answer_demo_mcp_request(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["method"] == "initialize":
        about = {"name": "tickets", "version": "1"}
        version = asked["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if asked["method"] == "tools/list":
        return {"tools": [TOOL]}
    title = asked["params"]["arguments"]["title"]
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{title}\n")
    number = len(FILE.read_text(encoding="utf-8").splitlines())
    return {"content": [{"type": "text", "text": f"ticket #{number} created: {title}"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        said = {"jsonrpc": "2.0", "id": message["id"], "result": answer_demo_mcp_request(message)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
