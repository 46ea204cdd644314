"""The bytes that every server gets and gives: a chat request of 5 KB, an answer of 1.5 KB, a stream of chunks.

Requests are told apart by one number of six digits in the last user message; everything else is the same, as it is when an
agent resends its system prompt and tools. All lengths are fixed, so that the load generator may count bytes.
"""

from __future__ import annotations

import json

PATH = "/v1/chat/completions"
MARK = b"question "
"""Stands before the number in a request."""
REQUEST_BYTES = 5_000
ANSWER_BYTES = 1_500
NUMBER = "%06d"

_WORDS = [
    "the",
    "agent",
    "reads",
    "a",
    "file",
    "looks",
    "at",
    "the",
    "failing",
    "test",
    "finds",
    "what",
    "changed",
    "and",
    "writes",
    "the",
    "smallest",
    "patch",
    "that",
    "makes",
    "it",
    "pass",
    "then",
    "runs",
    "everything",
    "again",
    "before",
    "it",
    "says",
    "that",
    "the",
    "work",
    "is",
    "done",
    "because",
    "a",
    "green",
    "line",
    "is",
    "not",
    "the",
    "same",
    "as",
    "a",
    "right",
    "one",
]

HEADERS = (  # what openai-python sends, in its order
    "host: 127.0.0.1:8080\r\n"
    "accept-encoding: gzip, deflate\r\n"
    "connection: keep-alive\r\n"
    "accept: application/json\r\n"
    "content-type: application/json\r\n"
    "user-agent: OpenAI/Python 2.54.0\r\n"
    "x-stainless-lang: python\r\n"
    "x-stainless-package-version: 2.54.0\r\n"
    "x-stainless-os: Linux\r\n"
    "x-stainless-arch: x64\r\n"
    "x-stainless-runtime: CPython\r\n"
    "x-stainless-runtime-version: 3.13.0\r\n"
    "authorization: Bearer sk-bench-0123456789abcdefghijklmnop\r\n"
    "x-stainless-async: false\r\n"
    "x-stainless-retry-count: 0\r\n"
    "x-stainless-read-timeout: 600\r\n"
)


def prose(length: int, start: int = 0) -> str:
    """Return `length` characters of words; another `start` gives another text."""
    out: list[str] = []
    size, at = 0, start * 7
    while size < length:
        word = _WORDS[(at * 31 + at // 13) % len(_WORDS)]
        out.append(word)
        size += len(word) + 1
        at += 1
    return " ".join(out)[:length]


def body(number: int, *, stream: bool = False, size: int = REQUEST_BYTES) -> bytes:
    """Return a chat request of `size` bytes with three earlier turns and one tool."""
    tool = {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file of the project.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": prose(200, 1)},
        {"role": "assistant", "content": prose(300, 2)},
        {"role": "user", "content": prose(150, 3)},
        {"role": "assistant", "content": prose(400, 4)},
        {"role": "user", "content": f"{MARK.decode()}{NUMBER % number}"},
    ]
    value: dict[str, object] = {"model": "gpt-4o-mini", "messages": messages, "temperature": 0, "tools": [tool]}
    if stream:
        value["stream"] = True
    room = size - len(json.dumps(value))
    messages[0]["content"] = prose(max(0, room))
    return json.dumps(value).encode()


def long_body(number: int, *, messages: int = 1_000, size: int = 1 << 20) -> bytes:
    """Return an agent's long context: `messages` messages in `size` bytes, some of them tool calls and their results."""
    each = size // messages - 70
    said: list[dict[str, object]] = []
    for n in range(messages):
        match n % 4:
            case 0:
                said.append({"role": "user", "content": prose(each, n)})
            case 1:
                call = {
                    "id": f"call_{n:06d}",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path": "a.py"}'},
                }
                said.append({"role": "assistant", "content": prose(each - 90, n), "tool_calls": [call]})
            case 2:
                said.append({"role": "tool", "tool_call_id": f"call_{n - 1:06d}", "content": prose(each, n)})
            case _:
                said.append({"role": "assistant", "content": prose(each, n)})
    said.append({"role": "user", "content": f"{MARK.decode()}{NUMBER % number}"})
    return json.dumps({"model": "gpt-4o-mini", "messages": said, "temperature": 0}).encode()


def request(content: bytes, *, path: str = PATH) -> bytes:
    """Return a whole HTTP request with this body."""
    return f"POST {path} HTTP/1.1\r\n{HEADERS}content-length: {len(content)}\r\n\r\n".encode() + content


def answer(number: int, *, size: int = ANSWER_BYTES) -> bytes:
    """Return the body of the answer to request `number`: a chat completion."""
    message: dict[str, object] = {"role": "assistant", "content": "", "refusal": None, "annotations": []}
    value = {
        "id": f"chatcmpl-bench{NUMBER % number}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1_200, "completion_tokens": 250, "total_tokens": 1_450},
    }
    room = size - len(json.dumps(value))
    message["content"] = (f"answer {NUMBER % number} " + prose(max(0, room), number))[: max(0, room)]
    return json.dumps(value).encode()


def answered(number: int) -> bytes:
    """Return what the answer to `number` contains, and no other does."""
    return f"answer {NUMBER % number} ".encode()


def event(number: int, index: int, text: str) -> bytes:
    """Return one SSE event of a streamed answer."""
    value = {
        "id": f"chatcmpl-bench{NUMBER % number}",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [
            {"index": 0, "delta": {"content": text}, "finish_reason": None}
            if index >= 0
            else {"index": 0, "delta": {}, "finish_reason": "stop"}
        ],
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
