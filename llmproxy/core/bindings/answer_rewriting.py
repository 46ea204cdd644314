"""Rewriting of a recorded answer for this run: recorded paths and ids become present ones, all else stays.

In a stream the present value is sent at the recorded one's start; all other deltas and all times stay. Dates and blocks
are never written into an answer. The result must contain no recorded id (`leaked`). Quotes that the model wrote around
a recorded folder may not protect this run's: see `is_shell_replacement_safe`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from llmproxy.core.bindings.created_id_pairs import (
    PREFIXED,
    IdPair,
    IdPairs,
    RecordedIdTextMatcher,
    ShortValue,
    contains_recorded_id,
    convert_to_type_of,
    find_abbreviated_id_in_text,
    find_short_values_at_leaf,
    index_changed_id_pairs,
    list_changed_short_bindings,
    mentions_short_value,
)
from llmproxy.core.bindings.leaf_pairs import Fit, MisfitReason, Mismatch
from llmproxy.core.bindings.leaf_places import Bindings
from llmproxy.core.bindings.run_variables import PATHS, RunVariableKind, RunVariablePair
from llmproxy.core.bindings.text_alignment import replace_text_spans
from llmproxy.core.bindings.value_forms import ValueFormOccurrence
from llmproxy.core.bindings.volatile_result_fields import matches_field_kind
from llmproxy.core.dialects.messages import as_dict
from llmproxy.core.dialects.stream_events import ByteReplacement, apply_edits_to_chunks, split_body_into_json_values
from llmproxy.core.traffic.canonical_json import reject_duplicate_members
from llmproxy.core.traffic.interaction import Response
from llmproxy.core.traffic.json_diff import format_path
from llmproxy.lazy_regex import late

Step = str | int
Path = tuple[Step, ...]


class AnswerText(NamedTuple):
    path: Path
    text: str
    channel: tuple[object, ...] | None
    """Equal for the pieces of one text; None for a complete text."""
    is_json: bool = False
    """Whether it is JSON text: the arguments of a call, whole or in pieces."""
    tool: str | None = None
    """Tool of these arguments, if this value names it."""
    member: str = ""
    """Nearest member name of a text inside of arguments that are an object."""
    inner: str = ""
    """Path in those arguments, from ``$``."""
    is_name: bool = False
    """Whether it is the name of a member of those arguments: ``{"/tmp/a/x.py": ...}``."""


_SEALED = frozenset({
    "id", "object", "type", "role", "model", "signature", "thoughtSignature", "thought_signature",
    "encrypted_content", "b64_json",
    "call_id", "item_id", "response_id", "toolUseId", "tool_use_id", "tool_call_id", "previous_response_id",
    "finish_reason",
    "stop_reason", "stopReason", "finishReason", "status", "system_fingerprint", "service_tier", "modelVersion",
    "responseId", "obfuscation",
    "created_at", "data", "name", "event_type", "done_reason", "thinking", "reasoning", "reasoning_content",
    "reasoningContent", "tool_plan",
})  # fmt: skip
"""Members that are not the model's words, or that only their creator can read."""
_ECHOED = frozenset({"instructions", "tools", "metadata", "text", "reasoning", "prompt"})
"""Members of a Response that repeat the request's (``text`` and ``reasoning`` are settings there)."""
_ARGUMENTS = frozenset({"arguments", "partial_json"})
_OBJECTS = frozenset({"input", "args", "arguments", "parameters"})
_STRUCTURED = "structuredContent"
"""An MCP tool's result as an object: any member of it may contain a value."""


def _list_text_pieces(node: object, path: Path, event: dict[str, Any], tool: str | None) -> Iterator[AnswerText]:
    if isinstance(node, list):
        for n, each in enumerate(node):
            yield from _list_text_pieces(each, (*path, n), event, tool)
        return
    if not isinstance(node, dict):
        return
    kind, named = node.get("type"), node.get("name")
    if (isinstance(kind, str) and ("thinking" in kind or "reasoning" in kind)) or node.get("thought") is True:
        return  # the model's thinking is often signed, so it is never changed
    tool = named if isinstance(named, str) else tool
    for name, value in node.items():
        here = (*path, name)
        if name in _SEALED or (name in _ECHOED and node.get("object") == "response"):
            continue
        if name == _STRUCTURED or (name in _OBJECTS and isinstance(value, dict) and tool is not None):
            yield from _list_arguments(value, tool or "", here)
        elif isinstance(value, str):
            if value:
                yield _build_piece(node, name, value, here, event, tool)
        else:
            yield from _list_text_pieces(value, here, event, tool)


