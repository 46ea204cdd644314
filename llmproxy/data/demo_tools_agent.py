"""The agent of `llmproxy demo --tools`: it asks a model, calls the tool that the model wants, and tells what came of
it.

It knows nothing of llmproxy, and needs nothing but Python. `python demo_tools_agent.py tools.json`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

ASK = "The printer on floor 3 is broken. Please create a ticket."


class McpClient:
    def __init__(self, server: dict[str, Any]) -> None:
        command = [server["command"], *server["args"]]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - ours
        self._last = 0
        about = {"name": "demo", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        asked = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        if self._child.stdin is None or self._child.stdout is None:
            raise OSError("no pipes")
        self._child.stdin.write(json.dumps(asked).encode() + b"\n")
        self._child.stdin.flush()
        result: dict[str, Any] = json.loads(self._child.stdout.readline())["result"]
        return result

    def close(self) -> None:
        self._child.communicate()


def request_model_answer_with_tools(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "gpt-4o-mini", "messages": messages, "tools": tools}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)  # noqa: S310 - its user's
    with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
        message: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
        return message


def main() -> None:
    servers = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["mcpServers"]
    tools = McpClient(servers["tickets"])
    known = [
        {"type": "function", "function": {"name": each["name"], "parameters": each["inputSchema"]}}
        for each in tools.request("tools/list", {})["tools"]
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    sys.stdout.write(f"user       {ASK}\n")
    while True:
        said = request_model_answer_with_tools(messages, known)
        messages.append(said)
        if not said.get("tool_calls"):
            break
        for call in said["tool_calls"]:
            wanted = call["function"]
            result = tools.request("tools/call", {"name": wanted["name"], "arguments": json.loads(wanted["arguments"])})
            text = result["content"][0]["text"]
            sys.stdout.write(f"tool       {wanted['name']}({wanted['arguments']}) -> {text}\n")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    sys.stdout.write(f"assistant  {said['content']}\n")
    tools.close()


if __name__ == "__main__":
    main()
