"""Say a `Reply` in the dialect that the request speaks, streamed or not.

Shapes as the providers document them and their SDKs parse them; ids, times and token counts are made from the number of the
request, so that two answers of one run always differ, as a real provider's do.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

from . import say_anthropic, say_bedrock, say_gemini, say_openai
from .answer import Answer, dumps, json_answer, stream_answer
from .script import Reply
from .seen import Seen

CREATED = 1_790_000_000
"""Seconds since 1970 from which the provider's clock starts; it goes on by one with each request."""


def render(reply: Reply, seen: Seen, number: int) -> Answer:
    """Answer the `number`-th request with `reply`; a path that no dialect knows gets the text as text/plain."""
    say = RENDERERS.get(seen.dialect)
    if say is None:
        return plain(reply.say)
    return say(reply, seen, number).with_headers(
        ("x-request-id", f"req_{number:06d}"), ("request-id", f"req_{number:06d}")
    )


def plain(text: str) -> Answer:
    return stream_answer([text.encode()], "text/plain; charset=utf-8").framed("length")


def usage_of(reply: Reply, seen: Seen) -> tuple[int, int]:
    """Count tokens, sort of: (input, output), a quarter of the bytes."""
    said = reply.say + "".join(dumps(call.arguments) for call in reply.call)
    return max(1, len(seen.body) // 4), max(1, len(said.encode()) // 4)


def _chat(reply: Reply, seen: Seen, number: int) -> Answer:
    head = {"id": f"chatcmpl-{number:06d}", "created": CREATED + number, "model": seen.model}
    if not seen.stream:
        return json_answer(say_openai.chat(reply, head, usage_of(reply, seen)))
    with_usage = bool((seen.fields.get("stream_options") or {}).get("include_usage"))
    return stream_answer(say_openai.chat_stream(reply, head, usage_of(reply, seen) if with_usage else None))


def _responses(reply: Reply, seen: Seen, number: int) -> Answer:
    final = say_openai.response(reply, seen.fields, number, CREATED + number, usage_of(reply, seen))
    return stream_answer(say_openai.response_stream(final)) if seen.stream else json_answer(final)


def _embeddings(reply: Reply, seen: Seen, number: int) -> Answer:
    given = seen.fields.get("input", "")
    data = []
    for index, text in enumerate([given] if isinstance(given, str) else given):
        vector = [((crc32(f"{text}/{i}".encode()) % 2000) - 1000) / 1000 for i in range(8)]
        packed = base64.b64encode(struct.pack("<8f", *vector)).decode()
        is_base64 = seen.fields.get("encoding_format") == "base64"
        data.append({"object": "embedding", "index": index, "embedding": packed if is_base64 else vector})
    tokens = usage_of(reply, seen)[0]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_answer({"object": "list", "data": data, "model": seen.model, "usage": usage})


def _audio(reply: Reply, seen: Seen, number: int) -> Answer:
    return json_answer({"text": reply.say, "usage": {"type": "duration", "seconds": number}})


def _files(reply: Reply, seen: Seen, number: int) -> Answer:
    known = seen.path.rpartition("/")[2]
    ident = known if known.startswith("file-") else f"file-{number:06d}"
    return json_answer(
        {"id": ident, "object": "file", "bytes": len(seen.body), "created_at": CREATED + number}
        | {
            "filename": seen.fields.get("file", "f"),
            "purpose": seen.fields.get("purpose", "user_data"),
            "status": "processed",
        }
    )


def _models(reply: Reply, seen: Seen, number: int) -> Answer:
    model = {"id": "scripted-1", "object": "model", "type": "model", "display_name": "Scripted", "created": CREATED}
    model |= {"owned_by": "tests", "created_at": "2026-01-01T00:00:00Z"}
    return json_answer(
        {"object": "list", "data": [model], "has_more": False, "first_id": "scripted-1", "last_id": "scripted-1"}
    )


def _messages(reply: Reply, seen: Seen, number: int) -> Answer:
    message = say_anthropic.message(reply, seen.model, number, usage_of(reply, seen))
    return stream_answer(say_anthropic.message_stream(message)) if seen.stream else json_answer(message)


def _count(reply: Reply, seen: Seen, number: int) -> Answer:
    return json_answer({"input_tokens": usage_of(reply, seen)[0]})


def _gemini(reply: Reply, seen: Seen, number: int) -> Answer:
    if not seen.stream:
        return json_answer(say_gemini.whole(reply, seen.model, number, usage_of(reply, seen)))
    chunks = say_gemini.chunks(reply, seen.model, number, usage_of(reply, seen))
    if "alt=sse" in seen.target:
        return stream_answer((f"data: {dumps(chunk)}\r\n\r\n".encode() for chunk in chunks), "text/event-stream")
    # Without alt=sse Gemini streams one JSON array.
    parts = [("[" if i == 0 else ",\r\n") + dumps(chunk) for i, chunk in enumerate(chunks)]
    return stream_answer([*(part.encode() for part in parts), b"]"], "application/json; charset=UTF-8")


def _ollama(reply: Reply, seen: Seen, number: int) -> Answer:
    head = {"model": seen.model, "created_at": f"2026-01-01T00:00:{number % 60:02d}.123456Z"}
    calls = [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in reply.call]
    tokens = usage_of(reply, seen)
    end = {
        "done": True, "done_reason": "stop", "total_duration": 1000 + number, "load_duration": 10,
        "prompt_eval_count": tokens[0],
    }  # fmt: skip
    end |= {"prompt_eval_duration": 20, "eval_count": tokens[1], "eval_duration": 30}
    if not seen.stream:
        return json_answer(
            head
            | {"message": {"role": "assistant", "content": reply.say} | ({"tool_calls": calls} if calls else {})}
            | end
        )
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": word} for word in words(reply.say)]
    messages += [{"role": "assistant", "content": "", "tool_calls": calls}] if calls else []
    lines = [head | {"message": message, "done": False} for message in messages]
    lines.append(head | {"message": {"role": "assistant", "content": ""}} | end)
    return stream_answer(((dumps(line) + "\n").encode() for line in lines), "application/x-ndjson")


def _converse(reply: Reply, seen: Seen, number: int) -> Answer:
    whole = say_bedrock.converse(reply, number, usage_of(reply, seen))
    return _aws(
        stream_answer(say_bedrock.converse_stream(whole), say_bedrock.STREAM_TYPE)
        if seen.stream
        else json_answer(whole),
        number,
    )


def _invoke(reply: Reply, seen: Seen, number: int) -> Answer:
    tokens = usage_of(reply, seen)
    whole = say_anthropic.message(reply, seen.model, number, tokens)
    if seen.stream:
        return _aws(stream_answer(say_bedrock.invoke_stream(whole), say_bedrock.STREAM_TYPE), number)
    counts = zip(("input", "output"), tokens, strict=True)
    fields = ((f"x-amzn-bedrock-{kind}-token-count", str(count)) for kind, count in counts)
    return _aws(json_answer(whole), number).with_headers(*fields)


def _aws(answer: Answer, number: int) -> Answer:
    return answer.with_headers(("x-amzn-requestid", f"{number:08x}-0000-4000-8000-000000000000"))


words = say_openai.words

RENDERERS: dict[str, Callable[[Reply, Seen, int], Answer]] = {
    "openai.chat": _chat, "openai.responses": _responses, "openai.embeddings": _embeddings, "openai.audio": _audio,
    "openai.files": _files, "anthropic.messages": _messages, "anthropic.count": _count, "gemini.generate": _gemini,
    "ollama.chat": _ollama, "bedrock.converse": _converse, "bedrock.invoke": _invoke, "models": _models,
}  # fmt: skip
