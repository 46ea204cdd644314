"""``llmproxy demo``: the main job in miniature, without a key and without a network.

The real proxy (as a process, in replay mode), the real OpenAI client, a recording that ships with the package. Once in the recorded
time, so that one sees the stream arrive; once at full speed, so that one sees what a test gains; once with a changed prompt, so that
one sees a miss.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.errors import MachineError

if TYPE_CHECKING:
    from openai import OpenAI

CASSETTE = "demo"
CHANGED = "What is the capital of Sweden? One word."
PATIENCE = 30.0
"""Seconds until a proxy must serve; a cold disk takes its time to load mitmproxy."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo() -> None:
    """See a recording replayed to a real SDK client: no key, no network, nothing left behind."""
    from llmproxy.cli.parts.demo_agent import talk

    client_of = _openai()
    with tempfile.TemporaryDirectory(prefix="llmproxy-demo-") as folder:
        store = Path(folder) / "demo.db"
        recorded = _unpack(store)
        typer.echo(
            f"A recording of {recorded.calls} calls to OpenAI is bundled with llmproxy. The proxy replays it now to the real\n"
            f"openai client, in the time it was recorded in. No key, no network."
        )
        with _proxy(store, "1") as slow, _proxy(store, "0") as fast:
            started = time.perf_counter()
            talk(client_of(slow), _say)
            paced = time.perf_counter() - started
            started = time.perf_counter()
            talk(client_of(fast), lambda _text: None)
            quick = time.perf_counter() - started
            typer.echo(
                f"\n{recorded.calls} calls replayed in {paced:.1f} s, as recorded; the same run at full speed (the default): "
                f"{quick * 1000:.0f} ms.\n0 calls went to the provider, where they would cost {_dollars(recorded)} "
                f"and {recorded.tokens} tokens, every time."
            )
            _miss(client_of(fast))
    typer.echo(
        "\nNow with your own agent, in any language:\n\n"
        "  llmproxy start --mode record        # once; keeps everything in ./llmproxy.db\n"
        "  OPENAI_BASE_URL=http://127.0.0.1:8080/v1 ANTHROPIC_BASE_URL=http://127.0.0.1:8080 <your agent>\n"
        "  llmproxy start --mode replay        # from now on: the same agent, offline, without a key"
    )


def _say(text: str) -> None:
    typer.echo(text, nl=False)
    sys.stdout.flush()


def _miss(client: OpenAI) -> None:
    """Ask what was never recorded, and show what a developer reads in their own traceback."""
    import openai

    from llmproxy.cli.parts.demo_agent import talk

    typer.echo(f'\nAnd a request that was never recorded, say after a changed prompt ("{CHANGED}"):\n')
    try:
        talk(client, lambda _text: None, plain=CHANGED)
    except openai.APIStatusError as error:
        message = error.body.get("message", "") if isinstance(error.body, dict) else str(error)
        typer.echo(f"  {type(error).__module__.partition('.')[0]}.{type(error).__name__}: HTTP {error.status_code}")
        typer.echo("\n".join(f"  {line}" for line in str(message).splitlines()))


@dataclass(frozen=True, slots=True)
class _Recorded:
    calls: int
    tokens: int
    cost: Decimal | None


def _dollars(recorded: _Recorded) -> str:
    return "an unknown sum" if recorded.cost is None else f"${recorded.cost:.5f}"


def _unpack(store: Path) -> _Recorded:
    """Import the bundled recording into a store of its own."""
    from llmproxy.core.cassettes.adopt import adopt
    from llmproxy.core.cassettes.formats.vcr_yaml import parse
    from llmproxy.core.dialects.usage import cost_of
    from llmproxy.core.keys.normalize import Rules
    from llmproxy.core.secrets.redact import Redactor
    from llmproxy.core.store.store import Store

    text = (files("llmproxy") / "data" / "demo.yaml").read_text("utf-8")
    adopted = adopt(parse(text, "demo.yaml"), CASSETTE, rules=Rules(), redactor=Redactor())
    found = [each.interaction for each in adopted if each.interaction is not None]
    with Store.open(store, writable=True, now=time.time) as database:
        for interaction in found:
            database.add(interaction, supersede=False)
    costs = [cost_of(each.provider, each.model, each.usage) for each in found]
    known = [cost for cost in costs if cost is not None]
    tokens = sum((each.usage.input or 0) + (each.usage.output or 0) for each in found)
    return _Recorded(len(found), tokens, sum(known, Decimal(0)) if len(known) == len(costs) else None)


def _openai() -> Callable[[str], OpenAI]:
    try:
        import openai
    except ModuleNotFoundError as error:
        hint = "Install it:  uv tool install 'llmproxy-replay[proxy,demo]'   or run:  uvx --from 'llmproxy-replay[all]' llmproxy demo"
        raise MachineError("the demo drives the real openai client, which is not installed here.", hint=hint) from error
    return lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="no-key-needed", max_retries=0)


@contextmanager
def _proxy(store: Path, speed: str) -> Iterator[str]:
    """Run the real proxy in replay mode; yields its base URL."""
    command = [sys.executable, "-m", "llmproxy", "start", "--mode", "replay", "--port", "0"]
    command += ["--store", store.name, "--cassette", CASSETTE, "--speed", speed]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLMPROXY_")}
    pipe = subprocess.PIPE
    # In the store's folder, so that no pyproject.toml of where we are counts, and the texts name it as a user's would be named.
    with subprocess.Popen(  # noqa: S603
        command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env, cwd=store.parent
    ) as process:
        try:
            yield _url(process)
        finally:
            process.terminate()


def _url(process: subprocess.Popen[str]) -> str:
    said: list[str] = []
    for line in process.stdout or ():
        said.append(line)
        if line.startswith("llmproxy: http"):
            return line.split()[1]
    raise MachineError(f"the proxy did not start:\n{''.join(said)}".rstrip())
