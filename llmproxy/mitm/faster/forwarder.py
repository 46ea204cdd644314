"""mitmproxy's HTTP layer with a short way for the pieces of an answer.

mitmproxy takes each piece through its stream and its connection to the client, which look up the framing and a dozen options again. Once
the head has been passed on there is nothing to be decided any more: the piece is noted by the tap and goes out in the answer's framing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mitmproxy.proxy import commands, events, layer, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode, HttpStream
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mitmproxy import http


class Forwarder(layers.HttpLayer):
    """One client connection's requests, on their way to upstreams."""

    def __init__(self, context: Context, mode: HTTPMode) -> None:
        """Wait for the first request."""
        super().__init__(context, mode)
        self._short = not context.options.store_streamed_bodies  # who wants that (in `mitmdump`) gets it

    def event_to_child(self, child: layer.Layer | HttpStream, event: events.Event) -> layer.CommandGenerator[None]:
        """Pass an event to a stream or a connection, as mitmproxy does, unless it is a piece of an answer that streams."""
        if type(event) is ResponseData and isinstance(child, HttpStream) and self._streams(child):
            response = cast("http.Response", child.flow.response)
            made = cast("Callable[[bytes], bytes | Iterable[bytes]]", response.stream)(event.data)
            chunked = "chunked" in response.headers.get("transfer-encoding", "").lower()
            for data in (made,) if isinstance(made, bytes) else made:
                yield commands.SendData(self.context.client, b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        else:
            yield from super().event_to_child(child, event)

    def _streams(self, stream: HttpStream) -> bool:
        """Tell whether a stream does nothing but pass the answer on: its head is sent, no hook is waited for, nothing is kept."""
        return (
            self._short
            and stream.server_state == stream.state_stream_response_body
            and stream._paused is None  # noqa: SLF001 - mitmproxy's own layers look at it too
            and callable(cast("http.Response", stream.flow.response).stream)
            and isinstance(self.connections[self.context.client], Http1Server)
        )