def _list_arguments(
    value: object, tool: str, path: Path = (), inner: str = "$", member: str = ""
) -> Iterator[AnswerText]:
    """Yield the texts and numbers of arguments; a member's name follows its content."""
    if isinstance(value, dict):
        for name, each in value.items():
            here, at = (*path, name), f"{inner}.{name}"
            yield from _list_arguments(each, tool, here, at, name)
            yield AnswerText(here, name, None, tool=tool, inner=at, is_name=True)
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from _list_arguments(each, tool, (*path, n), f"{inner}[{n}]", member)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        text = value if isinstance(value, str) else str(value)
        yield AnswerText(path, text, None, tool=tool, member=member, inner=inner)


def _build_piece(
    node: dict[str, Any], name: str, value: str, path: Path, event: dict[str, Any], tool: str | None
) -> AnswerText:
    kind = event.get("type")
    if isinstance(kind, str) and name == "delta" and kind.startswith("response."):  # OpenAI's responses
        which = (kind, event.get("item_id"), event.get("output_index"), event.get("content_index"))
        return AnswerText(path, value, which, "arguments" in kind, tool)
    if kind == "content_block_delta":  # of Messages
        return AnswerText(path, value, ("block", event.get("index"), name), name in _ARGUMENTS, tool)
    if "contentBlockDelta" in event:  # of converse
        index = as_dict(event["contentBlockDelta"]).get("contentBlockIndex")
        is_json = "toolUse" in path and name == "input"
        return AnswerText(path, value, ("block", index, is_json), is_json, tool)
    if "choices" in path and "delta" in path:  # chat completions, by choice and call
        numbers = [step for step in path if isinstance(step, int)]
        choice = _read_index_member(event, ("choices", numbers[0]))
        call = node.get("index") if "tool_calls" in path else None
        if "tool_calls" in path and len(numbers) > 1:
            call = _read_index_member(event, ("choices", numbers[0], "delta", "tool_calls", numbers[1]))
        return AnswerText(path, value, ("choice", choice, call, name), name in _ARGUMENTS, tool)
    if path and path[0] in ("candidates", "response") and name == "text":  # of generateContent
        numbers = [step for step in path if isinstance(step, int)]
        return AnswerText(path, value, ("candidate", *numbers[:1]), tool=tool)
    if "done" in event and name in ("content", "response", "thinking"):  # Ollama
        return AnswerText(path, value, ("ollama", name), tool=tool)
    if "delta" in event and kind in ("content-delta", "tool-call-delta", "tool-call-start", "tool-plan-delta"):
        return AnswerText(path, value, ("cohere", event.get("index"), name in _ARGUMENTS), name in _ARGUMENTS, tool)
    return AnswerText(path, value, None, name in _ARGUMENTS, tool)


def _read_index_member(event: object, path: Path) -> object:
    node = get_json_value_at_path(event, path)
    return node.get("index", path[-1]) if isinstance(node, dict) else path[-1]


