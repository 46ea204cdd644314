"""The scripted provider: a real server on a real port that plays one dialogue and refuses everything else.

It runs an event loop in a thread of its own:

    with Provider([step(user="hi", say="hello")]) as p:
        ...                      # base URL: p.url (OpenAI's is p.url + "/v1")
    # leaving the block raises AssertionError if a request was not expected; p.finish() also wants every step played

A request that no step expects gets 599 and a text that says why, and is remembered. Calls and connections are counted here, at
the upstream, so that no mistake of the proxy can hide one. With `tls=True` it speaks HTTPS with a certificate of a throw-away CA
(`p.ca_pem`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from .answer import Answer, Piece
from .dialects import render
from .script import Play, Script, Step
from .seen import Seen
from .wire import HEAD_LIMIT, Gone, read_request, send

REFUSED = 599
"""A status that no provider sends, so that a refusal cannot be taken for an answer."""


class Provider:
    """A scripted upstream. Not reusable: one instance, one dialogue."""

    def __init__(
        self,
        script: Script | Iterable[Step] = (),
        *,
        ordered: bool = True,
        tls: bool = False,
        port: int = 0,
        check: bool = True,
    ) -> None:
        """Prepare to play `script` on `port` (0: any free one); `check` makes leaving the block fail after a refusal."""
        self.play = Play(script if isinstance(script, Script) else Script(tuple(script), ordered))
        self.requests: list[Seen] = []
        self.connections = 0
        self.left_early = 0
        """How many answers could not be sent to their end because the client was gone."""
        self.ca_pem: Path | None = None
        self._check = check
        self._tls = tls
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: ssl.SSLContext | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted provider", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def refused(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.refused]

    def header_names(self) -> set[str]:
        """Names (lower case) of all header fields that ever arrived."""
        return {name.lower() for seen in self.requests for name, _ in seen.headers}

    def finish(self) -> None:
        """Raise AssertionError if a request was not expected, or a step was not played."""
        self.check_refused()
        left = self.play.unplayed()
        assert not left, f"{len(left)} steps of the dialogue were not played, first: {left[0]}"

    def check_refused(self) -> None:
        texts = [f"{seen.method} {seen.target}\n{seen.refused}" for seen in self.refused]
        assert not texts, "the provider refused what it did not expect:\n" + "\n".join(texts)

    def start(self) -> Self:
        """Listen; returns once connections are accepted."""
        if self._tls:
            from .tls import server_context

            self._context, self.ca_pem = server_context()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def stop(self) -> None:
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop, and fail if a request was refused (unless something else failed already)."""
        self.stop()
        if kind is None and self._check:
            self.check_refused()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, limit=HEAD_LIMIT, backlog=512, ssl=self._context
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._exchange(reader, writer, number):
                pass
        except Gone:
            pass
        except ConnectionError:
            self.left_early += 1
        except asyncio.CancelledError:
            pass  # we are stopping; a cancelled handler would be logged as an error by asyncio
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        method, target, version, headers, body = await read_request(reader, writer)
        seen = Seen(method, target, headers, body, connection)
        step = self.play.next(seen)
        if isinstance(step, str):
            self.requests.append(replace(seen, refused=step))
            text = f"scripted provider: unexpected {method} {target}\n{step}\n"
            answer = Answer(
                REFUSED, (("content-type", "text/plain"), ("x-should-retry", "false")), (Piece(text.encode()),)
            )
        else:
            self.requests.append(seen)
            answer = step.answer if isinstance(step.answer, Answer) else render(step.answer, seen, len(self.requests))
        goes_on = await send(writer, answer, method)
        wants_more = version == "HTTP/1.1" and (seen.header("connection") or "").lower() != "close"
        return goes_on and wants_more
