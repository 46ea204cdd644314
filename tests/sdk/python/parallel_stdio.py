"""A server of tools over stdio that does several calls at once; the last question says which of them ended first.

With an argument it is that server.
"""

import asyncio
import json
import os
import sys

SERVER = len(sys.argv) > 1
COMMAND = ("-m", "llmproxy", "mcp", "--name", "slow", "--proxy", "{url}", "--session", "{session}", "--")
GREETING = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "slow", "version": "1"}}


async def serve() -> None:
    """Answer each call after the seconds that it names."""
    reader, tasks = asyncio.StreamReader(), []
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def answer(asked: dict) -> None:
        text = asked["params"].get("arguments", {}).get("text", "")
        await asyncio.sleep(float(text.partition("wait=")[2] or 0))
        said = {"content": [{"type": "text", "text": "done " + text}]} if text else GREETING
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}), flush=True)

    while line := await reader.readline():
        tasks.append(asyncio.ensure_future(answer(json.loads(line))))


async def main() -> str:
    """Call all tools at once, and ask a model what to make of them."""
    url, _, session = os.environ["RESET"].removesuffix("/reset").partition("/_llmproxy/sessions/")
    command = [each.format(url=url, session=session) for each in COMMAND]
    pipe = asyncio.subprocess.PIPE
    shim = await asyncio.create_subprocess_exec(
        os.environ["LLMPROXY_PYTHON"], *command, sys.executable, __file__, "serve", stdin=pipe, stdout=pipe
    )

    def ask(number: int, method: str, params: dict) -> None:
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        shim.stdin.write(json.dumps(asked).encode() + b"\n")

    client = {"name": "c", "version": "1"}
    ask(0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
    await shim.stdout.readline()
    for n, text in enumerate(QUESTIONS, 1):
        ask(n, "tools/call", {"name": "slow", "arguments": {"text": text}})
    heard = [json.loads(await shim.stdout.readline())["result"] for _ in QUESTIONS]
    shim.stdin.close()
    await shim.wait()
    async with AsyncOpenAI(base_url=URL, api_key="x", max_retries=0) as client:
        messages = [{"role": "user", "content": "join " + json.dumps(heard).replace("wait=", "")}]
        made = await client.chat.completions.create(model="m", messages=messages)
    return made.choices[0].message.content


if SERVER:
    asyncio.run(serve())
else:
    from openai import AsyncOpenAI

    from parallel import QUESTIONS, URL, repeat

    with asyncio.Runner() as runner:
        repeat(lambda: runner.run(main()))
