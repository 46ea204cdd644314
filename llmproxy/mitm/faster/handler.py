"""One client connection of our own server, as mitmproxy handles it but without a task for each step.

mitmproxy starts a task for every hook, asks every addon whether it has it, takes a lock for each event and writes every piece by itself.
Here a hook is a call of whoever has it, made when the layers have said all that they have to say to an event; what they send meanwhile
goes out together. Only what must be waited for (a commit, a dial, a timer) is a task. What the layers see is the same, in the same order.

It is here for two reasons. It saves a third of the loop's time of a recorded request (docs/speed.md). And a client that breaks off while an
answer streams is heard at once: mitmproxy's own handler notices at its next write, and until then the exchange stays under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields
from time import time
from typing import Any, cast

from mitmproxy import addonmanager, exceptions, hooks
from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.mode_servers import ProxyConnectionHandler
from mitmproxy.proxy.server import ConnectionIO

log = logging.getLogger(__name__)

PIECE = 65_536
"""Bytes that are read at once."""
FULL = 65_536
"""Bytes that wait to be written; above that nothing more is read until they are out."""

Called = Callable[..., Awaitable[None] | None]


class ConnectionHooks:
    """Who has which hook. The addons of our master are the same as long as it serves."""

    def __init__(self, addons: addonmanager.AddonManager) -> None:
        self._addons = addons
        self._known: dict[str, tuple[str, tuple[Called, ...]]] = {}

    def _of(self, hook: hooks.Hook) -> tuple[str, tuple[Called, ...]]:
        """Return the name of a hook's one argument, and who is to be called."""
        known = self._known.get(hook.name)
        if known is None:
            (argument,) = (field.name for field in fields(cast("Any", hook)) if field.name != "blocking")
            everybody = addonmanager.traverse(self._addons.chain)  # type: ignore[no-untyped-call]
            called = tuple(found for addon in everybody if callable(found := getattr(addon, hook.name, None)))
            known = self._known[hook.name] = (argument, called)
        return known

    def call(self, hook: hooks.Hook) -> Awaitable[None] | None:
        """Call everybody who has this hook, as far as that needs no waiting; the rest is returned.

        What one of them raises is logged and the next one is called, as mitmproxy does it.
        """
        argument, called = self._of(hook)
        return self._call(called, getattr(hook, argument)) if called else None

    def _call(self, called: Sequence[Called], argument: object) -> Awaitable[None] | None:
        for at, one in enumerate(called, 1):
            try:
                waiting = one(argument)
            except exceptions.AddonHalt:
                return None
            except Exception:
                log.exception("llmproxy: a hook failed")
                continue
            if waiting is not None and inspect.isawaitable(waiting):
                return self._wait(waiting, called[at:], argument)
        return None

    async def _wait(self, waiting: Awaitable[None], others: Sequence[Called], argument: object) -> None:
        try:
            await waiting
        except exceptions.AddonHalt:
            return
        except Exception:
            log.exception("llmproxy: a hook failed")
        if (more := self._call(others, argument)) is not None:
            await more


class Straight(asyncio.StreamReaderProtocol):
    """A protocol that gives what comes to somebody else than its stream, if there is somebody."""

    straight_to: Callable[[bytes], None] | None = None
    heard: float = 0.0
    """When bytes came last that somebody before the layers may have answered, Unix time."""

    def pass_on(self, data: bytes) -> None:
        """Give away what came."""
        if self.straight_to is not None:
            self.straight_to(data)
        else:
            super().data_received(data)


