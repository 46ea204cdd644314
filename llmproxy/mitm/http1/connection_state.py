"""The state of one client's connection, which the parts of its layer share."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, layer
from mitmproxy.proxy.context import Context

from llmproxy.core.sessions.exchange import Exchange
from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.mitm.framing import RequestReader
from llmproxy.mitm.http1.incoming import Incoming
from llmproxy.mitm.proxy_context import ProxyContext

Commands = layer.CommandGenerator[None]


@dataclass
class RequestPreparedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """The secrets of a large body are taken out on a thread, and the request waits (`Recorder.request_prepared`)."""

    asked: tuple[Exchange, bytes]
    """With its body."""


@dataclass
class StoreAwaitedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """The store's server is away, and the request waits for it (`Recorder.store_awaited`)."""

    exchange: Exchange


Ending = layer.CommandGenerator[bool]
"""Commands, and then whether what was begun is over."""

LOOK = 0.01
"""Seconds between two looks at what has to be waited for."""


class LayerState(Enum):
    """What the connection is doing."""

    READING = auto()
    REPLAYING = auto()
    ASKED = auto()
    """A question about a session waits until the session's open calls have ended."""
    FORWARDING = auto()
    LINGERING = auto()
    """The answer is sent and nothing more is served, but what the client still sends is read, so that the answer
    reaches it.
    """
    CLOSED = auto()


@dataclass
class ClientState:
    context: Context
    shell: ProxyContext
    incoming: Incoming
    """The request that is being read, answered or passed on; between two of them one without a head."""
    reader: RequestReader = field(default_factory=RequestReader)
    state: LayerState = LayerState.READING
    close_after: bool = False
    """Close the connection when the answer is sent."""
    limit: commands.RequestWakeup | None = None
    """Asked for when a request has begun and is not whole, one at a time."""
    limited: tuple[int, int] = (0, 0)
    """Heads that were taken, and bytes that had come, when it was."""
    seen: int = 0
    """Bytes of the client that have reached the layer."""
    wakeup: commands.RequestWakeup | None = None
    """What is waited for, in the state that it stands in."""

    @property
    def client(self) -> Client:
        """The client's end."""
        return self.context.client

    def send(self, data: bytes) -> commands.SendData:
        """Say that these bytes go to the client."""
        return commands.SendData(self.context.client, data)

    def wake_after(self, seconds: float) -> commands.RequestWakeup:
        """Say that this state goes on in so many seconds."""
        self.wakeup = commands.RequestWakeup(seconds)
        return self.wakeup

    def prepare(self, body: bytes) -> Commands:
        """Wait until the secrets of a large body are taken out on a thread; `Incoming.identify` follows."""
        exchange = self.incoming.exchange
        if exchange is not None and self.shell.engine.is_long(exchange, body):
            yield RequestPreparedHook((exchange, body))

    def identify(self, body: bytes) -> layer.CommandGenerator[Exchange]:
        """Have a request decided whose body is here; what the store's server must say is waited for.

        Raises LLMProxyError: why it cannot be decided.
        """
        yield from self.prepare(body)
        try:
            return self.incoming.identify(body)
        except MachineError:  # for a while, as writing does; nothing was counted yet
            if (exchange := self.incoming.exchange) is None:
                raise
            exchange.request.body = None
            yield StoreAwaitedHook(exchange)
        return self.incoming.identify(body)

    def limit_for(self, seconds: float) -> Commands:
        """A request has begun: look whether it still stands there when its time is over.

        A body's limit gives way to a head's.
        """
        if self.limit is None or seconds < self.limit.delay:
            self.limit, self.limited = commands.RequestWakeup(seconds), (self.reader.heads, self.seen)
            yield self.limit


class Answerer(Protocol):
    """The layer, as its parts see it."""

    def finish(self, data: bytes, *, close: bool, lingering: bool = False) -> Commands:
        """Send a whole answer and stand before the next request, or close.

        `lingering` for a client that may still send.
        """

    def refuse(self, error: LLMProxyError, *, close: bool) -> Commands:
        """Answer the request with an error in its provider's envelope."""

    def read(self) -> Commands:
        """Serve what has arrived, request after request, until something has to be waited for."""

    def send_made(self) -> Commands:
        """Let the client see what an interceptor made in place of its answer."""

    def stand_anew(self) -> Commands:
        """Stand before the next request, and serve what has arrived of it."""
