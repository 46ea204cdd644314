"""WebSocket clients as their makers ship them: one conversation each, printed as JSON lines.

    python drive_websocket.py < conversations.jsonl

Each line in is {"client", "url", "ca"}; `ca` signs what is met at https, if anything. Each conversation's end is a line {"end": true}:
importing the SDKs takes far longer than speaking through them, so one process holds many.

client: openai-realtime, openai-realtime-async, openai-responses, genai-live, websockets. What each hears is printed, so that two runs
can be compared; the conversation is the one that tests/sdk/test_websocket_clients.py's upstream expects.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

KEY = "sk-test-0123456789abcdef"


def say(value: object) -> None:
    """Print one line."""
    print(json.dumps(value, sort_keys=True, default=str), flush=True)


def openai_realtime(base: str) -> None:
    """Two turns, one of them with a tool."""
    from openai import OpenAI

    with OpenAI(base_url=f"{base}/v1", api_key=KEY).realtime.connect(model="gpt-realtime") as connection:
        connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be brief."}
        )
        for text in ("Hello", "What is the weather in Oslo?"):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            connection.conversation.item.create(item=item)
            connection.response.create()
            for event in connection:
                say(event.to_dict())
                if event.type == "response.done":
                    break


async def openai_realtime_async(base: str) -> None:
    """The same, asynchronously."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY)
    async with client.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be brief."}
        )
        for text in ("Hello", "What is the weather in Oslo?"):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            async for event in connection:
                say(event.to_dict())
                if event.type == "response.done":
                    break


def openai_responses(base: str) -> None:
    """Responses over WebSocket: two turns, the second names the first."""
    from openai import OpenAI

    with OpenAI(base_url=f"{base}/v1", api_key=KEY).responses.connect() as connection:
        before = {}
        for text in ("Hello", "And now?"):
            connection.response.create(model="gpt-5", input=text, **before)
            for event in connection:
                say(event.to_dict())
                if event.type == "response.completed":
                    before = {"previous_response_id": event.response.id}
                    break


async def genai_live(base: str) -> None:
    """Gemini Live, text in and out; the server's messages are binary."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="AIzaTest0123456789", http_options=types.HttpOptions(base_url=base))
    async with client.aio.live.connect(model="gemini-live", config={"response_modalities": ["TEXT"]}) as session:
        for text in ("Hello", "And now?"):
            await session.send_client_content(turns={"role": "user", "parts": [{"text": text}]}, turn_complete=True)
            async for message in session.receive():
                say(message.model_dump(mode="json", exclude_none=True))


async def plain(base: str) -> None:
    """The websockets library: text, bytes, 10 MB each way, a ping, compressed."""
    from websockets.asyncio.client import connect

    url = base.replace("http", "ws", 1) + "/v1/realtime?model=echo"
    headers = {"authorization": f"Bearer {KEY}"}
    async with connect(url, additional_headers=headers, max_size=None) as socket:
        say({"extensions": [each.name for each in socket.protocol.extensions], "subprotocol": socket.subprotocol})
        for message in ("text", "ünïcödé \u2028 🌍", b"\x00\xff\x01", "0123456789" * 1_000_000, [*"in pieces"]):
            await socket.send(message)
            heard = await socket.recv()
            say({"type": type(heard).__name__, "size": len(heard), "start": repr(heard[:20])})
        await (await socket.ping())
        await socket.close(4001, "enough")
    say({"code": socket.close_code, "reason": socket.close_reason})


CLIENTS = {
    "openai-realtime": openai_realtime, "openai-realtime-async": openai_realtime_async,
    "openai-responses": openai_responses, "genai-live": genai_live, "websockets": plain,
}  # fmt: skip


def main() -> None:
    """Hold the conversations that are asked for, one after the other."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.pop("SSL_CERT_FILE", None)
        if asked["ca"]:
            os.environ["SSL_CERT_FILE"] = asked["ca"]
        running = CLIENTS[asked["client"]](asked["url"])
        if running is not None:
            asyncio.run(running)
        say({"end": True})


if __name__ == "__main__":
    main()
