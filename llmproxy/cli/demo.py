"""``llmproxy demo``: record-and-replay in miniature, without a key and without a network.

It uses the real proxy (as a process, in replay mode), the real OpenAI client if installed, and a recording that ships
with the package. It replays once in recorded time, to show the stream; once at full speed, to show what a test gains;
once with a changed prompt, to show a miss.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import typer

from llmproxy.amounts import dollars, format_seconds, sum_if_all_known
from llmproxy.cli.parts.demo_agent import DemoClient, run_narrated_conversation
from llmproxy.cli.parts.tools_demo import run_tools_demo
from llmproxy.cli.ui import open_browser
from llmproxy.client.proxy_process import ProxyCommand, find_proxy_command, spawn_proxy
from llmproxy.core.cassettes.formats import Source, vcr
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.dialects.usage_and_cost import compute_cost
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.providers.provider_table import format_base_url_assignments
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.file.store import open_store
from llmproxy.errors import SettingsError
from llmproxy.protocol import UI_PREFIX

CASSETTE = "demo"
CHANGED = "What is the capital of Sweden? One word."


def demo(
    ui: bool = typer.Option(False, "--ui", help="Then show the recording in the browser, until Ctrl-C."),
    tools: bool = typer.Option(
        False, "--tools", help="Record an agent with an MCP server, then replay without the server."
    ),
) -> None:
    """Replay a recording to a real SDK client: no key, no network. Its files are in a temporary folder."""
    if tools:
        if ui:
            raise SettingsError("--tools and --ui are two demos: one at a time.")
        run_tools_demo(_make_demo_folder(), typer.echo)
        return
    found, asker = find_proxy_command(os.environ), DemoClient.find_installed()
    folder = _make_demo_folder()
    store = folder / "demo.db"
    recorded = _import_demo_recording(store)
    typer.echo(
        f"A recording of {recorded.calls} calls to OpenAI is bundled with llmproxy. The proxy replays it now to\n"
        f"{asker.name}, in the time it was recorded in. No key, no network."
    )
    with _start_replay_proxies(found, store, "1", "0") as (slow, fast):
        asked_slowly, asked_quickly = asker.made_for(slow), asker.made_for(fast)
        started = time.perf_counter()
        run_narrated_conversation(asked_slowly, _print_flushed)
        paced = time.perf_counter() - started
        started = time.perf_counter()
        run_narrated_conversation(asked_quickly, lambda _text: None)
        quick = time.perf_counter() - started
        typer.echo(
            f"\n{recorded.calls} calls replayed in {format_seconds(paced)}, as recorded; the same run at full speed "
            f"(the default): {format_seconds(quick)}.\n0 calls went to the provider, where they would cost "
            f"{'an unknown sum' if recorded.cost is None else dollars(recorded.cost)} and {recorded.tokens} tokens, "
            "every time."
        )
        typer.echo(f'\nAnd a request that was never recorded, say after a changed prompt ("{CHANGED}"):\n')
        try:
            run_narrated_conversation(asked_quickly, lambda _text: None, plain=CHANGED)
        except asker.refused as error:
            typer.echo("\n".join(f"  {line}" for line in asker.describe_error(error).splitlines()))
        if ui:
            url = f"{fast}{UI_PREFIX}"
            typer.echo(
                f"\nWhat just happened, call by call, and the miss as a difference:\n\n  {url}\n\nCtrl-C ends it."
            )
            sys.stdout.flush()
            open_browser(url)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    typer.echo(f"\nThe commands above work where the recording is:  cd {folder}")
    typer.echo(
        "\nNow with your own agent, in any language:\n\n"
        "  llmproxy start --mode record        # once; keeps everything in ./llmproxy.db\n"
        f"  {format_base_url_assignments('http://127.0.0.1:8080')} <your agent>\n"
        "  llmproxy start --mode replay        # from now on: the same agent, offline, without a key"
    )


def _make_demo_folder() -> Path:
    """Create a folder that is kept, since the output names its files."""
    return Path(tempfile.mkdtemp(prefix="llmproxy-demo-"))


def _print_flushed(text: str) -> None:
    typer.echo(text, nl=False)
    sys.stdout.flush()


class _RecordedTotals(NamedTuple):
    calls: int
    tokens: int
    cost: Decimal | None


def _import_demo_recording(store: Path) -> _RecordedTotals:
    source = Source((files("llmproxy") / "data" / "demo.yaml").read_bytes(), "demo.yaml")
    adopted = convert_exchanges(vcr.read(source), CASSETTE, rules=Rules(), redactor=Redactor())
    found = [each.interaction for each in adopted if each.interaction is not None]
    with open_store(store, writable=True, now=time.time) as database:
        for interaction in found:
            database.add_interaction(interaction, supersede=False)
    tokens = sum((each.usage.input or 0) + (each.usage.output or 0) for each in found)
    cost = sum_if_all_known(compute_cost(each.provider, each.model, each.usage) for each in found)
    return _RecordedTotals(len(found), tokens, cost)


@contextmanager
def _start_replay_proxies(found: ProxyCommand, store: Path, *speeds: str) -> Iterator[list[str]]:
    """Run a real proxy in replay mode for each speed; yields their base URLs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLMPROXY_")}
    options = ["--mode", "replay", "--store", store.name, "--cassette", CASSETTE]
    with ExitStack() as stack:
        started = []
        for speed in speeds:
            # In the store's folder, so that no pyproject.toml of where we are counts, and texts name it as a user's
            # would be named.
            log = store.with_suffix(f".{speed}.log")
            process = spawn_proxy(found, [*options, "--speed", speed], env, log=log, cwd=store.parent)
            stack.callback(process.end)
            started.append(process)
            found = replace(found, notice="")
        yield [process.wait_ready() for process in started]
