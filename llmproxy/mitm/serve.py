"""The proxy as a program, from the settings to the summary: its context, and a minimal mitmproxy master around it.

Twice as fast at forwarding as mitmdump's full set of addons. On SIGINT and SIGTERM it stops listening, waits a few
seconds for open answers, marks the rest as cut, and closes the store after the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import platform
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mitmproxy import http, master, options
from mitmproxy.addons import core, next_layer, proxyserver

from llmproxy import protocol
from llmproxy.advice import SUITE_MODE, SuggestedCommandTemplate
from llmproxy.amount_formatting import format_count
from llmproxy.calls_and_totals import (
    Call,
    RecentProxyCallLog,
    Totals,
    find_fail_on_exit_code,
    find_strict_violations,
    format_exit_code_reason,
)
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.faults.parsing import load_faults
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.mixed_live_replay import LiveChannelSettings
from llmproxy.core.providers.provider_table import get_call_channel
from llmproxy.core.providers.upstreams_and_rate_limits import CallRateLimiter
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange
from llmproxy.core.sessions.journal import CallDecisionJournalWriter, get_decision_journal_path
from llmproxy.core.store.file.store import open_store
from llmproxy.core.traffic.origin_guard import OriginGuard
from llmproxy.errors import CassetteNotFound, Exit, MachineError, SettingsError, StoreReadOnly
from llmproxy.mitm import interception
from llmproxy.mitm.client_layers import NextLayerChooser
from llmproxy.mitm.http1.fast_path import FastPathAsyncioProtocol, FastPathProxyserver
from llmproxy.mitm.idle_connections_and_resets import LowDescriptorConnectionCloser, widen_backlog
from llmproxy.mitm.interception import HttpConnectHandler, is_loopback_ip
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.recorder import RecordingAddon
from llmproxy.parsers import parse_age_seconds
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, refuse_postgres_store_for_option
from llmproxy.protocol import OFFLINE, Channel, Decision, UpdateMode
from llmproxy.report.proxy_console import ProxyConsole, ProxyStartInfo
from llmproxy.settings import Loaded, Settings, convert_listen_to_connect_host, format_shown_path

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
        provider, model = where.provider.name, get_call_channel(where.provider.name, exchange.operation) is Channel.LLM
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
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError) as error:
        raise MachineError(
            f"llmproxy: whoever counts the calls of the cluster does not answer ({type(error).__name__});"
            " the request was not sent.",
            hint="Leave --rate out, or run the test again.",
        ) from error


@dataclass(frozen=True, slots=True)
class ProxyContextAndJournal:
    proxy: ProxyContext
    journal: CallDecisionJournalWriter
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
    settings: Settings, redirected: frozenset[str] = frozenset(), again: SuggestedCommandTemplate | None = None
) -> EngineConfig:
    """Return the engine's configuration; `redirected` names providers with a user's upstream."""
    return EngineConfig(
        mode=settings.mode, cassette=settings.cassette, speed=settings.speed, exhausted=settings.exhausted,
        bind=settings.bind, order_wait=settings.order_wait, update=settings.update,
        coalesce=settings.coalesce, miss_status=settings.miss_status, max_request=settings.max_request,
        max_age=parse_age_seconds(settings.max_age) if settings.max_age else None,
        trial=settings.update in {UpdateMode.TRIAL, UpdateMode.CHANGED}, max_cost=settings.max_cost,
        change=settings.change, store=settings.store, shown=format_shown_path(settings.store),
        again=again or SuggestedCommandTemplate(), cassette_dir=settings.cassette_dir,
        upstreams=dict(settings.upstream), redirected=redirected, rules=Rules.from_settings(settings.normalize),
        allow_live=settings.allow_live, allow_host=settings.allow_host, record_host=settings.record_host,
        live=LiveChannelSettings(frozenset(settings.live), settings.unknown_tool, settings.read_only)
        if settings.live else None,
        faults=load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed) if settings.faults else None,
        match_credential=settings.match_credential, stubs=settings.stub,
    )  # fmt: skip


def build_proxy_restart_command(
    loaded: Loaded, env: Mapping[str, str], own: SuggestedCommandTemplate | None = None
) -> SuggestedCommandTemplate:
    """Return the command that starts this proxy again.

    A proxy started by another command (`run`, a test runner) is started by that command again: its variables are still
    set there, and the port is not the user's. A proxy started by hand often has a shell of its own.
    """
    own, typed = own or SuggestedCommandTemplate(), env.get(protocol.STARTED_BY_VARIABLE)
    options = loaded.list_typed(environment=typed is None)
    if typed is not None:
        options = tuple(each for each in options if each != ("port", "0"))
        rest = "" if typed.endswith(SUITE_MODE) else " -- COMMAND"
        return SuggestedCommandTemplate(typed, rest, options) if typed else replace(own, options=options)
    names = dict.fromkeys(source.name for _, _, source in loaded.upstreams if source.is_sdk_variable)
    variables = tuple((name, env[name]) for name in names if name in env)
    port = 0 if own.in_mitmproxy else loaded.settings.port
    page = f"http://{protocol.DEFAULT_HOST}:{port}/" if port else ""
    return replace(own, options=options, variables=variables, page=page)


def build_proxy_context_and_journal(
    loaded: Loaded, on_call: Callable[[Call], None], start: SuggestedCommandTemplate | None = None
) -> ProxyContextAndJournal:
    """Open the store and the journal; `on_call` gets each ended call. Raises LLMProxyError: they cannot be used."""
    named = frozenset(name for name, _, source in loaded.upstreams if not source.is_sdk_variable)
    config = build_engine_config(loaded.settings, named, build_proxy_restart_command(loaded, os.environ, start))
    require_file_store_for_options(config)
    filed = import_cassette_dir_at_start(config)
    check_store_usable_at_start(config)
    journal = CallDecisionJournalWriter.open(get_decision_journal_path(config.store), time.time)
    if config.trial and not journal.is_kept:
        raise MachineError(journal.note, hint="What a trial saw is kept there: name a store elsewhere, --store PATH.")
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
    watch = RecentProxyCallLog()

    def record(call: Call) -> None:
        watch.record(call)
        on_call(call)

    proxy = ProxyContext(
        engine, record, token=settings.token, exposed=is_bound_beyond_loopback(settings.host),
        guard=build_origin_guard(settings, settings.host), forward=settings.intercepts,
        pace=build_rate_limiter(settings.rate, os.environ.get(protocol.PACER_VARIABLE, ""), time.monotonic),
        watch=watch,
    )  # fmt: skip
    return ProxyContextAndJournal(proxy, journal, tuple(note for note in notes if note))


def is_bound_beyond_loopback(host: str) -> bool:
    return host != "localhost" and not is_loopback_ip(host)


def build_origin_guard(settings: Settings, host: str) -> OriginGuard:
    return OriginGuard(settings.answer_to, settings.allow_origin, any_host=is_bound_beyond_loopback(host))


def check_store_usable_at_start(config: EngineConfig) -> None:
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
    if find_postgres_of_local_copy(config.store) is not None:
        return  # the engine asks it first
    if config.store.exists():
        open_store(config.store, writable=False, now=time.time).close()
    elif config.mode.policy.writes:
        _make_folder(config.store.parent)


def require_file_store_for_options(config: EngineConfig) -> None:
    """Raise SettingsError for options that need a store in a file, if the store is a server's."""
    for name, given in (
        ("--cassette-dir", config.cassette_dir is not None),
        ("--match-credential", config.match_credential),
        ("--live", config.live is not None),
    ):
        if given:
            refuse_postgres_store_for_option(name, config.store)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cannot make the folder {format_shown_path(folder)}: {error.strerror or error}") from error


