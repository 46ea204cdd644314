"""``llmproxy demo --tools``: record an agent with an MCP server, then run it again without model and server.

The model is scripted and local, so no key and no network is needed; agent and server are programs of the package that
do not know llmproxy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from llmproxy.errors import MachineError

SECONDS = 120
_PROGRAMS = ("demo_tools_agent.py", "demo_ticket_server.py")
_TITLE = "Printer on floor 3 is broken"


class _DemoModelHandler(BaseHTTPRequestHandler):
    """Implements the part of OpenAI's chat completions that the agent uses."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last, why = asked["messages"][-1], "tool_calls"
        call = {"name": "create_ticket", "arguments": json.dumps({"title": _TITLE})}
        calls = [{"id": "call_1", "type": "function", "function": call}]
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        if last["role"] == "tool":
            said, why = {"role": "assistant", "content": f"Done: {last['content']}."}, "stop"
        used = {"prompt_tokens": 60, "completion_tokens": 20, "total_tokens": 80}
        choice = {"index": 0, "message": said, "finish_reason": why}
        told = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked["model"]}
        body = json.dumps({**told, "choices": [choice], "usage": used}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def _serve_model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _DemoModelHandler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run_tools_demo(folder: Path, print_line: Callable[[str], None]) -> None:
    """Run the demo in an empty folder and explain each step. Raises MachineError."""
    for name in _PROGRAMS:
        with as_file(files("llmproxy") / "data" / name) as path:
            shutil.copyfile(path, folder / name)
    agent, server = _PROGRAMS
    tickets = folder / "tickets.txt"
    config = {"mcpServers": {"tickets": {"command": sys.executable, "args": [server, tickets.name]}}}
    (folder / "tools.json").write_text(json.dumps(config), encoding="utf-8")
    print_line(
        f"An agent with an MCP server, {server}, which writes each ticket into {tickets.name}. It is recorded now, "
        f"with a\nscripted model on this machine:\n"
    )
    with _serve_model() as url:
        _run_and_print_output(
            folder, agent, print_line, "--mode", "record", "--upstream", f"openai={url.removesuffix('/v1')}"
        )
    (folder / server).unlink()
    print_line(
        f"\n{tickets.name} has {_count_created(tickets)} line. Now the model is gone, and {server} is deleted. "
        "The same agent again:\n"
    )
    _run_and_print_output(folder, agent, print_line)
    print_line(
        f"\n{tickets.name} has {_count_created(tickets)} line still: the recorded call was answered, not made again.\n"
        f"The second command replays again:  cd {folder}\n\n"
        "Now with your own agent and its MCP configuration:\n\n"
        "  llmproxy run --mode record --mcp-config .mcp.json -- <your agent> .mcp.json     # once\n"
        "  llmproxy run --mcp-config .mcp.json -- <your agent> .mcp.json                   # no server runs, nobody is "
        "asked\n"
        "  llmproxy run -- claude -p '...'                                                 # Claude Code's and Codex's "
        "are found"
    )


def _count_created(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def _run_and_print_output(folder: Path, agent: str, print_line: Callable[[str], None], *options: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LLMPROXY_", "OPENAI_"))}
    words = ["run", *options, "--mcp-config", "tools.json", "--", "python", agent, "tools.json"]
    print_line(f"  $ llmproxy {' '.join(words)}")
    typed = [sys.executable if word == "python" else word for word in words]
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "llmproxy", *typed],
        cwd=folder,
        env={**env, "OPENAI_API_KEY": "sk-demo"},
        text=True,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise MachineError(f"the demo's agent ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    said = [*done.stdout.splitlines(), *(line for line in done.stderr.splitlines() if line.startswith("llmproxy:"))]
    print_line("\n".join(f"  {line}" for line in said))