def get_json_value_at_path(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def set_value_at_path(tree: object, path: Path, new: object) -> None:
    get_json_value_at_path(tree, path[:-1])[path[-1]] = new


class TextEdit(NamedTuple):
    start: int
    end: int
    new: str
    name: str


_SCALAR = late(
    r'(?P<string>"(?:[^"\\]|\\.)*")(?P<called>\s*:)?'
    r"|-?\d+(?P<other>\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)?|(?P<word>true|false|null)"
)


def locate_scalars_in_json_text(
    text: str, pieces: Iterable[AnswerText]
) -> Iterator[tuple[int, int, AnswerText | None]]:
    """Yield (start, end, piece) of the strings and integers in JSON text; the piece of a member's name is None."""
    left = (piece for piece in pieces if not piece.is_name)
    for found in _SCALAR.finditer(text):
        if found["called"] is not None:
            yield found.start(), found.end("string"), None
        elif found["other"] is None and found["word"] is None:
            if (piece := next(left, None)) is None:
                return
            yield found.start(), found.end(), piece


_ESCAPE = late(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)


def build_json_string_edits(text: str, start: int, end: int, inner: Iterable[TextEdit]) -> Iterator[TextEdit]:
    """Yield edits of a JSON string's text for edits of its value, as narrow as possible for streams."""
    # Start of each character of the value in the escaped text, and the end of the last one.
    raw = text[start + 1 : end - 1]
    places: Sequence[int] = range(start + 1, end)
    if "\\" in raw:
        places = [*(start + 1 + match.start() for match in _ESCAPE.finditer(raw)), end - 1]
    for each in inner:
        written = json.dumps(each.new, ensure_ascii=text.isascii())[1:-1]
        yield TextEdit(places[each.start], places[each.end], written, each.name)


_PLAIN = late(r"[\w@%+=:,./~-]*")
"""Characters without meaning to a shell, including letters of any script."""
_ESCAPED = late(r"(?:[\w@%+=:,./~-]|\\[^\n])*\Z")
_READ_TWICE = late(r"(?:^|\s)(?:-\w*c|eval|ssh|xargs|su|watch|parallel)(?:\s|$)")
_KEPT_BY = {"'": frozenset("'\\\n"), '"': frozenset('"$`\\\n!')}
"""Characters that a quote does not protect, by quote; a backslash in both: Python and JavaScript interpret it."""


def is_shell_replacement_safe(text: str, start: int, end: int, new: str) -> bool:
    """Return whether a new value may replace text[start:end] in a command; otherwise the request is a miss.

    It may if every shell character in it is in the recorded one too, if it is escaped with backslashes, or if quotes
    that open right before it protect all of it, unless a shell reads their content again (``sh -c "..."``).
    """
    if _PLAIN.fullmatch(new):
        return True
    recorded = text[start:end]
    if set(_PLAIN.sub("", new)) <= set(_PLAIN.sub("", recorded)):
        return True
    opened = _find_open_quote_start(text, start)
    if opened < 0:
        return "\\" in recorded and _ESCAPED.match(new) is not None
    if opened != start - 1 or (opened and text[opened - 1] == "$") or _READ_TWICE.search(text):
        return False
    return not _KEPT_BY[text[opened]] & set(new)


def is_in_code_block(text: str, at: int) -> bool:
    """Return whether a position in Markdown is in a code block, which some agents execute."""
    return any(text.count(fence, 0, at) % 2 for fence in ("```", "~~~"))


def _find_open_quote_start(text: str, at: int) -> int:
    """Return the start of the quote that contains a position, as a POSIX shell reads it; -1 if none."""
    opened, n = -1, 0
    while n < at:
        letter = text[n]
        if letter == "\\" and (opened < 0 or text[opened] == '"'):
            n += 1
        elif opened < 0 and letter in _KEPT_BY:
            opened = n
        elif opened >= 0 and letter == text[opened]:
            opened = -1
        n += 1
    return opened


DROPPED = frozenset(
    {"content-encoding", "content-length", "digest", "content-digest", "repr-digest", "content-md5", "etag"}
)
"""Header fields that are not valid for a rewritten body."""
_COMMANDS = late(
    r"(?:.*_)?(?:commands?|cmd|cmdline|commandline|script|code|shell|bash|input|exec|run|args|argv)", re.IGNORECASE
)
_WRITTEN = frozenset({"content", "text", "old_string", "new_string"})
_WHOLE_ID = 8
_GAP = "\0"
"""Placeholder for a replaced part: it belongs to no id and no word."""


class _Refused(Exception):
    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch


def rewrite_answer(
    bindings: Bindings, fit: Fit, response: Response, known: IdPairs | None = None, *, strict: bool = True
) -> Response | Mismatch:
    """Return the response adapted to this run; the same object if nothing changes. Not `strict`: the answer is served
    to no client, so its prose may contain a recorded short value.
    """
    return AnswerRewriter(bindings, fit, known, strict=strict).rewrite_response(response)


def rewrite_exact_hit_answer(
    bindings: Bindings, request: object, response: Response, known: IdPairs | None = None, *,
    named: frozenset[str] | None = None,
) -> Response | Mismatch:  # fmt: skip
    """Return the answer of an exact hit: as recorded, unless it names a recorded folder or id that `request` does not.

    `named`: path variables below which an earlier request of the run named something with this run's value: a model's
    text gets this run's folder only then, an argument of a tool always. None for a tool's answer, which describes this
    machine (``list_allowed_directories {}`` has one key in every folder). Folders of one part and well-known ones stay:
    ``/tmp`` in a sentence belongs to no run. The same object if nothing changes.
    """
    paths = bindings.limited_to_run_paths
    if not paths.changed and not known:
        return response
    texts = list(_iterate_tree_texts(request))
    held = {text[spot.start : spot.end] for text in texts for spot in paths.answer_forms.find_matches(text)}
    # Any number in an equal request may be a short value, so short values stay in its answer.
    left = [each for each in known or () if each.is_searchable_in_text and each.recorded != each.present]
    tokens = RecordedIdTextMatcher(left)
    held_ids = {token.identity for text in texts for token in tokens.find_matches(text)}
    fit = Fit((), (), unchanged=held)
    rewriter = AnswerRewriter(paths, fit, IdPairs(each for each in left if each not in held_ids), named=named)
    for text in texts:
        rewriter.note_present_folders(text)
    return rewriter.rewrite_response(response)


def _iterate_tree_texts(tree: object) -> Iterator[str]:
    todo = [tree]
    while todo:
        if isinstance(node := todo.pop(), str):
            yield node
        elif isinstance(node, dict):
            todo.extend(node)
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)