def import_cassette_dir_at_start(config: EngineConfig) -> list[str]:
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
        raise CassetteNotFound(f"there is no folder {format_shown_path(config.cassette_dir)} of cassettes.", hint=hint)
    from llmproxy.core.cassettes.folder_sync import CassetteDir

    files = CassetteDir(config.cassette_dir, now=time.time)
    try:
        with open_store(config.store, writable=True, now=time.time) as store:
            found = files.load_into(store, rules=config.rules, upstreams=config.upstreams, wait=time.sleep)
    except StoreReadOnly as error:
        hint = f"The files of {format_shown_path(config.cassette_dir)} are read into it: name another, --store PATH."
        raise StoreReadOnly(error.message, hint=hint) from error
    notes = [f"not replayable: {what}" for what in found.skipped]
    notes += [
        f"{format_shown_path(path)} had a merge conflict: both sides were kept, and the file is written anew"
        for path in found.merged
    ]
    if found.imported:
        aside = f", {format_count(found.set_aside, 'recording')} set aside" if found.set_aside else ""
        read = f"{format_count(len(found.imported), 'cassette')} read from {format_shown_path(config.cassette_dir)}"
        notes.append(f"{read}: {format_count(found.interactions, 'interaction')}{aside}")
    return notes


PATIENCE = 5.0
"""Seconds that open answers get after a signal to end."""
CLOSING = 1.0
"""Seconds that cut connections get to run their last hooks."""
ANSWERED = 0.05
"""Seconds before an end requested over HTTP, so that the client gets its answer."""
HEARTBEAT = 5.0
"""Seconds between renewals of the leases held by this process."""
_NOT_IGNORED = 1
"""Exit code of `git check-ignore`."""

