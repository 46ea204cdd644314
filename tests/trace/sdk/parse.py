"""Parse recorded answers with a provider's own SDK; runs in an environment that has it, not in ours.

    parse.py < exchanges.jsonl > parsed.jsonl

Each line in: {"dialect", "stream", "type" (content type), "body" (base64)}. The SDK gets these very bytes from a loopback
server. Each line out: {"text", "calls": [[name, arguments]], "input", "output"} as the SDK's objects say it, or
{"error"}. Tokens in our arithmetic: input with the cached ones, output with the reasoning.
"""

# mypy: ignore-errors
# The SDKs are in other environments, and their types are not what is tested here.

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ASK = [{"role": "user", "content": "x"}]
Parsed = dict[str, Any]


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two would wait for an acknowledgement
    current: dict[str, Any]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = base64.b64decode(self.current["body"])
        self.send_response(200)
        self.send_header("content-type", self.current["type"])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def said(text: str | None, calls: list[list[Any]], taken: int | None, made: int | None) -> Parsed:
    return {"text": text or "", "calls": calls, "input": taken, "output": made}


def loads(text: str) -> object:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


@cache
def client_of(kind: str, base: str) -> Any:
    """Return a client of an SDK: one for all exchanges, since each takes as long to make as many answers to parse."""
    if kind == "openai":
        from openai import OpenAI

        return OpenAI(api_key="x", base_url=f"{base}/v1", max_retries=0)
    if kind == "anthropic":
        from anthropic import Anthropic

        return Anthropic(api_key="x", base_url=base, max_retries=0)
    if kind == "genai":
        from google import genai

        return genai.Client(api_key="x", http_options={"base_url": base})
    if kind == "ollama":
        from ollama import Client

        return Client(host=base)
    if kind == "bedrock":
        import boto3

        return boto3.client("bedrock-runtime", endpoint_url=base, region_name="us-east-1",
                            aws_access_key_id="x", aws_secret_access_key="x")  # fmt: skip
    import cohere

    return {"cohere 1": cohere.Client, "cohere 2": cohere.ClientV2}[kind](api_key="x", base_url=base)


def openai_chat(base: str, each: dict[str, Any]) -> Parsed:
    from openai.lib.streaming.chat import ChatCompletionStreamState

    client = client_of("openai", base)
    if each["stream"]:
        state = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(model="m", messages=ASK, stream=True):
            if chunk.choices or chunk.usage:
                state.handle_chunk(chunk)
        done = state.current_completion_snapshot
    else:
        done = client.chat.completions.create(model="m", messages=ASK)
    message = done.choices[0].message if done.choices else None
    if message is None:  # a content filter took it
        return said("", [], done.usage and done.usage.prompt_tokens, done.usage and done.usage.completion_tokens)
    calls = [[call.function.name, loads(call.function.arguments)] for call in message.tool_calls or ()]
    if message.function_call:
        calls.append([message.function_call.name, loads(message.function_call.arguments)])
    usage = done.usage
    text = (message.content or "") + (getattr(message, "refusal", None) or "")
    return said(text, calls, usage and usage.prompt_tokens, usage and usage.completion_tokens)


