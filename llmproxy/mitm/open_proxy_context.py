"""Creation of engine, journal and proxy context from the settings, for the command and the addon."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from llmproxy.advice import SUITE_MODE, StartCommand
from llmproxy.amount_formatting import format_count
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.faults.parsing import load_faults
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.live_or_recorded import LiveChannels
from llmproxy.core.providers.provider_table import get_service_kind
from llmproxy.core.providers.upstreams_and_rates import CallRateLimiter
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import Config, Exchange
from llmproxy.core.sessions.journal import Journal, get_state_path
from llmproxy.core.store.file.store import open_store
from llmproxy.core.traffic.origin_guard import OriginGuard
from llmproxy.errors import CassetteNotFound, MachineError, SettingsError
from llmproxy.mitm.intercept import is_loopback
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.parsers import parse_age_seconds
from llmproxy.protocol import DEFAULT_HOST, OFFLINE, PACER_VARIABLE, STARTED_BY_VARIABLE, Channel, Update
from llmproxy.proxy_calls import Call, CallLog
from llmproxy.server_store_copies import find_server_of_copy, refuse_server
from llmproxy.settings import Loaded, Settings, shown_path

log = logging.getLogger(__name__)

ASKING = 60.0
"""Timeout of the rate limiter in seconds: it may be restarting on another node."""


def build_rate_limiter(
    rates: Mapping[str, str], asked: str, clock: Callable[[], float]
) -> Callable[[Exchange], Awaitable[float]] | None:
    """Return the rate limiter; None without rates. `asked`: value of `protocol.PACER_VARIABLE`."""
    if not rates:
        return None
    pace = CallRateLimiter(rates, clock)
    said: set[str] = set()

    async def wait_of(exchange: Exchange) -> float:
        """Count a call, and return the seconds to wait. Raises MachineError: the limiter is unreachable."""
        where = exchange.route
        provider, model = where.provider.name, get_service_kind(where.provider.name, exchange.operation) is Channel.LLM
        if where.row.not_llm or not (rate := pace.find_provider_rate(provider, model=model)):
            return 0.0
        seconds = (
            await _ask_pacer_for_wait(asked, provider, model=model) if asked else pace.count_call(provider, model=model)
        )
        if seconds > 0 and provider not in said:
            said.add(provider)
            log.warning("%s has %s by now: further calls wait, this one %.1f s (--rate)", provider, rate, seconds)
        return seconds

    return wait_of


async def _ask_pacer_for_wait(whom: str, provider: str, *, model: bool) -> float:
    port, _, secret = whom.partition("/")
    try:
        async with asyncio.timeout(ASKING):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            try:
                writer.write(f"{secret} {int(model)} {provider}\n".encode())
                return float(await reader.readline())
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError) as error:
        raise MachineError(
            f"llmproxy: whoever counts the calls of the cluster does not answer ({type(error).__name__});"
            " the request was not sent.",
            hint="Leave --rate out, or run the test again.",
        ) from error


@dataclass(frozen=True, slots=True)
class ContextAndJournal:
    proxy: ProxyContext
    journal: Journal
    notes: tuple[str, ...]

    async def close(self) -> None:
        """Store open answers and end the sessions too."""
        await self.proxy.close()
        self.journal.close()

    async def close_and_list_unused(self) -> tuple[int | None, list[str]]:
        """Close everything; returns the number of unused recordings, or None, and why fault rules met no call."""
        engine = self.proxy.engine
        unused, idle = engine.count_unused(), engine.get_feature(FaultFeature).explain_idle_rules()
        await self.close()  # what is still being stored counts too
        return unused, list(idle.values())


def build_engine_config(
    settings: Settings, redirected: frozenset[str] = frozenset(), again: StartCommand | None = None
) -> Config:
    """Return the engine's configuration; `redirected` names providers with a user's upstream."""
    return Config(
        mode=settings.mode, cassette=settings.cassette, speed=settings.speed, exhausted=settings.exhausted,
        bind=settings.bind, order_wait=settings.order_wait, update=settings.update,
        coalesce=settings.coalesce, miss_status=settings.miss_status, max_request=settings.max_request,
        max_age=parse_age_seconds(settings.max_age) if settings.max_age else None,
        trial=settings.update in {Update.TRIAL, Update.CHANGED}, max_cost=settings.max_cost, change=settings.change,
        store=settings.store, shown=shown_path(settings.store),
        again=again or StartCommand(), cassette_dir=settings.cassette_dir, upstreams=dict(settings.upstream),
        redirected=redirected, rules=Rules.from_settings(settings.normalize),
        allow_live=settings.allow_live, allow_host=settings.allow_host, record_host=settings.record_host,
        live=LiveChannels(frozenset(settings.live), settings.unknown_tool, settings.read_only)
        if settings.live else None,
        faults=load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed) if settings.faults else None,
        match_credential=settings.match_credential, stubs=settings.stub,
    )  # fmt: skip


def build_start_command(loaded: Loaded, env: Mapping[str, str], own: StartCommand | None = None) -> StartCommand:
    """Return the command that starts this proxy again.

    A proxy started by another command (`run`, a test runner) is started by that command again: its variables are still
    set there, and the port is not the user's. A proxy started by hand often has a shell of its own.
    """
    own, typed = own or StartCommand(), env.get(STARTED_BY_VARIABLE)
    options = loaded.list_typed(environment=typed is None)
    if typed is not None:
        options = tuple(each for each in options if each != ("port", "0"))
        rest = "" if typed.endswith(SUITE_MODE) else " -- COMMAND"
        return StartCommand(typed, rest, options) if typed else replace(own, options=options)
    names = dict.fromkeys(source.name for _, _, source in loaded.upstreams if source.is_sdk_variable)
    variables = tuple((name, env[name]) for name in names if name in env)
    port = 0 if own.in_mitmproxy else loaded.settings.port
    page = f"http://{DEFAULT_HOST}:{port}/" if port else ""
    return replace(own, options=options, variables=variables, page=page)


def open_proxy_context(
    loaded: Loaded, on_call: Callable[[Call], None], start: StartCommand | None = None
) -> ContextAndJournal:
    """Open the store and the journal; `on_call` gets each ended call. Raises LLMProxyError: they cannot be used."""
    named = frozenset(name for name, _, source in loaded.upstreams if not source.is_sdk_variable)
    config = build_engine_config(loaded.settings, named, build_start_command(loaded, os.environ, start))
    refuse_file_store_options(config)
    filed = load_cassette_files(config)
    check_store(config)
    journal = Journal.open(get_state_path(config.store), time.time)
    try:
        engine = Engine(
            config, redactor=Redactor(), journal=journal, now=time.time, clock=time.monotonic,
            holder=f"llmproxy {os.getpid()} on {platform.node()}",
        )  # fmt: skip
    except BaseException:
        journal.close()
        raise
    notes = (*filed, journal.note, *engine.notes(), config.faults and config.faults.summary)
    settings = loaded.settings
    watch = CallLog()

    def record(call: Call) -> None:
        watch.record(call)
        on_call(call)

    proxy = ProxyContext(
        engine, record, token=settings.token, exposed=is_exposed(settings.host),
        guard=build_origin_guard(settings, settings.host), forward=settings.intercepts,
        pace=build_rate_limiter(settings.rate, os.environ.get(PACER_VARIABLE, ""), time.monotonic), watch=watch,
    )  # fmt: skip
    return ContextAndJournal(proxy, journal, tuple(note for note in notes if note))


def is_exposed(host: str) -> bool:
    return host != "localhost" and not is_loopback(host)


def build_origin_guard(settings: Settings, host: str) -> OriginGuard:
    return OriginGuard(settings.answer_to, settings.allow_origin, any_host=is_exposed(host))


def check_store(config: Config) -> None:
    """Check that the store can be used or created, before anything is written. Raises CassetteError, MachineError."""
    if config.live is not None and config.mode not in OFFLINE:
        raise SettingsError(
            f"--live {','.join(sorted(config.live.channels))} is for mode replay; this is mode {config.mode}.",
            hint="What is not live is served from the recording. Leave --mode out.",
        )
    if config.live is not None and config.faults is not None:
        raise SettingsError(
            "--live and --faults exclude each other: faults are injected into a recording or a live run, not both."
        )
    if find_server_of_copy(config.store) is not None:
        return  # the engine asks it first
    if config.store.exists():
        open_store(config.store, writable=False, now=time.time).close()
    elif config.mode.policy.writes:
        _make_folder(config.store.parent)


def refuse_file_store_options(config: Config) -> None:
    for name, given in (
        ("--cassette-dir", config.cassette_dir is not None),
        ("--match-credential", config.match_credential),
        ("--live", config.live is not None),
    ):
        if given:
            refuse_server(name, config.store)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cannot make the folder {shown_path(folder)}: {error.strerror or error}") from error


def load_cassette_files(config: Config) -> list[str]:
    """Import the cassettes' files into the store; returns messages. Raises CassetteError: nothing was written."""
    if config.cassette_dir is None:
        return []
    if not config.cassette_dir.exists():
        if config.mode.policy.writes:
            # Before the first recording: an agent that lists its folder sees it in every run, or in none.
            _make_folder(config.cassette_dir)
            return []
        if config.mode not in OFFLINE or config.allow_live:
            return []
        typed = config.again.command("auto", config.cassette, store=config.shown)
        hint = f"Name the folder that holds the cassettes, or record what is missing: {typed}"
        raise CassetteNotFound(f"there is no folder {shown_path(config.cassette_dir)} of cassettes.", hint=hint)
    from llmproxy.core.cassettes.folder import CassetteDir

    with open_store(config.store, writable=True, now=time.time) as store:
        found = CassetteDir(config.cassette_dir, now=time.time).load_into(
            store, rules=config.rules, upstreams=config.upstreams, wait=time.sleep
        )
    notes = [f"not replayable: {what}" for what in found.skipped]
    notes += [
        f"{shown_path(path)} had a merge conflict: both sides were kept, and the file is written anew"
        for path in found.merged
    ]
    if found.imported:
        aside = f", {format_count(found.set_aside, 'recording')} set aside" if found.set_aside else ""
        read = f"{format_count(len(found.imported), 'cassette')} read from {shown_path(config.cassette_dir)}"
        notes.append(f"{read}: {format_count(found.interactions, 'interaction')}{aside}")
    return notes