OPTIONS: dict[str, object] = {
    "mode": ["fronted"],  # one listener serves base URLs, absolute form and https at the port
    "connection_strategy": "lazy",  # eager would dial upstream before any hook
    "upstream_cert": False,  # nor for a certificate
    "http2": True,
    "keep_host_header": True,
    "tcp_timeout": 7200,  # seconds; the default of 600 cuts long answers
    "validate_inbound_headers": False,  # our own framing is stricter; odd upstream headers must pass
}


def run_proxy(loaded: Loaded, report: ProxyConsole, *, announce: bool = False) -> Exit:
    """Serve until a signal comes; returns the exit code. `announce`: print the address as a line of JSON."""
    return asyncio.run(_serve_until_signal(loaded, report, announce=announce))


async def _serve_until_signal(loaded: Loaded, report: ProxyConsole, *, announce: bool) -> Exit:
    settings = loaded.settings
    check_port_free(settings.host, settings.port)
    totals = Totals()
    hints = [advise_gitignore_of_call_journal]  # said with the first recording

    def on_call(call: Call) -> None:
        totals.add(call)
        report.on_call(call)
        recorded = call.decision is Decision.RECORD and call.interaction is not None
        if recorded and hints and (text := hints.pop()(settings.store)):
            report.note(text)

    built = build_proxy_context_and_journal(loaded, on_call)
    proxy = built.proxy
    try:
        server = MitmproxyServerInProxyEventLoop(proxy, settings)
        port = await server.start_listening()
        proxy.engine.put_port_in_restart_command(port)
        gc.freeze()  # nothing of what a start makes is garbage: no collection need look at it again
        gc.set_threshold(20_000)  # ten times as rarely: most of what is made for a call goes without a collection
        gc.enable()
    except BaseException:
        await built.close()
        raise
    started = _describe_start(loaded, proxy, port)
    if announce:
        print(json.dumps({"serves": started.url}), flush=True)  # noqa: T201 - to whoever reads our output
    report.on_start(started)
    for note in (*server.authority.notes, *built.notes):
        report.note(note)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    unhear = install_signal_handlers(loop, _list_end_signals(), stop.set)

    def end_soon() -> int:
        loop.call_later(ANSWERED, stop.set)
        return find_exit_code_and_reason(settings, totals, proxy.engine.count_unused(), losses=proxy.losses)[0]

    proxy.stop = end_soon
    beat = asyncio.create_task(_renew_cassette_leases(proxy))
    await stop.wait()
    unhear()  # a second one ends us at once
    beat.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beat
    unused = await end_proxy_and_print_totals(server.stop_serving, built, report, totals)
    write_totals_json_file(totals, unused, os.environ.get(protocol.SUMMARY_VARIABLE, ""))
    code, reason = find_exit_code_and_reason(settings, totals, unused, losses=proxy.losses)
    if reason:
        report.note(reason)
    return code


