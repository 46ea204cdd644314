"""What the bench of scenarios runs in processes of their own: a model by rule, an agent behind HTTP, and who plays the scenarios.

    python scenes.py model PORT                    a model: simulators say `message 1`, `message 2`, ...; judges pass after the third
    python scenes.py agent PORT BASE_URL           POST /chat {"messages"}: one call of the model each, in the session of the request
    python scenes.py play '{"who": "llmproxy", "count": 50, "rounds": 3, "agent": "http://..."}'

Only the standard library, so that each runs in the environment of whoever is measured; `play` imports the one that it measures.
"""

# ruff: noqa: A002, ANN001, ANN002, ANN201, ANN202 (runs in the environments of others; adapters as their users write them)

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TURNS = 3
SAID = re.compile(r"message (\d+)")
GOOD = ("passed", True, "success", "true", "pass", "met")


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 512
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, *_):
        pass

    def read(self):
        return self.rfile.read(int(self.headers.get("content-length") or 0)).decode()

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def filled(schema):
    """Return a value of a JSON schema that means yes wherever it can."""
    if "enum" in schema:
        return next(
            (each for each in GOOD if any(each is one or each == one for one in schema["enum"])), schema["enum"][0]
        )
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: filled(each) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [filled(schema.get("items", {}))]
    return {"boolean": True, "number": 1, "integer": 1}.get(kind, "")


class Model(Handler):
    """Speaks OpenAI's dialect."""

    calls = 0

    def do_GET(self):
        self.answer({"calls": Model.calls})

    def do_POST(self):
        text = self.read()
        body = json.loads(text)
        Model.calls += 1
        # What was said is counted in the words of the conversation, wherever a prompt puts them.
        said = max((int(number) for number in SAID.findall(json.dumps(body["messages"]))), default=0)
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        choice = body.get("tool_choice")
        if isinstance(choice, dict):
            tools = {choice["function"]["name"]: tools[choice["function"]["name"]]}
        call = None
        if "continue_test" in tools or "finish_test" in tools:
            decide = "make_verdict" if "make_verdict" in tools else "finish_test"
            call = decide if said >= TURNS or "continue_test" not in tools else "continue_test"
        message: dict[str, object] = {
            "role": "assistant",
            "content": f"answer {said}" if body["model"] == "agent" else f"message {said + 1}",
        }
        if call:
            given = json.dumps(filled(tools[call].get("parameters", {})))
            asked = {"id": f"call_{said}", "type": "function", "function": {"name": call, "arguments": given}}
            message = {"role": "assistant", "content": None, "tool_calls": [asked]}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}]
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self.answer(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": choices,
                "usage": usage,
            }
        )


class Agent(Handler):
    """Asks the model and says what it said."""

    base = ""
    local = threading.local()

    def do_POST(self):
        body = json.loads(self.read())
        headers = {"content-type": "application/json", "authorization": "Bearer none"}
        if session := self.headers.get("x-llmproxy-session"):
            headers["x-llmproxy-session"] = session
        request = json.dumps({"model": "agent", "messages": body["messages"]})
        place = urlsplit(self.base)
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        self.local.connection.request("POST", f"{place.path}/chat/completions", request, headers)
        found = self.local.connection.getresponse()
        value = json.loads(found.read())
        if found.status != 200:
            self.answer({"error": value}, 500)
        else:
            self.answer({"text": value["choices"][0]["message"]["content"]})


def serve(kind, port):
    Server(("127.0.0.1", int(port)), kind).serve_forever()


def players(who, agent):
    """Return the library that is measured, and what makes the agents of a scenario."""
    model: Any = "openai/gpt-4.1-mini"
    if who.startswith("llmproxy"):
        from llmproxy import scenario
        from llmproxy.scenario.agents import HttpAgent

        def under_test():
            return HttpAgent(agent, body={"messages": "$messages"}, headers={"x-llmproxy-session": "$session"})

        if who != "llmproxy":
            from llmproxy.scenario import ModelConfig

            model = ModelConfig(model=model, extra={"num_retries": 0})
    else:
        import httpx
        import scenario  # type: ignore[no-redef] # langwatch-scenario's

        client = httpx.Client(trust_env=False, timeout=60)

        @scenario.cache()
        def asked(messages):
            return client.post(agent, json={"messages": messages}).json()["text"]

        class Http(scenario.AgentAdapter):
            async def call(self, input):
                plain = [{"role": each["role"], "content": each["content"]} for each in input.messages]
                return asked(plain)

        under_test = Http
    scenario.configure(default_model=model, verbose=False, cache_key="bench")
    return scenario, under_test


async def scenes(scenario, under_test, count):
    """Play scenarios at once; return the seconds, and what they said."""

    def one(number):
        return scenario.run(
            name=f"scene {number}",
            description=f"Customer {number} asks for something.",
            agents=[
                under_test(),
                scenario.UserSimulatorAgent(),
                scenario.JudgeAgent(criteria=["it answers", "it is polite"]),
            ],
            max_turns=5,
        )

    began = time.perf_counter()
    results = await asyncio.gather(*map(one, range(count)))
    took = time.perf_counter() - began
    for result in results:
        said = [message["content"] for message in result.messages]
        if not result.success or len(said) < 2 * TURNS:
            raise SystemExit(f"wrong: {result.success} {result.reasoning} {said}")
    return took


async def play(who, count, rounds, agent):
    """Warm up, then measure; print seconds for each round."""
    scenario, under_test = players(who, agent)
    began = time.perf_counter()
    await scenes(scenario, under_test, 1)
    first = time.perf_counter() - began
    used = []
    took = []
    for _ in range(rounds):
        before = time.process_time()
        took.append(await scenes(scenario, under_test, count))
        used.append(time.process_time() - before)
    print(json.dumps({"first": first, "took": took, "cpu": used}), flush=True)
    os._exit(0)  # whatever threads a library left behind


if __name__ == "__main__":
    if sys.argv[1] == "play":
        asyncio.run(play(**json.loads(sys.argv[2])))
    else:
        Agent.base = sys.argv[3] if sys.argv[1] == "agent" else ""
        serve(Agent if sys.argv[1] == "agent" else Model, sys.argv[2])
