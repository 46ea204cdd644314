"""Carries the shapes of `core.keys.rules` out on one request's tree, in place, and gives ids their names.

Objects are walked in the sorted order of their members, arrays in their own, so names never depend on how a body was
written. What refers to something is resolved at the end: only then is it known what the request itself declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from llmproxy.core.keys.rules import BILLING_HEADER, Do, Rule, Shape
from llmproxy.core.traffic.interaction import Key
from llmproxy.core.traffic.json_bytes import NotLossless, dump, parse
from llmproxy.late import late


class Origin(NamedTuple):
    """Where an id of the server's state came from."""

    key: Key
    """Of the interaction that made it."""
    occurrence: int
    """Which of the recordings of that key, from 1."""
    ordinal: int
    """Which of the ids in that interaction's `made_ids`, from 0."""


_OURS = late(r"=*(?:call#\d|<)")
"""How the names that we give begin; an id that looks like one gets a ``=`` before it, so that nobody's id is ever taken
for a name."""
_ID = late(r"[!-~]+")
"""What can be an id of a call. Providers refuse an empty one, or one with spaces, and that answer is not the one of a
right request."""
_GOOGLE_FILE = late(r"(?:https://generativelanguage\.googleapis\.com/v\d\w*/)?(files/[\w-]+)/?")

MadeBy = Callable[[str], Origin | None]
"""Tells which interaction of this cassette made an id; None if none did."""


class Walk:
    """Applies shapes to one request's tree, in place, and keeps the names that it gave."""

    def __init__(self, made_by: MadeBy, *, stream: bool | None = None) -> None:
        """`stream` is the request's stream flag as the key has it; None where it has none (a message of a
        WebSocket).
        """
        self.refs: list[str] = []
        self._made_by, self._stream = made_by, stream
        self._aliases: dict[str, str] = {}
        self._later: list[tuple[dict[str, object], str]] = []

    def body(self, tree: dict[str, object], shape: Shape) -> None:
        """Apply the shape of a whole body."""
        self._object(tree, shape)
        for node, name in self._later:  # only now is it known what the request declares
            node[name] = self._reference(node[name])
        self._later.clear()  # a WebSocket's messages are bodies of one conversation, one after the other

    def name_id(self, name: str, other: str = "") -> str:
        """Return the text that stands for an id in the URL."""
        self.refs.append(name)
        origin = self._made_by(name) or (self._made_by(other) if other else None)
        return f"<{origin.key} {origin.occurrence} {origin.ordinal}>" if origin else self.literal(name)

    def literal(self, name: str) -> str:
        """Return an id that nobody knows, so that it is no name of ours."""
        return f"={name}" if _OURS.match(name) else name

    def _object(self, node: dict[str, object], shape: Shape) -> None:
        if shape.kinds:
            kind = node.get("type")
            shape = shape.kinds.get(kind, shape) if isinstance(kind, str) else shape
        if shape.nulls:
            for name in [name for name, value in node.items() if value is None]:
                del node[name]
        members = shape.members
        found = [name for name in node if name in members]
        if len(found) > 1:
            found.sort()
        for name in found:
            self._member(node, name, members[name])

    def _member(self, node: dict[str, object], name: str, rule: Rule) -> None:
        value = node[name]
        match rule.do:
            case Do.WALK:
                self._walk_elements(value, rule.into)
            case Do.IGNORE:
                del node[name]
            case Do.STREAM:
                if self.repeats_stream_flag(value):
                    del node[name]
            case Do.DECLARE | Do.OWN if isinstance(value, str):
                if rule.do is Do.OWN and not any(node.get(member) for member in rule.own):
                    self._later.append((node, name))
                elif self.is_id(value):
                    node[name] = self._aliases.setdefault(value, f"call#{len(self._aliases) + 1}")
                else:
                    node[name] = self.literal(value)
            case Do.REFER if not isinstance(value, dict):
                self._later.append((node, name))
            case Do.FILE_URI if isinstance(value, str):
                if short := self.file_name(value):
                    self.refs.append(value)
                    node[name] = _describe_origin(self._made_by(short) or self._made_by(value)) or value
            case Do.JSON if isinstance(value, str):
                with suppress(NotLossless):  # broken or partial arguments count as they are
                    node[name] = dump(parse(value)).decode("ascii")
            case Do.SIGNATURE:
                if node.get("thinking"):
                    node[name] = "*"
            case Do.SPARE if value in ([], {}):
                del node[name]
            case Do.SYSTEM if isinstance(value, list):
                if self.bill(value) and not value:
                    del node[name]
                self._walk_elements(value, rule.into)
            case _:
                self._walk_elements(value, rule.into)
                node[name] = self.thing(value)

    def _walk_elements(self, value: object, shape: Shape | None) -> None:
        if shape is None:
            return
        if isinstance(value, dict):
            self._object(value, shape)
        elif isinstance(value, list):
            for element in value:
                if isinstance(element, dict):
                    self._object(element, shape)

    def _reference(self, value: object) -> object:
        """Return what stands for an id, or a list of ids, of the server's state."""
        if isinstance(value, list):
            return [self._reference(element) for element in value]
        if not isinstance(value, str):
            return self.thing(value)
        if (alias := self._aliases.get(value)) is not None:
            return alias
        self.refs.append(value)
        return _describe_origin(self._made_by(value)) or self.literal(value)

    def is_id(self, value: str) -> bool:
        """Return whether a text can be an id, so that any other says the same; what cannot be one counts as it is."""
        return _ID.fullmatch(value) is not None

    def repeats_stream_flag(self, value: object) -> bool:
        """Return whether a stream member says what the key's flag says already."""
        return value is None or (isinstance(value, bool) and self._stream in (None, value))

    def thing(self, value: object) -> object:
        """Return what stands in the place of an id and is no text, so that it is nothing that we put there."""
        return {"=": value} if isinstance(value, dict) and value.keys() & {"=", "made-by"} else value

    def file_name(self, uri: str) -> str:
        """Return the resource name in the URI of an uploaded file; "" for any other URI."""
        if match := _GOOGLE_FILE.fullmatch(uri):
            return match[1]
        return uri if re.search(r"/files/[\w-]+/?$", uri) else ""

    def bill(self, blocks: list[object]) -> bool:
        """Take Claude Code's billing header off the first of the system blocks; tell whether that whole block is
        gone.
        """
        first = blocks[0] if blocks else None
        text = first.get("text") if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(text, str) or not (match := BILLING_HEADER.match(text)):
            return False
        if text[match.end() :].strip() or not first.keys() <= {"type", "text", "cache_control"}:
            first["text"] = text[match.end() :]
            return False
        del blocks[0]
        return True


def _describe_origin(origin: Origin | None) -> object | None:
    return origin and {"made-by": origin.key, "occurrence": origin.occurrence, "ordinal": origin.ordinal}