def write_totals_json_file(totals: Totals, unused: int | None, path: str) -> None:
    data = {**totals.to_json(), "saved": totals.saved.to_json(), "unused": unused}
    with contextlib.suppress(OSError):  # it has gone, or its file with it
        if path:
            Path(path).touch(mode=0o600)  # it holds texts of misses
            Path(path).write_text(json.dumps(data), encoding="utf-8")


def _describe_start(loaded: Loaded, proxy: ProxyContext, port: int) -> ProxyStartInfo:
    settings = loaded.settings
    return ProxyStartInfo(
        url=f"http://{convert_listen_to_connect_host(settings.host)}:{port}", mode=settings.mode,
        store=format_shown_path(settings.store), cassette=settings.cassette,
        upstreams=loaded.upstreams, live=settings.live, ca=proxy.ca,
        ca_bundle=proxy.ca_bundle,
    )  # fmt: skip


def _list_end_signals() -> list[signal.Signals]:
    endings = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        endings.append(signal.SIGHUP)  # the terminal was closed
    return endings


async def end_proxy_and_print_totals(
    end: Callable[[], Awaitable[None]], built: ProxyContextAndJournal, report: ProxyConsole, totals: Totals
) -> int | None:
    await end()
    unused, notes = await built.close_and_list_unused()
    for text in notes:
        report.note(text)
    report.on_end(totals, unused)
    return unused


def install_signal_handlers(
    loop: asyncio.AbstractEventLoop, numbers: Sequence[signal.Signals], heard: Callable[[], None]
) -> Callable[[], None]:
    try:
        for number in numbers:
            loop.add_signal_handler(number, heard)
    except NotImplementedError:  # Windows: its loop is woken by signals, and has no handlers of its own
        before = {each: signal.signal(each, lambda *_: loop.call_soon_threadsafe(heard)) for each in numbers}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    def remove() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    return remove


def find_exit_code_and_reason(
    settings: Settings, totals: Totals, unused: int | None, *, losses: int
) -> tuple[Exit, str]:
    if losses:
        return Exit.ENVIRONMENT, ""
    used = totals.calls > totals.refused or not settings.strict  # a proxy of its own may serve nobody
    doubts = find_strict_violations(
        totals, unused, used=used, fail_on_miss=settings.fail_on_miss, strict=settings.strict
    )
    if doubts:
        option = "--strict" if settings.strict else "--fail-on-miss"
        return Exit.MISS, format_exit_code_reason(Exit.MISS, option, *doubts)
    forbidden = find_fail_on_exit_code(totals, carried=settings.fail_on_carried, stale=settings.fail_on_stale)
    return forbidden or (Exit.OK, "")


def check_port_free(host: str, port: int) -> None:
    """Check that the port can be used, before anything is opened. Raises MachineError: taken, or not permitted."""
    if not port:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # on Windows it would let us share a port with who has it
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            msg = f"cannot listen on {host}:{port}: {error.strerror or error}"
            hint = "Listen on an address of this machine: --host 127.0.0.1"
            if error.errno == errno.EADDRINUSE:
                stop = f"llmproxy stop --url http://{convert_listen_to_connect_host(host)}:{port}"
                hint = f"Is another llmproxy running there? End it: {stop}\nOr take another port: --port 0"
            raise MachineError(msg, hint=hint) from error


async def _renew_cassette_leases(proxy: ProxyContext) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT)
        await proxy.run_in_writer_ignoring_errors(proxy.engine.sessions.renew_recording_leases)


