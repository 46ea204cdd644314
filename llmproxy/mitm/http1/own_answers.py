"""Answers of our own: the control API and our page in a browser. Some wait, for open calls or for the store."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from dataclasses import dataclass

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands

from llmproxy.core.control import answering as control
from llmproxy.core.control.answering import ControlRequest, error_answer
from llmproxy.core.control.table import ControlledProxy
from llmproxy.errors import RecordingError
from llmproxy.mitm.framing import Head
from llmproxy.mitm.http1.connection_state import LOOK, Answerer, ClientState, Commands, LayerState
from llmproxy.mitm.http1.incoming import opens_root
from llmproxy.mitm.intercept import is_loopback
from llmproxy.mitm.proxy_context import whole_response
from llmproxy.protocol import CONTROL_PREFIX, UI_PREFIX
from llmproxy.ui.answers import PageAnswer, fields

PATIENCE = 2.0
"""Seconds that a question about a session waits for the session's open calls to end."""
LONGEST_TOOL_CALL = 1 << 30
"""Bytes of a call of a shim's: the longest line that it passes on (`client.tools.shim`), as JSON."""
_TOOL_CALL = re.compile(re.escape(CONTROL_PREFIX) + r"sessions/[^/?]+/tools")


@dataclass
class AnswerStoredHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """An answer is being stored, and whoever told it waits for that (`Recorder.answer_stored`)."""

    stored: asyncio.Future[str]


def is_tool_call(head: Head) -> bool:
    """Return whether a request is a call of a shim before a server of tools."""
    return head.method == "POST" and _TOOL_CALL.fullmatch(head.target) is not None


class OwnAnswers:
    """What one connection asks us, one question at a time."""

    def __init__(self, here: ClientState, layer: Answerer) -> None:
        self._here, self._layer = here, layer
        self.reset()

    def reset(self) -> None:
        """Stand before the next question."""
        self._asked: float | None = None
        self._viewed: Future[PageAnswer] | None = None
        """What our page in a browser is answered."""

    def answer(self, head: Head, body: bytes) -> Commands:
        """Answer, now or when what has to be waited for is over."""
        here, shell = self._here, self._here.shell
        local = is_loopback(here.client.peername[0]) and not shell.exposed
        scheme = "https" if here.client.tls_established else "http"
        asked = ControlRequest(
            head.method, head.target, head.headers, body, loopback=local, guard=shell.guard, scheme=scheme,
            connection=here.client.id,
        )  # fmt: skip
        if opens_root(head) or f"{head.target.partition('?')[0]}/".startswith(UI_PREFIX):
            yield from self._view(head, asked)
            return
        session, now = control.session_of(shell.engine, asked), shell.engine.clock()
        if session is not None and shell.busy(session):
            self._asked = now if self._asked is None else self._asked
            if now - self._asked < PATIENCE:
                yield from self._wait()
                return
        waited = here.state is LayerState.ASKED
        status, data, kind = self._ask(asked)
        if (stored := shell.take_kept()) is not None:
            yield AnswerStoredHook(stored)
            if why := stored.result():
                status, data, kind = error_answer(RecordingError(why))
        whole = whole_response(status, (("content-type", kind),), data, close=not head.keep_alive, method=head.method)
        yield from self._layer.finish(whole, close=not head.keep_alive)
        if waited:
            yield from self._layer.read()

    def _wait(self) -> Commands:
        self._here.state = LayerState.ASKED
        yield self._here.wake_after(LOOK)

    def client_left(self) -> None:
        """Hear that the connection has ended; where it is idle, and we end it, its shim goes on with another one."""
        here = self._here
        if here.client.state is ConnectionState.CAN_WRITE and here.shell.lines is not None:
            here.shell.lines.on_connection_end(here.client.id)

    def _ask(self, asked: ControlRequest) -> tuple[int, bytes, str]:
        """Serve a call of the control API."""
        shell = self._here.shell
        proxy = ControlledProxy(
            token=shell.token, page_token=shell.page_token, ca=shell.ca, ca_bundle=shell.ca_bundle,
            spans_of=shell.spans_of, stop=shell.stop, lines=shell.lines,
        )  # fmt: skip
        return control.answer(shell.engine, asked, proxy)

    def _view(self, head: Head, asked: ControlRequest) -> Commands:
        """Answer our page in a browser, when its thread has the answer."""
        waited = self._viewed is not None
        self._viewed = self._viewed or self._here.shell.view(asked)
        if not self._viewed.done():
            yield from self._wait()
            return
        answer = self._viewed.result()
        close = not head.keep_alive
        whole = whole_response(answer.status, fields(answer), answer.body, close=close, method=head.method)
        yield from self._layer.finish(whole, close=close)
        if waited:
            yield from self._layer.read()