class Tap(asyncio.Protocol):
    """Takes the bytes off a connection before its stream, which hears of everything else."""

    def __init__(self, former: asyncio.StreamReaderProtocol, take: Callable[[bytes], None]) -> None:
        """Give data to `take`, the rest to the `former` protocol."""
        self._former, self._take = former, take

    def data_received(self, data: bytes) -> None:
        """Give away what came."""
        self._take(data)

    def eof_received(self) -> bool | None:
        """Let the stream tell of the end."""
        return self._former.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the stream tell of the end."""
        self._former.connection_lost(exc)

    def pause_writing(self) -> None:
        """Let whoever drains the stream wait."""
        self._former.pause_writing()

    def resume_writing(self) -> None:
        self._former.resume_writing()


class ConnectionHandler(ProxyConnectionHandler):
    """One client connection, and those to its upstreams."""

    def __init__(self, known: ConnectionHooks, *given: object) -> None:
        """Serve; `given` is what mitmproxy's own handler takes."""
        super().__init__(*given)  # type: ignore[no-untyped-call]
        self._hooks = known
        self._coming: deque[events.Event] = deque()
        self._asked: deque[commands.StartHook] = deque()
        self._unsent: dict[Connection, list[bytes]] = {}
        self._working = False
        self._waits: set[asyncio.Task[None]] = set()

    # --- what mitmproxy's own methods call --------------------------------------------------------------------------

    async def on_timeout(self) -> None:
        """Close what is idle: what is answered before the layers is not, though they hear nothing of it."""
        here = self.transports.get(self.client)
        writer = None if here is None else here.writer
        front = writer.transport.get_protocol() if isinstance(writer, asyncio.StreamWriter) else None
        watchdog = self.timeout_watchdog
        last = max(watchdog.last_activity, front.heard if isinstance(front, Straight) else 0.0)
        if last + watchdog.timeout > time():
            watchdog.last_activity = last
            await watchdog.watch()  # type: ignore[no-untyped-call]
        else:
            await super().on_timeout()

    async def server_event(self, event: events.Event) -> None:
        """Let the layers hear of an event."""
        self.take(event)

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """Call everybody who has this hook, and wait for them."""
        if (waiting := self._hooks.call(hook)) is not None:
            with self.timeout_watchdog.disarm():
                await waiting

    async def handle_connection(self, connection: Connection) -> None:
        """Read from a connection until it ends; returns, or is cancelled, when our side is closed too."""
        cancelled = await self._read(connection)
        # A connection may be closed in one direction only.
        if cancelled is None:
            connection.state &= ~ConnectionState.CAN_READ
        else:
            connection.state = ConnectionState.CLOSED
        self.take(events.ConnectionClosed(connection))
        if connection.state is ConnectionState.CAN_WRITE:
            try:
                await self._wait_lost(connection)
            except asyncio.CancelledError as error:
                cancelled = error
        transport = self.transports.pop(connection)
        if transport.writer is not None:
            transport.writer.close()
        if cancelled is not None:
            raise cancelled

    async def _wait_lost(self, connection: Connection) -> None:
        """Wait until our side is closed too (a cancellation), or the client turns out to be gone."""
        writer = self.transports[connection].writer
        if connection is not self.client or writer is None:
            await asyncio.get_running_loop().create_future()
        else:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            connection.state = ConnectionState.CLOSED
            self.take(events.ConnectionClosed(connection))

    # --- events in, commands out -----------------------------------------------------------------------------------

    def take(self, event: events.Event) -> None:
        """Let the layers work on an event, and do what they say. What comes up meanwhile has its turn after it."""
        self._coming.append(event)
        if self._working:
            return
        self._working = True
        self.timeout_watchdog.register_activity()  # type: ignore[no-untyped-call]
        try:
            while self._coming:
                self._work(self._coming.popleft())
            for connection in list(self._unsent):
                self._send(connection)
        finally:
            self._working = False

    def _work(self, event: events.Event) -> None:
        try:
            for command in self.layer.handle_event(event):
                self._obey(command)
        except Exception:
            log.exception("llmproxy: mitmproxy's layers failed")
        while self._asked:
            self._ask(self._asked.popleft())

    def _ask(self, hook: commands.StartHook) -> None:
        waiting = self._hooks.call(hook)
        if waiting is not None:
            self._start(self._await_hook(hook, waiting))
        elif hook.blocking:
            self._coming.append(events.HookCompleted(hook))

    async def _await_hook(self, hook: commands.StartHook, waiting: Awaitable[None]) -> None:
        with self.timeout_watchdog.disarm():
            await waiting
        if hook.blocking:
            self.take(events.HookCompleted(hook))

    def _start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(job)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)
        return task

    def _obey(self, command: commands.Command) -> None:
        match command:
            case commands.SendData():
                self._unsent.setdefault(command.connection, []).append(command.data)
            case commands.StartHook():
                self._asked.append(command)
            case commands.Log():
                self.log(command.message, command.level)
            case commands.OpenConnection():
                handler = self._start(self.open_connection(command))
                self.transports[command.connection] = ConnectionIO(handler=handler)
            case commands.RequestWakeup():
                self.wakeup_timer.add(self._start(self.wakeup(command)))
            case commands.CloseConnection():
                if command.connection in self.transports:
                    self._send(command.connection)
                    half = isinstance(command, commands.CloseTcpConnection) and command.half_close
                    self.close_connection(command.connection, half)
            case _:
                raise RuntimeError(f"unexpected command: {command}")

    def _send(self, connection: Connection) -> None:
        """Write what the layers have sent; to a connection that is gone nothing."""
        pieces, transport = self._unsent.pop(connection, None), self.transports.get(connection)
        if not pieces or transport is None or transport.writer is None or transport.writer.is_closing():
            return
        transport.writer.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _read(self, connection: Connection) -> asyncio.CancelledError | None:
        """Take what comes until it ends; returns the cancellation that ended it, if one did."""
        reader = self.transports[connection].reader
        if reader is None:
            raise AssertionError("no such connection")
        direct = False
        try:
            while data := await reader.read(PIECE):
                self.take(events.DataReceived(connection, data))
                if self._is_full():
                    await self.drain_writers()  # type: ignore[no-untyped-call]
                elif not direct and len(data) < PIECE:  # nothing is left in the stream
                    direct = self._go_straight(connection)
        except OSError:
            pass
        except asyncio.CancelledError as cancelled:
            return cancelled
        return None

    def _go_straight(self, connection: Connection) -> bool:
        """From now on take what comes as it comes, past the stream, which still tells of the end."""
        transport = self.transports.get(connection)
        if transport is None or not isinstance(transport.writer, asyncio.StreamWriter):
            return False
        line = cast("asyncio.Transport", transport.writer.transport)
        if not line.is_closing():
            former = line.get_protocol()
            if isinstance(former, Straight):
                former.straight_to = lambda data: self._came(connection, line, data)
            elif isinstance(former, asyncio.StreamReaderProtocol):
                line.set_protocol(Tap(former, lambda data: self._came(connection, line, data)))
        return True

    def _came(self, connection: Connection, line: asyncio.Transport, data: bytes) -> None:
        if not connection.state & ConnectionState.CAN_READ:
            return  # closed from our side
        self.take(events.DataReceived(connection, data))
        if self._is_full() and not line.is_closing():
            line.pause_reading()
            self._start(self._go_on(line))

    async def _go_on(self, line: asyncio.Transport) -> None:
        await self.drain_writers()  # type: ignore[no-untyped-call]
        if not line.is_closing():
            line.resume_reading()

    def _is_full(self) -> bool:
        """Whether somebody does not take what we write fast enough."""
        writers = [each.writer for each in self.transports.values() if isinstance(each.writer, asyncio.StreamWriter)]
        return any(writer.transport.get_write_buffer_size() >= FULL for writer in writers)