def openai_completions(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("openai", base)
    answer = client.completions.create(model="m", prompt="x", stream=each["stream"])
    parts = list(answer) if each["stream"] else [answer]
    text = "".join(part.choices[0].text or "" for part in parts if part.choices and part.choices[0].index == 0)
    usage = next((part.usage for part in reversed(parts) if part.usage), None)
    return said(text, [], usage and usage.prompt_tokens, usage and usage.completion_tokens)


def openai_responses(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("openai", base)
    answer = client.responses.create(model="m", input="x", stream=each["stream"])
    if each["stream"]:
        ends = ("response.completed", "response.incomplete", "response.failed")
        events = list(answer)  # to its end: the connection is used again
        answer = next(event.response for event in events if event.type in ends)
    calls = [[item.name, loads(item.arguments)] for item in answer.output if item.type in ("function_call", "mcp_call")]
    usage = answer.usage
    return said(answer.output_text, calls, usage and usage.input_tokens, usage and usage.output_tokens)


def anthropic_messages(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("anthropic", base)
    if each["stream"]:
        with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            done = stream.get_final_message()
    else:
        done = client.messages.create(model="m", max_tokens=9, messages=ASK)
    text = "".join(block.text for block in done.content if block.type == "text")
    calls = [[block.name, block.input] for block in done.content if block.type.endswith("tool_use")]
    usage = done.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return said(text, calls, usage.input_tokens + cached, usage.output_tokens)


def gemini(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("genai", base)
    if each["stream"]:
        parts = list(client.models.generate_content_stream(model="m", contents="x"))
    else:
        parts = [client.models.generate_content(model="m", contents="x")]
    blocks = [block for part in parts for block in (part.candidates[0].content.parts or ())]
    text = "".join(block.text for block in blocks if block.text and not block.thought)
    calls = [[block.function_call.name, block.function_call.args or {}] for block in blocks if block.function_call]
    usage = parts[-1].usage_metadata
    made = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return said(text, calls, usage.prompt_token_count, made)


def converse(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("bedrock", base)
    ask = {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "x"}]}]}
    if not each["stream"]:
        done = client.converse(**ask)
        blocks, usage = done["output"]["message"]["content"], done["usage"]
        calls = [[block["toolUse"]["name"], block["toolUse"]["input"]] for block in blocks if "toolUse" in block]
        text = "".join(block["text"] for block in blocks if "text" in block)
        return said(text, calls, usage["inputTokens"], usage["outputTokens"])
    text, pieces, usage = "", {}, {}
    for event in client.converse_stream(**ask)["stream"]:
        if "contentBlockStart" in event and "toolUse" in event["contentBlockStart"].get("start", {}):
            start = event["contentBlockStart"]
            pieces[start["contentBlockIndex"]] = [start["start"]["toolUse"]["name"], ""]
        delta = event.get("contentBlockDelta", {}).get("delta", {})
        text += delta.get("text", "")
        if "toolUse" in delta:
            pieces[event["contentBlockDelta"]["contentBlockIndex"]][1] += delta["toolUse"]["input"]
        usage = event.get("metadata", {}).get("usage", usage)
    calls = [[name, loads(arguments)] for name, arguments in pieces.values()]
    return said(text, calls, usage.get("inputTokens"), usage.get("outputTokens"))


def ollama_chat(base: str, each: dict[str, Any]) -> Parsed:
    answer = client_of("ollama", base).chat(model="m", messages=ASK, stream=each["stream"])
    parts = list(answer) if each["stream"] else [answer]
    calls = [
        [call.function.name, dict(call.function.arguments)] for part in parts for call in part.message.tool_calls or ()
    ]
    text = "".join(part.message.content or "" for part in parts)
    return said(text, calls, parts[-1].prompt_eval_count, parts[-1].eval_count)


def ollama_generate(base: str, each: dict[str, Any]) -> Parsed:
    answer = client_of("ollama", base).generate(model="m", prompt="x", stream=each["stream"])
    parts = list(answer) if each["stream"] else [answer]
    text = "".join(part.response or "" for part in parts)
    return said(text, [], parts[-1].prompt_eval_count, parts[-1].eval_count)


def cohere_v2(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("cohere 2", base)
    if not each["stream"]:
        done = client.chat(model="m", messages=ASK)
        text = "".join(block.text for block in done.message.content or () if block.type == "text")
        calls = [[call.function.name, loads(call.function.arguments)] for call in done.message.tool_calls or ()]
        usage = done.usage
    else:
        text, pieces, usage = "", {}, None
        for event in client.chat_stream(model="m", messages=ASK):
            if event.type == "content-delta":
                text += event.delta.message.content.text or ""
            elif event.type == "tool-call-start":
                function = event.delta.message.tool_calls.function
                pieces[event.index] = [function.name, function.arguments or ""]
            elif event.type == "tool-call-delta":
                pieces[event.index][1] += event.delta.message.tool_calls.function.arguments
            elif event.type == "message-end":
                usage = event.delta.usage
        calls = [[name, loads(arguments)] for name, arguments in pieces.values()]
    tokens = usage and (usage.tokens or usage.billed_units)
    return said(text, calls, tokens and tokens.input_tokens, tokens and tokens.output_tokens)


def cohere_v1(base: str, each: dict[str, Any]) -> Parsed:
    client = client_of("cohere 1", base)
    if each["stream"]:
        done = None
        for event in client.chat_stream(message="x"):
            if event.event_type == "stream-end":
                done = event.response
    else:
        done = client.chat(message="x")
    calls = [[call.name, dict(call.parameters)] for call in done.tool_calls or ()]
    tokens = done.meta and (done.meta.tokens or done.meta.billed_units)
    return said(done.text, calls, tokens and tokens.input_tokens, tokens and tokens.output_tokens)


DIALECTS: dict[str, Callable[[str, dict[str, Any]], Parsed]] = {
    "chat.completions": openai_chat, "completions": openai_completions, "responses": openai_responses,
    "messages": anthropic_messages, "generateContent": gemini, "converse": converse, "api.chat": ollama_chat,
    "api.generate": ollama_generate, "v2.chat": cohere_v2, "v1.chat": cohere_v1,
}  # fmt: skip


def main() -> None:
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    for line in sys.stdin:
        Answers.current = each = json.loads(line)
        try:
            found = DIALECTS[each["dialect"]](base, each)
        except Exception as error:  # noqa: BLE001 - reported to the test, which says what may fail
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()
