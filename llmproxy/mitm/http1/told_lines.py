"""Calls of shims before servers of tools, answered where their bytes arrive: a tool's call waits for each of them.

A shim (`client.tools.shim`) has one connection and sends one call at a time, ``POST /_llmproxy/sessions/NAME/tools``. The control API decides who may
and what comes of it, as for all its calls; here is only the short way to it. Who was let in so, and stays on its connection, may say what follows in
frames (`llmproxy.tool_frames`). What an answer of a server's has been told with is answered when that answer is stored.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple, Protocol

from llmproxy.core.control import answering as control
from llmproxy.core.control.answering import ControlAsked, error_answer
from llmproxy.core.control.tool_lines import ToolLine
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import LLMProxyError, RecordingError, unsign_text
from llmproxy.mitm.framing import FramingError, Head, parse_head
from llmproxy.mitm.https.intercept import is_loopback
from llmproxy.mitm.shell import Shell, TellingKept, whole_response
from llmproxy.protocol import CONTROL_PREFIX
from llmproxy.tool_frames import ANSWER, DONE, FAILED, LINE, OFFERED, frame, read_answer, write_heard

log = logging.getLogger(__name__)

_TOLD = re.compile(rb"POST " + re.escape(CONTROL_PREFIX.encode()) + rb"sessions/[^/? ]{1,400}/tools HTTP/1\.1\r\n")
LONGEST_HEAD = 4096
MOST_TOLD = 1 << 30
"""Bytes of a call: the longest line that a shim passes on (`client.tools.server`), as JSON."""


class Send(Protocol):
    """Writes an answer to the client."""

    def __call__(self, whole: bytes, *, over: bool = False) -> None:
        """Write it; `over`: the connection ends then."""


class ToldHead(NamedTuple):
    head: Head
    end: int
    """Bytes of it."""
    length: int
    """Bytes of the body."""


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


def answer(shell: Shell, head: Head, body: bytes, peer: str, send: Send) -> bool:
    """Serve a call: `send` what it is answered now, or later; tell whether it is later.

    Never raises: nobody may serve the same call again.
    """
    lines = shell.lines
    try:
        if lines is not None:
            lines.heard = None
        asked = ControlAsked(
            head.method, head.target, head.headers, body, is_loopback(peer) and not shell.exposed, guard=shell.guard
        )
        status, data, kind = control.answer(
            shell.engine, asked, token=shell.token, page_token=shell.page_token, lines=lines
        )
    except Exception:
        log.exception("llmproxy failed while serving a server of tools")
        send(whole_response(500, (), b"", close=True), over=True)
        return False
    kept = shell.take_kept()
    if kept is None or kept.over:
        line = None if lines is None else lines.heard
        more = ((OFFERED, "1"),) if line is not None and line.held else ()
        send(whole_kept(kept, (status, data, kind), close=False, more=more))
        if line is not None:
            line.catch_up()
        return False
    kept.then = lambda: send(whole_kept(kept, (status, data, kind), close=False))
    return True


def answer_frame(shell: Shell, line: ToolLine, kind: int, data: bytes, send: Send) -> bool:
    """Serve a frame (`llmproxy.tool_frames`) of the shim of a line: `send` what it is answered now, or later; tell whether later. Never raises."""
    said = frame(DONE)
    try:
        if kind == LINE:
            heard = line.hear(data)
            said = write_heard(heard.out, heard.forward, heard.late, gone=heard.gone)
        elif kind == ANSWER:
            line.hear_answer(*read_answer(data))
        else:
            said = frame(FAILED, b"a frame of a kind that says nothing")
    except (LLMProxyError, ValueError) as error:
        said = frame(FAILED, unsign_text(error).encode("utf-8", "backslashreplace"))
    except Exception:
        log.exception("llmproxy failed while serving a server of tools")
        send(b"", over=True)
        return False
    kept = shell.take_kept()
    if kept is not None and not kept.over:
        kept.then = lambda: send(_of_kept(kept, said))
        return True
    send(_of_kept(kept, said))
    line.catch_up()
    return False


def _of_kept(kept: TellingKept | None, said: bytes) -> bytes:
    return said if kept is None or not kept.why else frame(FAILED, kept.why.encode("utf-8", "backslashreplace"))


def whole_kept(
    kept: TellingKept | None, said: tuple[int, bytes, str], *, close: bool, method: str = "POST", more: Headers = ()
) -> bytes:
    """Write what is answered when what was told is stored, or could not be; `said`: status, body and content type if it is."""
    status, data, kind = said if kept is None or not kept.why else error_answer(RecordingError(kept.why))
    return whole_response(status, (("content-type", kind), *more), data, close=close, method=method)
