"""Replay of a recorded WebSocket conversation to a live client, message by message. No I/O and no clock here.

The client's n-th message is compared with the recorded client's n-th, both in canonical form (`FrameCanonicalizer`).
The server's messages between the recorded client messages n and n+1 are due after message n has matched, with the
recorded delays, which the proxy sends (`mitm.websockets`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from llmproxy.advice import format_llmproxy_command
from llmproxy.core.keys.built_in_body_rules import NOTHING, RESPONSES, KeyMemberRule, KeyObjectRules, MemberAction
from llmproxy.core.keys.normalize import BodyMemberRuleApplier, MadeBy
from llmproxy.core.keys.user_rules import Rules, apply_normalize_rules, compile_normalize_rules
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.secrets.secret_kinds import SHORTEST
from llmproxy.core.sessions.exchange import ArrivingResponseCollector
from llmproxy.core.traffic.canonical_json import LossyJsonError, dump, parse_json_or_none, parse_json_or_raise_if_lossy
from llmproxy.core.traffic.interaction import Ending, Headers, Response, remove_headers
from llmproxy.core.traffic.json_diff import Difference, clip, list_differences, list_unequal_values
from llmproxy.core.traffic.websocket_frames import (
    CONTENT_TYPE,
    CUT,
    SWITCHING,
    WebSocketFrame,
    encode_websocket_frames_as_chunks,
)
from llmproxy.errors import printable
from llmproxy.protocol import SHOWN_KEY

Due = tuple[int, WebSocketFrame]
"""Microseconds after the preceding message, and the message."""

_EVENT_ID = {
    "event_id": KeyMemberRule(MemberAction.IGNORE, "SDKs make up a random one for the server's error messages")
}
_ID = KeyMemberRule(MemberAction.REFER, "names an item of this conversation")
_TOOLS = KeyMemberRule(MemberAction.WALK, "name MCP servers", KeyObjectRules({"tools": RESPONSES.members["tools"]}))
REALTIME = KeyObjectRules(
    {
        **_EVENT_ID,
        **dict.fromkeys(("session", "response"), _TOOLS),
        "item": KeyMemberRule(
            MemberAction.WALK,
            "clients name items randomly",
            KeyObjectRules({"id": KeyMemberRule(MemberAction.DECLARE, "random, yet it says which")}),
        ),
        "item_id": _ID,
        "previous_item_id": _ID,
    }
)
SHAPES: dict[tuple[str, str], KeyObjectRules] = {
    ("openai", "realtime"): REALTIME,
    ("openai", "responses"): KeyObjectRules({**RESPONSES.members, **_EVENT_ID}, nulls=True),
}
"""Ignored parts of a client's messages, by dialect and operation; for others only their JSON is normalised."""

_COMPARED = 200
"""Maximum number of recorded messages searched for the nearest."""
_ENOUGH = 50


@dataclass(frozen=True, slots=True)
class NormalizedWebSocketMessage:
    body: bytes
    """What is compared: the kind of the message, and its content."""
    tree: object
    """The JSON value; for other text the text itself; for bytes a description."""


class FrameCanonicalizer:
    def __init__(self, family: Family, operation: str, rules: Rules, made_by: MadeBy) -> None:
        self._walk, self._rules = BodyMemberRuleApplier(made_by), compile_normalize_rules(rules)
        self._shape = SHAPES.get((family, operation.partition("/")[0]), NOTHING)

    def __call__(self, data: str | bytes) -> NormalizedWebSocketMessage:
        kind = b"text " if isinstance(data, str) else b"binary "
        try:
            tree = parse_json_or_raise_if_lossy(data)
        except LossyJsonError:
            if isinstance(data, str):
                return NormalizedWebSocketMessage(kind + data.encode("utf-8", "surrogatepass"), data)
            return NormalizedWebSocketMessage(kind + data, f"{len(data)} bytes with sha256 {sha256(data).hexdigest()}")
        if isinstance(tree := apply_normalize_rules(tree, self._rules), dict):
            self._walk.apply_shape(tree, self._shape)
        return NormalizedWebSocketMessage(kind + dump(tree), tree)