def _list_declared_ids(pairs: Iterable[RunVariablePair], unchanged: Collection[str]) -> Iterator[IdPair]:
    """Yield the run variables that an answer may abbreviate: commits and UUIDs with another value in this run."""
    for pair in pairs:
        both = (pair.recorded.value, pair.present.value)
        if pair.has_changed and pair.recorded.kind is pair.present.kind is RunVariableKind.IDENTIFIER:
            for kind in PREFIXED if pair.recorded.value not in unchanged else ():
                if all(matches_field_kind(kind, value) for value in both):
                    yield IdPair(pair.name, kind, *both)


class AnswerRewriter:
    def __init__(
        self, bindings: Bindings, fit: Fit, known: IdPairs | None, *, strict: bool = True,
        named: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        """Not `strict`: short values in prose may stay. `named`: paths replaced outside of arguments; None: all."""
        self._strict = strict
        self._named = named
        whole = IdPairs((*fit.identities, *(known or ()), *_list_declared_ids(bindings.pairs, fit.unchanged)))
        self._bindings, self._fit = bindings, fit
        self._tokens = RecordedIdTextMatcher(each for each in whole if each.recorded != each.present)
        self._shorts = list_changed_short_bindings(bindings.pairs, whole)
        self._changed: Mapping[str, IdPair] = index_changed_id_pairs(whole)
        self._members: dict[tuple[int, Path], dict[str, str]] = {}
        """Names of members in this run, by value and path of the object."""
        self.names: set[str] = set()
        self._own = {each.name for each in bindings.pairs if each.name in PATHS and each.present.is_run_specific}
        self._stood: set[str] = set()  # those of them whose present folder was another one when this was recorded

    def note_present_folders(self, text: str, replaced: Sequence[TextEdit] = ()) -> None:
        for spot in self._bindings.forms_of_present_values.find_matches(text):
            name = spot.forms[0].name
            if name in self._own and not any(each.start < spot.end and spot.start < each.end for each in replaced):
                self._stood.add(name)

    def rewrite_response(self, response: Response) -> Response | Mismatch:
        if not (body := response.body):
            return response
        try:
            parts = split_body_into_json_values(response.mime_type, body)
        except ValueError:
            parts = []
        try:
            if not parts:  # a body without JSON stays, unless it contains a value to be replaced
                text = body.decode("utf-8", "replace")
                found = any(True for _ in self._list_text_changes(text, "$", None))
                found = found or any(value in text for value in self._changed)
                return Mismatch(MisfitReason.UNREADABLE, "$") if found else response
            edited = self._rewrite_values_in_place([part.value for part in parts])
            if name := next(iter(self._stood & self.names), ""):
                values = self._bindings.values[name]  # two folders would become one
                return Mismatch(MisfitReason.MERGED, "$", " and ".join(values), values[1], name)
        except _Refused as refused:
            return refused.mismatch
        edits = [
            ByteReplacement(part.start, part.end, part.write(part.value)) for n, part in enumerate(parts) if n in edited
        ]
        if not edits:
            return response
        headers = tuple((name, value) for name, value in response.headers if name.lower() not in DROPPED)
        return replace(response, headers=headers, chunks=apply_edits_to_chunks(response.chunks, edits))

    def _rewrite_values_in_place(self, values: list[object]) -> set[int]:
        """Rewrite values in place; return the indexes of those that changed."""
        edited: set[int] = set()
        channels: dict[tuple[object, ...], list[tuple[int, AnswerText]]] = {}
        tools: dict[object, str] = {}
        for n, value in enumerate(values):
            for index, each in enumerate(value if isinstance(value, list) else [value]):
                base = (index,) if isinstance(value, list) else ()
                for piece in list(_list_text_pieces(each, (), each, None)) if isinstance(each, dict) else ():
                    located = piece._replace(path=(*base, *piece.path))
                    if piece.channel is None:
                        if self._rewrite_value_in_place(values, n, located):
                            edited.add(n)
                    else:
                        channels.setdefault(piece.channel, []).append((n, located))
                        if piece.tool:
                            tools.setdefault(piece.channel, piece.tool)
                _record_tool_of_block(each, tools)
        for channel, pieces in channels.items():
            block = channel[:2] if channel[0] == "block" else channel[:3] if channel[0] == "choice" else channel[-3:]
            edited |= self._rewrite_channel(values, pieces, tools.get(channel) or tools.get(block) or "")
        self._rename_members(values)
        return edited

    def _rewrite_value_in_place(self, values: list[object], n: int, piece: AnswerText) -> bool:
        place = format_path(piece.path)
        if piece.is_name:
            if (new := replace_text_spans(piece.text, self._list_changes(piece.text, place, None))) != piece.text:
                self._members.setdefault((n, piece.path[:-1]), {})[piece.text] = new
            return new != piece.text
        node = get_json_value_at_path(values[n], piece.path)
        if piece.inner and (short := self._find_short_value_replacement(piece.tool or "", piece, node, place)):
            self.names.add(short.name)
            set_value_at_path(values[n], piece.path, convert_to_type_of(node, short.present))
            return True
        if not isinstance(node, str):
            self._refuse_short_in_prose(str(node), place, piece)
            return False
        new = replace_text_spans(node, self._list_changes(node, place, piece, piece.tool or ""))
        if new == node:
            return False
        set_value_at_path(values[n], piece.path, new)
        return True

    def _rename_members(self, values: list[object]) -> None:
        """Rename members, innermost first, those of one object together: two may swap names."""
        for (n, path), names in sorted(self._members.items(), key=lambda each: -len(each[0][1])):
            node = get_json_value_at_path(values[n], path)
            members = {names.get(name, name): each for name, each in node.items()}
            if len(members) < len(node):
                place, (old, new) = format_path(path), next(iter(names.items()))
                raise _Refused(Mismatch(MisfitReason.NOT_ONE_TO_ONE, place, old, new, " and ".join(sorted(self.names))))
            node.clear()
            node.update(members)
        self._members.clear()

    def _rewrite_channel(self, values: list[object], pieces: list[tuple[int, AnswerText]], tool: str) -> set[int]:
        """Rewrite a text that comes in pieces: a new value goes into the piece where the old one began."""
        text = "".join(piece.text for _, piece in pieces)
        first = pieces[0][1]
        place = f"${''.join(f'.{step}' for step in first.path)}"
        changes = self._list_changes(text, place, first, tool)
        edited: set[int] = set()
        at = k = gone = 0
        for n, piece in pieces:
            end = at + len(piece.text)
            new, position = "", max(at, gone)
            while k < len(changes) and changes[k].start < end:
                new += text[position : changes[k].start] + changes[k].new
                gone = changes[k].end
                position = min(gone, end)
                k += 1
            new += text[position:end] if position < end else ""
            if new != piece.text:
                set_value_at_path(values[n], piece.path, new)
                edited.add(n)
            at = end
        return edited

    def _find_short_value_replacement(
        self, tool: str, piece: AnswerText, value: object, place: str
    ) -> ShortValue | None:
        found = [
            short
            for short in find_short_values_at_leaf(self._shorts, tool, piece.inner, piece.member, value)
            if self._is_short_replaced(short, place)
        ]
        if len({short.present for short in found}) > 1:
            names = " and ".join(sorted({short.name for short in found}))
            raise _Refused(Mismatch(MisfitReason.AMBIGUOUS, place, found[0].recorded, "", names))
        return found[0] if found else None

    def _is_short_replaced(self, short: ShortValue, place: str) -> bool:
        if short.comparison_label not in self._fit.unchanged:
            return True
        if self._fit.chosen.get(short.comparison_label):
            raise _Refused(Mismatch(MisfitReason.BOTH_WAYS, place, short.recorded, short.present, short.name))
        return False

    def _list_changes(self, text: str, place: str, piece: AnswerText | None, tool: str = "") -> list[TextEdit]:
        """Return the changes to a text; refuse recorded ids that remain in it."""
        if piece is not None and piece.is_json:
            changes = self._list_json_changes(text, place, tool)
        else:
            changes = list(self._list_text_changes(text, place, piece))
        self._refuse_left_ids(text, changes, place)
        return changes

    def _refuse_left_ids(self, text: str, changes: Iterable[TextEdit], place: str) -> None:
        if self._changed:  # in this run's values four equal digits are a coincidence
            stays = replace_text_spans(text, (each._replace(new=_GAP) for each in changes))
            for value, identity in self._changed.items():
                if len(value) >= _WHOLE_ID and contains_recorded_id(identity, stays):
                    raise _Refused(Mismatch(MisfitReason.LEAKED, place, value, "", identity.name))
            if (begun := find_abbreviated_id_in_text(self._changed.values(), stays)) is not None:
                raise _Refused(Mismatch(MisfitReason.LEAKED, place, begun[1], "", begun[0].name))

    def _list_json_changes(self, text: str, place: str, tool: str) -> list[TextEdit]:
        """Return the changes to JSON text that keep it valid: each string in it is rewritten separately."""
        try:
            whole = json.loads(text, object_pairs_hook=reject_duplicate_members)
        except (ValueError, RecursionError):
            whole = None
        if not isinstance(whole, (dict, list)):  # incomplete, a duplicate member, or plain text
            return list(self._list_text_changes(text, place, None))
        changes: list[TextEdit] = []
        for start, end, piece in locate_scalars_in_json_text(text, _list_arguments(whole, tool)):
            value = json.loads(text[start:end])
            if piece is not None and (short := self._find_short_value_replacement(tool, piece, value, place)):
                self.names.add(short.name)
                changes.append(TextEdit(start, end, json.dumps(convert_to_type_of(value, short.present)), short.name))
            elif isinstance(value, int):
                self._refuse_short_in_prose(str(value), place, piece)
            elif isinstance(value, str):
                inner = list(self._list_text_changes(value, place, piece))
                self._refuse_left_ids(value, inner, place)  # in the JSON text an escape before an id ends in a letter
                changes += build_json_string_edits(text, start, end, inner)
        return changes

    def _list_text_changes(self, text: str, place: str, piece: AnswerText | None) -> Iterator[TextEdit]:
        found = [TextEdit(*each[:3], each.identity.name) for each in self._tokens.find_matches(text)]
        for each in found:
            self._check_quoting(text, each, place, piece)
        is_argument = piece is not None and bool(piece.inner)
        for spot in self._bindings.answer_forms.find_matches(text):
            if self._named is not None and not is_argument and spot.forms[0].name not in self._named:
                continue
            if not any(change.start < spot.end and spot.start < change.end for change in found):
                change = self._replace_form(text, spot, place)
                if change is not None:
                    self._check_quoting(text, change, place, piece)
                    found.append(change)
        self._refuse_short_in_prose(text, place, piece)
        self.note_present_folders(text, found)
        for change in sorted(found):
            if change.new != text[change.start : change.end]:
                self.names.add(change.name)
                yield change

    def _refuse_short_in_prose(self, text: str, place: str, piece: AnswerText | None) -> None:
        is_argument = piece is not None and bool(piece.inner)
        for short in self._shorts if self._strict else ():
            if is_argument and text.strip() == short.recorded and not (short.identity and short.is_conspicuous):
                continue  # its member says that it is another thing
            if mentions_short_value(text, short, is_argument=is_argument) and self._is_short_replaced(short, place):
                raise _Refused(Mismatch(MisfitReason.SHORT, place, short.recorded, short.present, short.name))

    def _replace_form(self, text: str, spot: ValueFormOccurrence, place: str) -> TextEdit | None:
        recorded = text[spot.start : spot.end]
        # ``~/x`` or backslashes are written into an answer only if the old value, or the usual new one, has them.
        odd = [sign for sign in ("~", "\\") if sign not in recorded + spot.forms[0].present[0]]
        seen = {each for each in self._fit.chosen.get(recorded, ()) if not any(sign in each for sign in odd)}
        wanted = {form.name: next((one for one in form.present if one in seen), form.present[0]) for form in spot.forms}
        if len(seen) == 1 and any(next(iter(seen)) in form.present for form in spot.forms):
            wanted = {spot.forms[0].name: next(iter(seen))}
        names = " and ".join(sorted(wanted))
        if len(set(wanted.values())) > 1:
            raise _Refused(Mismatch(MisfitReason.AMBIGUOUS, place, recorded, "", names))
        new = next(iter(wanted.values()))
        if new != recorded and recorded in self._fit.unchanged:
            if self._fit.chosen.get(recorded):
                raise _Refused(Mismatch(MisfitReason.BOTH_WAYS, place, recorded, new, names))
            return None  # this run's request has the recorded value, so its answer has it too
        return TextEdit(spot.start, spot.end, new, spot.forms[0].name)

    @staticmethod
    def _check_quoting(text: str, change: TextEdit, place: str, piece: AnswerText | None) -> None:
        if piece is None or is_shell_replacement_safe(text, change.start, change.end, change.new):
            return
        if not piece.inner:
            is_command = is_in_code_block(text, change.start)
        else:
            named = _COMMANDS.fullmatch(piece.member) is not None
            is_command = named or (" " in text.strip() and piece.member not in _WRITTEN)
        if is_command:
            before = text[change.start : change.end]
            raise _Refused(Mismatch(MisfitReason.QUOTING, place, before, change.new, change.name))


def _record_tool_of_block(event: object, tools: dict[object, str]) -> None:
    """Record the tool that a block or an item calls, before its arguments come."""
    if not isinstance(event, dict):
        return
    if isinstance(block := event.get("content_block"), dict) and isinstance(block.get("name"), str):
        tools["block", event.get("index")] = block["name"]
    start = event.get("contentBlockStart")
    if isinstance(start, dict) and isinstance(use := (start.get("start") or {}).get("toolUse"), dict):
        tools["block", start.get("contentBlockIndex")] = str(use.get("name"))
    if isinstance(item := event.get("item"), dict) and isinstance(item.get("name"), str):
        tools[item.get("id"), event.get("output_index"), None] = item["name"]
    for choice in event.get("choices") or [] if isinstance(event.get("choices"), list) else []:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        for call in (delta.get("tool_calls") or []) if isinstance(delta, dict) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                tools["choice", choice.get("index", 0), call.get("index", 0)] = function["name"]
