"""An agent that speaks JSON lines, and the ways in which such an agent can go wrong (the first argument)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from tool_loop import respond  # type: ignore[import-not-found]

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
HISTORIES: dict[str, list[dict[str, Any]]] = {}


def answer(frame: dict[str, Any]) -> dict[str, Any]:
    history = HISTORIES.setdefault(frame["conversation"], [])
    history.append({"role": "user", "content": frame["message"]})
    return {"id": frame["id"], "text": respond(history)}


def go_wrong(frame: dict[str, Any]) -> bool:
    """Do what the fault says; tell whether that was all."""
    if FAULT == "hang":
        subprocess.Popen(["sleep", "60"])  # a child that must not be left behind
        print("sleeping", os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    elif FAULT == "crash":
        raise RuntimeError("the database is gone")
    elif FAULT == "second-crash" and HISTORIES:
        os.kill(os.getpid(), 9)
    elif FAULT == "second-crash":
        HISTORIES["x"] = []
        print(json.dumps({"text": "first"}), flush=True)
        return True
    elif FAULT in OUTPUTS:
        print(OUTPUTS[FAULT], flush=True)
        return True
    elif FAULT == "echo":
        print(json.dumps({"text": json.dumps(frame)}), flush=True)
        return True
    elif FAULT == "env":
        print(json.dumps({"text": json.dumps(dict(os.environ))}), flush=True)
        return True
    return False


OUTPUTS = {
    "garbage": "INFO starting up",
    "number": "42",
    "empty": '{"text": ""}',
    "nothing": "{}",
    "other-id": '{"id": 99, "text": "late"}',
    "error": '{"error": "no such tool"}',
    "bytes": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    "twice": '{"text": "one"}\n{"text": "two"}',
    "messages": '{"messages": [{"role": "assistant", "content": "I looked."}]}',
}

if FAULT == "close":
    os.close(1)
    time.sleep(60)
if FAULT == "127":
    sys.exit(127)
for line in sys.stdin:
    frame = json.loads(line)
    if not go_wrong(frame):
        print(json.dumps(answer(frame)), flush=True)
