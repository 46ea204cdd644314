"""``llmproxy demo``: record-and-replay in miniature, without a key and without a network.

It replays a recording of the package with the real proxy and, if installed, the real OpenAI client: in recorded
time, at full speed, and with a changed prompt. The prompts are part of the recording's keys: after changing one,
record again (`scripts/make-demo`). ``--tools`` records an agent with an MCP server, then runs it again without
model and server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import typer

from llmproxy.amount_formatting import dollars, format_seconds, sum_if_all_known
from llmproxy.cli.ui import open_browser
from llmproxy.client.proxy_process import ProxyStartCommandLine, begin_proxy_start, find_proxy_command
from llmproxy.core.cassettes.formats import Source, vcr
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.dialects.usage_and_cost import compute_cost
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import open_store
from llmproxy.errors import MachineError, SettingsError
from llmproxy.protocol import UI_PREFIX

_CASSETTE = "demo"
_CHANGED = "What is the capital of Sweden? One word."


def demo_command(
    ui: bool = typer.Option(False, "--ui", help="Then show the recording in the browser, until Ctrl-C."),
    tools: bool = typer.Option(
        False, "--tools", help="Record an agent with an MCP server, then replay without the server."
    ),
) -> None:
    """Replay a recording to a real SDK client: no key, no network. Its files are in a temporary folder."""
    if tools and ui:
        raise SettingsError("--tools and --ui are two demos: one at a time.")
    folder = Path(tempfile.mkdtemp(prefix="llmproxy-demo-"))  # kept: the output names its files
    if tools:
        _run_tools_demo(folder)
        return
    found, asker = find_proxy_command(os.environ), _DemoClient.find_installed()
    store = folder / "demo.db"
    calls, tokens, cost = _import_demo_recording(store)
    typer.echo(
        f"A recording of {calls} calls to OpenAI is bundled with llmproxy. The proxy replays it now to\n"
        f"{asker.name}, in the time it was recorded in. No key, no network."
    )
    with _start_replay_proxies(found, store, "1", "0") as (slow, fast):
        asked_slowly, asked_quickly = asker.made_for(slow), asker.made_for(fast)
        started = time.perf_counter()
        run_demo_conversation(asked_slowly, partial(typer.echo, nl=False))
        paced = time.perf_counter() - started
        started = time.perf_counter()
        run_demo_conversation(asked_quickly, lambda _text: None)
        quick = time.perf_counter() - started
        typer.echo(
            f"\n{calls} calls replayed in {format_seconds(paced)}, as recorded; the same run at full speed "
            f"(the default): {format_seconds(quick)}.\n0 calls went to the provider, where they would cost "
            f"{'an unknown sum' if cost is None else dollars(cost)} and {tokens} tokens, "
            "every time."
        )
        typer.echo(f'\nAnd a request that was never recorded, say after a changed prompt ("{_CHANGED}"):\n')
        try:
            run_demo_conversation(asked_quickly, lambda _text: None, plain=_CHANGED)
        except asker.refused as error:
            typer.echo("\n".join(f"  {line}" for line in asker.describe_error(error).splitlines()))
        if ui:
            url = f"{fast}{UI_PREFIX}"
            told = "What just happened, call by call, and the miss as a difference"
            typer.echo(f"\n{told}:\n\n  {url}\n\nCtrl-C ends it.")
            open_browser(url)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    typer.echo(f"\nThe commands above work where the recording is:  cd {folder}")
    typer.echo(
        "\nNow with your own agent, in any language:\n\n"
        "  llmproxy run --mode record -- <your agent>      # once; keeps everything in ./llmproxy.db\n"
        "  llmproxy run -- <your agent>                    # from now on: the same agent, offline, without a key"
    )


def _import_demo_recording(store: Path) -> tuple[int, int, Decimal | None]:
    """Write the bundled recording to a store; return its calls, its tokens and its cost."""
    source = Source((files("llmproxy") / "data" / "demo.yaml").read_bytes(), "demo.yaml")
    adopted = convert_exchanges(vcr.read(source), _CASSETTE, rules=Rules(), redactor=Redactor())
    found = [each.interaction for each in adopted if each.interaction is not None]
    with open_store(store, writable=True, now=time.time) as database:
        database.begin_writing(_CASSETTE, 1, exclusive=True, holder="llmproxy demo")
        for interaction in found:
            database.add_interaction(interaction, supersede=False)
        database.end_writing(_CASSETTE, 1, "llmproxy demo", clean=True)
    tokens = sum((each.usage.input or 0) + (each.usage.output or 0) for each in found)
    cost = sum_if_all_known(compute_cost(each.provider, each.model, each.usage) for each in found)
    return len(found), tokens, cost


@contextmanager
def _start_replay_proxies(found: ProxyStartCommandLine, store: Path, *speeds: str) -> Iterator[list[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLMPROXY_")}
    options = ["--mode", "replay", "--store", store.name, "--cassette", _CASSETTE]
    with ExitStack() as stack:
        started = []
        for speed in speeds:
            # In the store's folder, so that no pyproject.toml of where we are counts, and texts name it as a user's
            # would be named.
            log = store.with_suffix(f".{speed}.log")
            process = begin_proxy_start(found, [*options, "--speed", speed], env, log=log, cwd=store.parent)
            stack.callback(process.end)
            started.append(process)
            found = replace(found, notice="")
        yield [process.wait_ready() for process in started]


if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam


MODEL = "gpt-4o-mini"
PLAIN = "What is the capital of Norway? One word."
WEATHER = "Do I need an umbrella there today?"
STREAMED = "Why should the tests of an agent replay recorded answers? Two sentences."
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

Say = Callable[[str], None]
Create = Callable[..., Any]


def get_weather(city: str) -> str:
    return json.dumps({"city": city, "sky": "rain", "celsius": 7})


def run_demo_conversation(create: Create, say: Say, *, plain: str = PLAIN) -> None:
    """Run the whole conversation; `create` is `client.chat.completions.create`, `say` gets text as it arrives."""
    history: list[ChatCompletionMessageParam] = [{"role": "user", "content": plain}]
    say(f"\nuser       {plain}\n")
    answer = create(model=MODEL, messages=history).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history += [{"role": "assistant", "content": answer}, {"role": "user", "content": WEATHER}]
    say(f"\nuser       {WEATHER}\n")
    _play_tool_turn(create, history, say)
    history.append({"role": "user", "content": STREAMED})
    say(f"\nuser       {STREAMED}\nassistant  ")
    for chunk in create(model=MODEL, messages=history, stream=True, stream_options={"include_usage": True}):
        if chunk.choices and chunk.choices[0].delta.content:
            say(chunk.choices[0].delta.content)
    say("\n")


def _play_tool_turn(create: Create, history: list[ChatCompletionMessageParam], say: Say) -> None:
    for call in create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.tool_calls or ():
        if call.type != "function":
            continue
        result = get_weather(**json.loads(call.function.arguments))
        say(f"assistant  calls {call.function.name}({call.function.arguments})\ntool       {result}\n")
        function: Any = {"name": call.function.name, "arguments": call.function.arguments}
        history += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
    answer = create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history.append({"role": "assistant", "content": answer})


_KEY = "no-key-needed"


@dataclass(frozen=True, slots=True)
class _DemoClient:
    """A client for a base URL; `refused` is the exception that it raises for an error."""

    name: str
    made_for: Callable[[str], Create]
    refused: type[Exception]

    @classmethod
    def find_installed(cls) -> Self:
        try:
            import openai
        except ModuleNotFoundError:
            return cls("a plain HTTP client (openai is not installed here)", _make_completion_function, _DemoHttpError)
        return cls(
            "the real openai client",
            lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key=_KEY, max_retries=0).chat.completions.create,
            openai.APIStatusError,
        )

    def describe_error(self, error: Any) -> str:
        message = error.body.get("message", "") if isinstance(error.body, dict) else str(error)
        kind = f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}: "
        name = "" if self.refused is _DemoHttpError else kind
        return f"{name}HTTP {error.status_code}\n{message}"


class _DemoHttpError(Exception):
    def __init__(self, status_code: int, body: object) -> None:
        super().__init__(str(body))
        self.status_code = status_code
        self.body = body


class _AttributeDict(SimpleNamespace):
    def __getattr__(self, name: str) -> None:
        return None


def _parse_json_to_attributes(text: str) -> Any:
    return json.loads(text, object_hook=lambda found: _AttributeDict(**found))


def _make_completion_function(url: str) -> Create:
    """Return a replacement of `client.chat.completions.create` that needs only httpx."""
    import httpx

    client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {_KEY}"}, timeout=60, trust_env=False)

    def create(**body: Any) -> Any:
        if body.get("stream"):
            return _iter_stream_chunks(client, body)
        answer = client.post("/v1/chat/completions", json=body)
        if answer.is_error:
            raise _DemoHttpError(answer.status_code, answer.json().get("error"))
        return _parse_json_to_attributes(answer.text)

    return create


def _iter_stream_chunks(client: Any, body: dict[str, Any]) -> Iterator[Any]:
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data not in ("", "[DONE]"):
                yield _parse_json_to_attributes(data)


_AGENT, _SERVER = "demo_tools_agent.py", "demo_ticket_server.py"
_TITLE = "Printer on floor 3 is broken"


class _DemoModelHandler(BaseHTTPRequestHandler):
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


def _run_tools_demo(folder: Path) -> None:
    """Run the demo in an empty folder and explain each step. Raises MachineError."""
    for name in (_AGENT, _SERVER):
        with as_file(files("llmproxy") / "data" / name) as path:
            shutil.copyfile(path, folder / name)
    tickets = folder / "tickets.txt"
    config = {"mcpServers": {"tickets": {"command": sys.executable, "args": [_SERVER, tickets.name]}}}
    (folder / "tools.json").write_text(json.dumps(config), encoding="utf-8")
    typer.echo(
        f"An agent with an MCP server, {_SERVER}, which writes each ticket into {tickets.name}. It is recorded now, "
        f"with a\nscripted model on this machine:\n"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), _DemoModelHandler) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(server.shutdown)
        upstream = f"openai=http://127.0.0.1:{server.server_port}"
        _run_and_print_output(folder, "--mode", "record", "--upstream", upstream)
    (folder / _SERVER).unlink()
    typer.echo(
        f"\n{tickets.name} has {_count_created(tickets)} line. Now the model is gone, and {_SERVER} is deleted. "
        "The same agent again:\n"
    )
    _run_and_print_output(folder)
    typer.echo(
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


def _run_and_print_output(folder: Path, *options: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LLMPROXY_", "OPENAI_"))}
    words = ["run", *options, "--mcp-config", "tools.json", "--", "python", _AGENT, "tools.json"]
    typer.echo(f"  $ llmproxy {' '.join(words)}")
    typed = [sys.executable if word == "python" else word for word in words]
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "llmproxy", *typed],
        cwd=folder,
        env={**env, "OPENAI_API_KEY": "sk-demo"},
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise MachineError(f"the demo's agent ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    said = [*done.stdout.splitlines(), *(line for line in done.stderr.splitlines() if line.startswith("llmproxy:"))]
    typer.echo("\n".join(f"  {line}" for line in said))
