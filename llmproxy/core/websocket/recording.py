"""A WebSocket conversation as it passes by, written down: what `core.sessions.record` is for one answer.

It takes the place of the exchange's `Recording` once the upstream has switched protocols, and gives the same thing in the end: a
`Response`, here of status 101 with the conversation as its body (`core.traffic.frames`). The client's messages are requests, so they are
redacted as requests are, before they become part of that body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.core.dialects.streams import parse_json
from llmproxy.core.secrets.kinds import SHORTEST
from llmproxy.core.sessions.record import Recording
from llmproxy.core.traffic.frames import CONTENT_TYPE, CUT, SWITCHING, Frame, chunks
from llmproxy.core.traffic.interaction import Ending, Headers, Response, without

if TYPE_CHECKING:
    from llmproxy.core.providers.table import Family

Redact = Callable[[str | bytes], str | bytes]
"""Takes the secrets out of one message of the client's."""

_NOT_KEPT = ("connection", "upgrade", "content-length", "content-type", "transfer-encoding",
             "sec-websocket-accept", "sec-websocket-extensions")  # fmt: skip
"""Of the upgrade's answer: this connection's own business."""

_PLACEHOLDER = re.compile(r"\[REDACTED-\d+\]")

_TERMINAL = frozenset({"response.done", "response.completed", "response.failed", "response.incomplete",
                       "response.cancelled", "error"})  # fmt: skip
"""Types of the event after which the server owes nothing (OpenAI's Realtime and Responses)."""


class FrameRecording(Recording):
    """One conversation on its way; call `message` for each, then `closed`."""

    def __init__(self, redact: Redact, offset: int, headers: Headers) -> None:
        """Begin with the upgrade's answer, `offset` microseconds after the release."""
        super().__init__()
        self._redact, self._frames = redact, list[Frame]()
        kept = (*without(headers, *_NOT_KEPT), ("content-type", CONTENT_TYPE))
        super().head(offset, SWITCHING, "Switching Protocols", kept)
        self.is_closing: Callable[[], bool] = lambda: False
        """Tells whether one side has begun to close: what reaches the client from then on is the end."""
        self.is_breaking: Callable[[], bool] = lambda: False
        """Tells whether one side has gone without a closing handshake: then nobody says goodbye to the other."""
        self.is_stored = False
        """The end may reach the client."""

    @property
    def whole(self) -> bool:
        """Whether only the end is to come."""
        return self.is_closing()

    @property
    def holds_end(self) -> bool:
        """Whether what comes next is the end."""
        return self.is_closing()

    @property
    def first_offset(self) -> int | None:
        """Microseconds until the server's first message, or the upgrade's answer where it said nothing."""
        return next((frame.at for frame in self._frames if not frame.client and frame.close is None), self._head_offset)

    def message(self, offset: int, data: str | bytes, *, client: bool) -> None:
        self._frames.append(Frame(offset, client, data))

    def note_close(self, offset: int, code: int, reason: str, *, client: bool) -> None:
        """Note the end, and who began it."""
        self._frames.append(Frame(offset, client, reason, code))

    def end(self, family: Family, operation: str, *, stream: bool, proper: bool) -> Response:  # noqa: ARG002 - the same for all of its kind
        """Close the recording. Not quick: off the event loop."""
        frames = self._redact_frames(list(self._frames))
        return Response(
            status=self.status,
            reason=self._reason,
            headers=self._headers,
            chunks=chunks(frames),
            ending=ending(frames),
            head_offset=self._head_offset,
            chunked=True,
        )

    def _redact_frames(self, frames: list[Frame]) -> list[Frame]:
        """Take the secrets out of what the client said, and those same out of what the server said."""
        kept, secrets = [], dict[str, None]()
        for frame in frames:
            data = self._redact(frame.data) if frame.client and frame.data else frame.data
            if data != frame.data:
                secrets.update(dict.fromkeys(_taken_out(parse_json(frame.data), parse_json(data))))
            kept.append(replace(frame, data=data))
        if secrets:
            kept = [frame if frame.client else replace(frame, data=_without(frame.data, secrets)) for frame in kept]
            self.overwritten = any(
                old.data != new.data for old, new in zip(frames, kept, strict=True) if not old.client
            )
        return kept


def _taken_out(plain: object, redacted: object) -> Iterator[str]:
    """Yield the strings that were replaced as a whole: a session's settings are said again by the server."""
    if isinstance(plain, dict) and isinstance(redacted, dict):
        for name, value in plain.items():
            yield from _taken_out(value, redacted.get(name))
    elif isinstance(plain, list) and isinstance(redacted, list):
        for one, other in zip(plain, redacted, strict=False):
            yield from _taken_out(one, other)
    elif (
        isinstance(plain, str)
        and isinstance(redacted, str)
        and len(plain) >= SHORTEST
        and _PLACEHOLDER.fullmatch(redacted)
    ):
        yield plain


def _without(data: str | bytes, secrets: Iterable[str]) -> str | bytes:
    """Overwrite secrets with as many bytes, as in any answer."""
    text = data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data
    for secret in secrets:
        for form in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            text = text.replace(form, "REDACTED".ljust(len(form.encode()), "*")[: len(form.encode())])
    return text.encode("utf-8", "surrogateescape") if isinstance(data, bytes) else text


def ending(frames: list[Frame]) -> Ending:
    """Decide whether a conversation is whole: it was closed properly, or its client left when the server owed it nothing."""
    last = frames[-1] if frames else None
    if last is None or last.close is None:
        return Ending.CUT
    if last.close != CUT:
        return Ending.COMPLETE
    said = frames[-2] if len(frames) > 1 else None
    settled = said is not None and not said.client and _is_terminal(said.data)
    return Ending.COMPLETE if last.client and settled else Ending.CUT


def _is_terminal(data: str | bytes) -> bool:
    event = parse_json(data)
    if not isinstance(event, dict):
        return False
    content = event.get("serverContent")  # Gemini Live
    return event.get("type") in _TERMINAL or (isinstance(content, dict) and content.get("turnComplete") is True)
