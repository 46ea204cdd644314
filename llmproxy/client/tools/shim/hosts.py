"""Who decides for the shim: the proxy that runs, asked over its control API, or an engine of our own on the store.

Both take the lines of one client and keep what a server answers; `core.control.tool_lines` says what the calls mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from llmproxy.client.tools.shim.wire import ControlWire
from llmproxy.errors import MachineError
from llmproxy.protocol import CONTROL_PREFIX
from llmproxy.tool_frames import DONE, FAILED, HEARD, LINE, LONGEST, frame, read_heard, write_answer

TIMEOUT = 60.0
"""Seconds."""


class HeardLine(NamedTuple):
    """What becomes of a line of the client's."""

    out: bytes
    """For the client."""
    forward: int | None
    """The line goes to the server, and its answer is told under this number."""
    late: float = 0
    """Seconds after which `out` goes out, while everything else goes on."""
    gone: bool = False
    """A fault on purpose: the server ends, as far as its client can see."""


class ToolHost(Protocol):
    def hear(self, line: bytes) -> HeardLine:
        """Say what becomes of a line of the client's. Raises LLMProxyError."""

    def hear_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        """Hear what the server answered to a forwarded message, until the client cancelled it if it was `left`. Raises LLMProxyError: it is not kept."""

    def catch_up(self) -> None:
        """Do what of the last call could wait until line or answer had gone on. Raises LLMProxyError."""

    def hear_loss(self, number: int, why: str) -> None:
        """Hear that it did not answer."""

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        """Hear that the client has gone, and what the server said unasked."""


class ProxyHost:
    """A proxy that runs. One call at a time; the connection stays open."""

    def __init__(self, url: str, session: str, server: str, connection: str, secrets: Sequence[str] = ()) -> None:
        """Speak for one client of `server`; `secrets` are values that must not be kept."""
        parts = urlsplit(url)
        self._url = url
        self._wire = ControlWire(parts.hostname or "127.0.0.1", parts.port or 80, TIMEOUT)
        self._path = f"{CONTROL_PREFIX}sessions/{quote(session, safe='')}/tools"
        self._about: dict[str, Any] = {"connection": connection, "server": server}
        self._secrets = list(secrets)
        self._known: dict[str, bool] = {"held": True}
        """Says at first that we are gone when our connection is, and then that the proxy knows us: another one that was started in its place must not
        take us for a new client."""

    def hear(self, line: bytes) -> HeardLine:
        if self._is_framed(len(line)):
            said = self._say(frame(LINE, line), HEARD)
            try:
                return HeardLine(*read_heard(said))
            except ValueError as error:
                raise MachineError(f"the proxy at {self._url} answers in frames of another kind: {error}") from error
        more = {"secrets": self._secrets} if self._secrets else {}
        told = self._ask({"line": line.decode("utf-8", "surrogatepass"), **more, **self._known})
        self._secrets, self._known = [], {"known": True}
        out = str(told["out"]).encode("utf-8", "surrogatepass")
        return HeardLine(out, told["forward"], told.get("late", 0), told.get("gone") is True)

    def hear_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        if not left and self._is_framed(sum(len(line) for _, line in lines)):
            self._say(write_answer(number, lines), DONE)
            return
        self._ask({"number": number, "lines": _plain(lines)} | ({"left": True} if left else {}))

    def catch_up(self) -> None:
        """Do nothing: the proxy does it."""

    def hear_loss(self, number: int, why: str) -> None:
        self._ask({"number": number, "lost": why})

    def end(self, unasked: Sequence[tuple[int, bytes]]) -> None:
        self._ask({"end": True, "lines": _plain(unasked)})
        self._wire.close()

    def _is_framed(self, size: int) -> bool:
        """Tell whether so many bytes may be said in a frame."""
        return self._wire.framed and size <= LONGEST and not self._wire.has_ended()

    def _say(self, said: bytes, wanted: int) -> bytes:
        try:
            kind, data = self._wire.say(said)
        except OSError as error:
            raise MachineError(f"the proxy at {self._url} does not answer: {error}") from error
        if kind == FAILED:
            raise MachineError(data.decode("utf-8", "replace"))
        if kind != wanted:
            raise MachineError(f"the proxy at {self._url} answers in frames of another kind: {kind}")
        return data

    def _ask(self, what: Mapping[str, object]) -> dict[str, Any]:
        try:
            status, data = self._wire.post(self._path, json.dumps({**self._about, **what}).encode())
            value = json.loads(data)
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise MachineError(f"the proxy at {self._url} does not answer: {why}") from error
        if status != 200:
            said = value.get("error", {}) if isinstance(value, dict) else {}
            raise MachineError(str(said.get("message", f"the proxy at {self._url} says {status}")))
        return dict(value)


def _plain(lines: Sequence[tuple[int, bytes]]) -> list[tuple[int, str]]:
    return [(number, line.decode("utf-8", "surrogatepass")) for number, line in lines]