@dataclass(frozen=True, slots=True)
class WebSocketMismatch:
    number: int
    form: NormalizedWebSocketMessage
    expected: int
    nearest: int | None
    """Number of the most similar recorded message; None if none was recorded."""
    differences: tuple[Difference, ...]
    """Differences from the nearest to this one."""


class FramePlayer:
    def __init__(self, frames: Sequence[WebSocketFrame], canon: Callable[[], FrameCanonicalizer]) -> None:
        self._frames, self._canon = frames, canon
        self._there, self._here = canon(), canon()
        self._at = 0
        self.heard = 0

    @property
    def recorded_client_message_count(self) -> int:
        return sum(frame.client and frame.close is None for frame in self._frames)

    @property
    def is_over(self) -> bool:
        return not any(frame.close is None or not frame.client for frame in self._frames[self._at :])

    @property
    def server_speaks_first(self) -> bool:
        return bool(self._frames) and not self._frames[0].client

    def on_message(self, data: str | bytes) -> list[Due] | WebSocketMismatch:
        """Handle the client's next message (redacted); return the server's messages that follow it."""
        form, number = self._here(data), self.heard + 1
        frame = self._frames[self._at] if self._at < len(self._frames) else None
        if frame is None or not frame.client or frame.close is not None or self._there(frame.data).body != form.body:
            return self._build_mismatch(number, form)
        self.heard = number
        self._at += 1
        return self.take_server_frames(frame.at)

    def take_server_frames(self, since: int) -> list[Due]:
        """Return the server's next messages; `since`: microseconds of the event before them, first of the upgrade."""
        due = []
        while self._at < len(self._frames) and not (frame := self._frames[self._at]).client:
            due.append((max(0, frame.at - since), frame))
            self._at += 1
        return due

    def _build_mismatch(self, number: int, form: NormalizedWebSocketMessage) -> WebSocketMismatch:
        canon = self._canon()
        forms = [canon(frame.data) for frame in self._frames if frame.client and frame.close is None]
        order = sorted(range(len(forms)), key=lambda index: abs(index - number + 1))  # prefers the same position
        near = min(order[:_COMPARED], key=lambda index: _measure_distance(forms[index], form), default=None)
        places = () if near is None else tuple(list_differences(forms[near].tree, form.tree))
        return WebSocketMismatch(number, form, len(forms), None if near is None else near + 1, places)


def _measure_distance(old: NormalizedWebSocketMessage, new: NormalizedWebSocketMessage) -> int:
    if old.body == new.body:
        return 0
    if not isinstance(old.tree, dict) or not isinstance(new.tree, dict):
        return _ENOUGH + 1
    if old.tree.get("type") != new.tree.get("type"):
        return _ENOUGH
    return min(_ENOUGH, 1 + len(list_unequal_values(old.tree, new.tree, _ENOUGH)))


