"""Calls of shims before servers of tools, answered where their bytes arrive: a tool's call waits for each of them.

A shim (`client.tools.shim`) has one connection and sends one call at a time, ``POST /_llmproxy/sessions/NAME/tools``. The control API decides who may
and what comes of it, as for all its calls; here is only the short way to it: whom it has let in with a head is not asked again for the same head on the
same connection. What an answer of a server's has been told with is answered when that answer is stored.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from llmproxy.core.control import answering as control
from llmproxy.core.control.answering import ControlAsked, error_answer
from llmproxy.core.control.tool_lines import ToolLines
from llmproxy.core.control.values import read_object
from llmproxy.core.engine.engine import Engine
from llmproxy.core.sessions.sessions import canonical
from llmproxy.errors import LLMProxyError, RecordingError
from llmproxy.mitm.framing import FramingError, Head, parse_head
from llmproxy.mitm.https.intercept import is_loopback
from llmproxy.mitm.shell import Shell, TellingKept, whole_response
from llmproxy.protocol import CONTROL_PREFIX

log = logging.getLogger(__name__)

_TOLD = re.compile(rb"POST " + re.escape(CONTROL_PREFIX.encode()) + rb"sessions/[^/? ]{1,400}/tools HTTP/1\.1\r\n")
LONGEST_HEAD = 4096
JSON = "application/json"
_WELL = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *([0-9]{1,10})(?=\r\n)")
_MOST_DIGITS = 10
MOST_TOLD = 1 << 30
"""Bytes of a call: the longest line that a shim passes on (`client.tools.server`), as JSON."""


class Send(Protocol):
    """Writes an answer to the client."""

    def __call__(self, whole: bytes, *, over: bool = False) -> None:
        """Write it; `over`: the connection ends then."""


class ToldHead(NamedTuple):
    """The head of such a call."""

    head: Head
    end: int
    """Bytes of it."""
    length: int
    """Bytes of the body."""


class AdmittedHead(NamedTuple):
    """A head that was let in on its connection, around the length of its body."""

    before: bytes
    after: bytes
    """To its end."""
    head: Head
    session: str
    """Its name, as the engine has it."""

    def find_again(self, data: bytes) -> ToldHead | None:
        """Return the same head with another length, if bytes begin with it."""
        at = len(self.before)
        stop = data.find(b"\r\n", at, at + _MOST_DIGITS + 1) if data.startswith(self.before) else -1
        end = stop + len(self.after)
        if stop < 0 or not (digits := data[at:stop]).isdigit() or data[stop:end] != self.after:
            return None
        return ToldHead(self.head, end, int(digits))


def is_told(head: bytes) -> bool:
    """Tell whether a head is that of such a call."""
    return _TOLD.match(head) is not None


def find_head(data: bytes) -> ToldHead | None:
    """Return the head that bytes begin with; None if this is nothing for here, or more has to come."""
    if not is_told(data) or (end := data.find(b"\r\n\r\n", 0, LONGEST_HEAD) + 4) < 4:
        return None
    try:
        head = parse_head(data[:end])
    except FramingError:
        return None
    plain = head.keep_alive and not (head.expects or head.upgrade)
    return ToldHead(head, end, head.length) if plain and head.length is not None else None


class ShimAnswer(NamedTuple):
    """What became of such a call."""

    later: bool = False
    """It is answered when what it told is stored."""
    well: bool = False
    """Who asks was let in, and the call was none to complain of."""


def admit(told: ToldHead, raw: bytes) -> AdmittedHead | None:
    """Return what is remembered of a head that was let in, of these bytes; None if its length does not stand at one place."""
    places = [match.span(1) for match in _LENGTH.finditer(raw)]
    if len(places) != 1:
        return None
    (start, stop), name = places[0], told.head.target.removeprefix(CONTROL_PREFIX).split("/")[1]
    return AdmittedHead(raw[:start], raw[stop:], told.head, canonical(unquote(name)))


def answer(shell: Shell, head: Head, body: bytes, who: str | AdmittedHead, send: Send) -> ShimAnswer:
    """Serve a call of `who`, at this address or let in before: `send` what it is answered now, or later.

    Never raises: nobody may serve the same call again.
    """
    lines = shell.lines
    try:
        if lines is not None:
            lines.heard = None
        if isinstance(who, AdmittedHead) and lines is not None:
            status, data = _serve(shell.engine, lines, who.session, body)
        else:
            local = is_loopback(str(who)) and not shell.exposed
            asked = ControlAsked(head.method, head.target, head.headers, body, local, guard=shell.guard)
            status, data, _ = control.answer(
                shell.engine, asked, token=shell.token, page_token=shell.page_token, lines=lines
            )
    except Exception:
        log.exception("llmproxy failed while serving a server of tools")
        send(whole_response(500, (), b"", close=True), over=True)
        return ShimAnswer()
    kept = shell.take_kept()
    if kept is not None and not kept.over:
        kept.then = lambda: send(_write_answer(kept, status, data))
        return ShimAnswer(later=True, well=True)
    send(_write_answer(kept, status, data))
    if lines is not None and lines.heard is not None:
        lines.heard.catch_up()
    return ShimAnswer(well=status == 200)


def _serve(engine: Engine, lines: ToolLines, session: str, body: bytes) -> tuple[int, bytes]:
    """Serve a call as the control API does: status and body."""
    try:
        return 200, control.write(lines.serve(engine, session, read_object(body)))
    except LLMProxyError as error:
        return error_answer(error)[:2]


def _write_answer(kept: TellingKept | None, status: int, data: bytes) -> bytes:
    if status == 200 and (kept is None or not kept.why):
        return _WELL % (len(data), data)
    return whole_kept(kept, (status, data, JSON), close=False)


def whole_kept(kept: TellingKept | None, said: tuple[int, bytes, str], *, close: bool, method: str = "POST") -> bytes:
    """Write what is answered when what was told is stored, or could not be; `said`: status, body and content type if it is."""
    status, data, kind = said if kept is None or not kept.why else error_answer(RecordingError(kept.why))
    return whole_response(status, (("content-type", kind),), data, close=close, method=method)