def check_client_cert(path: Path) -> None:
    """Check the client certificate for upstreams. Raises MachineError: missing, or without its key."""
    files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
    hint = "Give one PEM file with certificate (and its chain) and key without a password, or a folder of HOST.pem."
    if not files:
        raise MachineError(f"--client-cert {path}: no *.pem is in it.", hint=hint)
    for each in files:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(each, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise MachineError(f"--client-cert {each} cannot be used: {why}", hint=hint) from error


class MitmproxyServerInProxyEventLoop:
    def __init__(
        self,
        proxy: ProxyContext,
        settings: Settings,
        ours: tuple[object, ...] = (),
        front: type[FastPathAsyncioProtocol] = FastPathAsyncioProtocol,
    ) -> None:
        """`ours` are layer choice and recorder, if not the usual ones. Raises MachineError: no usable authority."""
        self._proxy = proxy
        prepare = interception.prepare_or_create_temporary_ca
        if settings.intercepts:
            prepare = interception.prepare_certificate_authority
        self.authority = prepare(interception.get_certificate_authority_folder())
        http.MessageData.__post_init__ = object.__init__  # type: ignore[method-assign]  # checks nothing
        opts = options.Options()
        self._master = master.Master(opts)
        self._server = FastPathProxyserver(proxy, front)
        # RecordingAddon.server_connect comes after Proxyserver, which may forbid a connection too but never allows one.
        proxy.sockets = LowDescriptorConnectionCloser(lambda: self._server)
        ours = ours or (
            NextLayerChooser(proxy),
            HttpConnectHandler(proxy, forward=settings.intercepts),
            RecordingAddon(proxy),
        )
        addons = (core.Core(), self._server, *ours, next_layer.NextLayer(), interception.LazyTlsConfig())
        self._master.addons.add(*addons)  # type: ignore[no-untyped-call]
        listening = {"listen_host": settings.host, "listen_port": settings.port}
        given = OPTIONS | listening | {"confdir": str(self.authority.folder)}
        if settings.client_cert is not None:
            check_client_cert(settings.client_cert)
            given["client_certs"] = str(settings.client_cert)
        if bundle := os.environ.get("SSL_CERT_FILE"):
            given["ssl_verify_upstream_trusted_ca"] = bundle
        opts.update(**given)  # type: ignore[no-untyped-call]
        if settings.intercepts:
            proxy.ca, proxy.ca_bundle = str(self.authority.ca_certificate_path), str(self.authority.ca_bundle)

    async def start_listening(self) -> int:
        """Start listening and return the port. Raises MachineError."""
        if not await self._server.setup_servers() or not self._server.listen_addrs():
            raise MachineError("cannot listen: mitmproxy started no server", hint="Take another port: --port 0")
        widen_backlog(self._server)
        await self._master.running()
        if self._proxy.sockets is not None:
            self._proxy.sockets.make_room_on_accept_errors(asyncio.get_running_loop(), self._proxy.fronts.values())
        port: int = self._server.listen_addrs()[0][1]
        return port

    async def stop_serving(self) -> None:
        self._proxy.draining = True
        await self._server.servers.update([])
        await drain_client_connections(self._proxy, self._server)
        await self._master.done()


async def drain_client_connections(proxy: ProxyContext, server: proxyserver.Proxyserver | None) -> None:
    """Wait a while for open answers, then end every client connection, and so its upstream one; their hooks run."""
    proxy.draining = True
    await proxy.wait_until_idle(PATIENCE)
    connections = server.connections if server is not None else {}
    for connection in list(connections.values()):
        transport = connection.transports.get(connection.client)
        if transport is not None and transport.handler is not None:
            transport.handler.cancel("llmproxy is ending")
    loop = asyncio.get_running_loop()
    until = loop.time() + CLOSING
    while connections and loop.time() < until:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.01)
    await proxy.wait_until_idle(1.0)


def advise_gitignore_of_call_journal(store: Path) -> str:
    journal = get_decision_journal_path(store.absolute())
    if (root := next((folder for folder in journal.parents if (folder / ".git").exists()), None)) is None:
        return ""
    asking = ["git", "check-ignore", "--quiet", "--no-index", str(journal)]
    try:
        answer = subprocess.run(asking, cwd=root, capture_output=True, check=False, timeout=2)  # noqa: S603 - their git
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a slow disk: requests wait meanwhile
        return ""
    if answer.returncode != _NOT_IGNORED:
        return ""
    return (
        f"{journal.name} is this machine's journal and says what was asked; keep it out of git: "
        f"echo '*.state.db' >> {root / '.gitignore'}"
    )