MISMATCH = 4404
"""Close code: 4000-4999 are for applications (RFC 6455 section 7.4.2), and 404 is the status of a miss over HTTP."""
LONGEST_REASON = 123
"""Bytes of a close reason (RFC 6455 section 5.5: a control frame has 125, of which two are the code)."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FrameMissExplanation:
    reason: str
    text: str
    data: dict[str, object]
    """Plain values for the journal."""


def explain_frame_miss(
    context: MissContext, recording: int, mismatch: WebSocketMismatch, *, records: bool = False
) -> FrameMissExplanation:
    text = "\n".join(_format_miss_lines(context, recording, mismatch, records=records))
    differences = [each.to_dict() for each in mismatch.differences]
    nearest = {"id": recording, "message": mismatch.nearest, "differences": differences}
    data = {**asdict(context), "reason": "message", "message": mismatch.number, "nearest": nearest, "text": text}
    return FrameMissExplanation(_format_reason(recording, mismatch), text, data)


def _format_reason(recording: int, mismatch: WebSocketMismatch) -> str:
    end = "; see llmproxy why"
    start = f"llmproxy: message {mismatch.number} is not in recording #{recording}"
    if mismatch.nearest is None:
        return clip_close_reason(f"{start}, which has none{end}", LONGEST_REASON)
    which = f"{mismatch.nearest} of {mismatch.expected}"
    if not mismatch.differences:
        return clip_close_reason(f"{start}; equals its message {which}{end}", LONGEST_REASON)
    near = f"; nearest {which} differs at "
    room = LONGEST_REASON - len((start + near + end).encode())
    return start + near + clip_close_reason(printable(mismatch.differences[0].path), room) + end


def clip_close_reason(text: str, size: int) -> str:
    """Return the start of a text: at most `size` bytes of UTF-8, whole characters only."""
    data = text.encode()
    return text if len(data) <= size else data[: max(0, size - 3)].decode(errors="ignore") + "…"


def _describe_cause(recording: int, mismatch: WebSocketMismatch) -> str:
    if mismatch.nearest is None:
        return f"the recorded client (#{recording}) said nothing"
    if not mismatch.differences:
        return f"recording #{recording} has it as message {mismatch.nearest}"
    first = mismatch.differences[0]
    looks = f", which looks like {first.looks}" if first.looks else ""
    which = "its message" if mismatch.nearest == mismatch.number else "the nearest is message"
    beyond = mismatch.number > mismatch.expected
    more = f", after {mismatch.expected} messages recording #{recording} has no more" if beyond else ""
    return f"{which} {mismatch.nearest} of recording #{recording} differs at {clip(first.path, 80)}{looks}{more}"


def _format_miss_lines(
    context: MissContext, recording: int, mismatch: WebSocketMismatch, *, records: bool
) -> list[str]:
    what = " ".join(clip(part, 60) for part in (context.provider, context.operation, context.model or "") if part)
    anew = context.again.command("record", context.cassette, store=context.store, upstreams=context.upstreams)
    lines = [
        (
            f"llmproxy: message {mismatch.number} of this WebSocket ({what}) in cassette"
            f' "{clip(context.cassette, 60)}" is not'
            f" as recorded: {_describe_cause(recording, mismatch)}."
        ),
        (
            f'mode {context.mode}, session "{clip(context.session, 60)}", store {clip(context.store, 120)},'
            f" key {context.key[:SHOWN_KEY]}; nothing was sent to the provider."
        ),
    ]
    for each in mismatch.differences[:_SHOWN]:
        old, new = (clip(value, 90) or "(absent)" for value in (each.old, each.new))
        looks = f"  [looks like {each.looks}]" if each.looks else ""
        lines.append(f"  {clip(each.path, 100)}: {old} -> {new}{looks}")
    if len(mismatch.differences) > _SHOWN:
        lines.append(f"  and {len(mismatch.differences) - _SHOWN} more")
    todo = [
        *(["connect again: the conversation that follows is recorded"] if records else []),
        f"record the conversation anew: {anew}",
        "if that changes by itself, let it not count: [tool.llmproxy.normalize] in pyproject.toml, ignore or scrub",
        "look closer: " + "   ".join(format_llmproxy_command(c, context.store) for c in ("why", f"show {recording}")),
    ]
    return [*lines, "What to do:", *(f"  {n}. {step}" for n, step in enumerate(todo, 1))]


Redact = Callable[[str | bytes], str | bytes]

_NOT_KEPT = ("connection", "upgrade", "content-length", "content-type", "transfer-encoding",
             "sec-websocket-accept", "sec-websocket-extensions")  # fmt: skip
"""Header fields of the upgrade's answer that concern only this connection."""

_PLACEHOLDER = re.compile(r"\[REDACTED-\d+(?::[\w-]*|x\w+)?\]")

_TERMINAL = frozenset({"response.done", "response.completed", "response.failed", "response.incomplete",
                       "response.cancelled", "error"})  # fmt: skip
"""Types of the event after which no message of the server is pending (OpenAI's Realtime and Responses)."""


