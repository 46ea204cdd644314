"""An agent behind HTTP, in several forms and with the ways in which it can go wrong, one a path; prints its port.

With the option --propagate it sends the header x-run of a request on, as x-llmproxy-session, with each of its LLM calls.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tool_loop import respond  # type: ignore[import-not-found]

HISTORIES: dict[str, list[dict[str, Any]]] = {}
PLAIN = {
    "/html": (200, "text/html", "<!DOCTYPE html><html><head><title>Sign in</title></head></html>"),
    "/500": (500, "application/json", '{"detail": "the database is gone"}'),
    "/502": (502, "text/html", "<html><head><title>Bad Gateway</title></head></html>"),
    "/empty": (200, "application/json", ""),
    "/prose": (200, "application/json", "Hello there"),
    "/silent": (200, "application/json", '{"text": "  "}'),
    "/null": (200, "application/json", "null"),
    "/error": (200, "application/json", '{"error": {"message": "quota"}}'),
    "/plain": (200, "text/plain", "Just text."),
    "/no-completion": (200, "application/json", '{"answer": "hi"}'),
}


class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        if path in PLAIN:
            self.send(*PLAIN[path])
        elif path == "/hang":
            time.sleep(60)
        elif path == "/break":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif path == "/die":
            os.kill(os.getpid(), 9)
        elif path == "/moved":
            self.send_response(302)
            self.send_header("location", "/login")
            self.send_header("content-length", "0")
            self.end_headers()
        elif path == "/echo":
            heard = {"body": json.loads(body or b"null"), "path": self.path, "headers": dict(self.headers)}
            self.json({"text": json.dumps(heard)})
        elif path == "/own":
            self.json({"data": {"id": "c-7", "parts": ["It ", "works."]}, "seen": json.loads(body)})
        else:
            self.think(path, json.loads(body))

    do_GET = do_POST  # noqa: N815

    def think(self, path: str, body: dict[str, Any]) -> None:
        run = self.headers.get("x-run") if "--propagate" in sys.argv else None
        extra = {"x-llmproxy-session": run} if run else {}
        if path == "/ask":
            base_url = (body.get("llm") or {}).get("base_urls", {}).get("openai")
            history = HISTORIES.setdefault(str(body.get("thread")), [])
            history.append({"role": "user", "content": body["question"]})
            self.json({"answer": {"said": respond(history, base_url, extra)}})
            return
        text = respond(list(body["messages"]), None, extra)
        if not body.get("stream"):
            self.json({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})
            return
        events = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in (text[:5], text[5:])]
        said = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self.send(200, "text/event-stream", said + "data: [DONE]\n\n")

    def json(self, value: object) -> None:
        self.send(200, "application/json", json.dumps(value))

    def send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


ThreadingHTTPServer.request_queue_size = 128  # many runs may ask at once
server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
print(server.server_address[1], flush=True)
server.serve_forever()