class FrameRecorder(ArrivingResponseCollector):
    """One pending conversation; call `record_message` for each message, then `record_close`."""

    def __init__(self, redact: Redact, offset: int, headers: Headers) -> None:
        """Begin with the upgrade's answer, `offset` microseconds after the release."""
        super().__init__()
        self._redact, self._frames = redact, list[WebSocketFrame]()
        kept = (*remove_headers(headers, *_NOT_KEPT), ("content-type", CONTENT_TYPE))
        super().on_head(offset, SWITCHING, "Switching Protocols", kept)
        self.is_closing: Callable[[], bool] = lambda: False
        """Returns whether one side has begun to close: what reaches the client after that is the end."""
        self.is_breaking: Callable[[], bool] = lambda: False
        """Returns whether one side has gone without a closing handshake: then the other side gets no close frame."""
        self.is_stored = False
        """Whether the end may be sent to the client."""

    @property
    def is_whole(self) -> bool:
        return self.is_closing()

    next_piece_may_be_last = is_whole

    @property
    def first_byte_offset(self) -> int | None:
        """Microseconds until the server's first message, or until the upgrade's answer if it sent none."""
        return next((frame.at for frame in self._frames if not frame.client and frame.close is None), self._head_offset)

    def record_message(self, offset: int, data: str | bytes, *, client: bool) -> None:
        self._frames.append(WebSocketFrame(offset, client, data))

    def record_close(self, offset: int, code: int, reason: str, *, client: bool) -> None:
        self._frames.append(WebSocketFrame(offset, client, reason, code))

    def build_response(self, operation: str, *, stream: bool, proper: bool) -> Response:  # noqa: ARG002 - base's
        """Build the finished recording. Slow: call it off the event loop."""
        frames = self._redact_frames(list(self._frames))
        chunks, ending = encode_websocket_frames_as_chunks(frames), classify_websocket_ending(frames)
        return Response(self.status, self._reason, self._headers, chunks, ending, self._head_offset, chunked=True)

    def _redact_frames(self, frames: list[WebSocketFrame]) -> list[WebSocketFrame]:
        kept, secrets = [], dict[str, None]()
        for frame in frames:
            data = self._redact(frame.data) if frame.client and frame.data else frame.data
            if data != frame.data:
                strings = _list_redacted_strings(parse_json_or_none(frame.data), parse_json_or_none(data))
                secrets.update(dict.fromkeys(strings))
            kept.append(replace(frame, data=data))
        if secrets:
            kept = [one if one.client else replace(one, data=_overwrite_secrets(one.data, secrets)) for one in kept]
            pairs = zip(frames, kept, strict=True)
            self.overwritten = any(old.data != new.data for old, new in pairs if not old.client)
        return kept


def _list_redacted_strings(plain: object, redacted: object) -> Iterator[str]:
    """Yield the strings that were replaced as a whole: the server repeats a session's settings."""
    if isinstance(plain, dict) and isinstance(redacted, dict):
        for name, value in plain.items():
            yield from _list_redacted_strings(value, redacted.get(name))
    elif isinstance(plain, list) and isinstance(redacted, list):
        for one, other in zip(plain, redacted, strict=False):
            yield from _list_redacted_strings(one, other)
    elif (
        isinstance(plain, str)
        and isinstance(redacted, str)
        and len(plain) >= SHORTEST
        and _PLACEHOLDER.fullmatch(redacted)
    ):
        yield plain


def _overwrite_secrets(data: str | bytes, secrets: Iterable[str]) -> str | bytes:
    """Overwrite secrets with as many bytes, as in any answer."""
    text = data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data
    for secret in secrets:
        for form in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            text = text.replace(form, "REDACTED".ljust(len(form.encode()), "*")[: len(form.encode())])
    return text.encode("utf-8", "surrogateescape") if isinstance(data, bytes) else text


def classify_websocket_ending(frames: list[WebSocketFrame]) -> Ending:
    """Return whether a conversation is complete: closed properly, or left by its client when no answer was pending."""
    last = frames[-1] if frames else None
    if last is None or last.close is None:
        return Ending.CUT
    if last.close != CUT:
        return Ending.COMPLETE
    said = frames[-2] if len(frames) > 1 else None
    settled = said is not None and not said.client and _is_terminal(said.data)
    return Ending.COMPLETE if last.client and settled else Ending.CUT


def _is_terminal(data: str | bytes) -> bool:
    if not isinstance(event := parse_json_or_none(data), dict):
        return False
    content = event.get("serverContent")  # Google's Live API
    return event.get("type") in _TERMINAL or (isinstance(content, dict) and content.get("turnComplete") is True)
