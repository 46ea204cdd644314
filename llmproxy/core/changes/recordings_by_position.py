"""Places: the position of a request in a run, and the recordings at that position.

A place is the provider, the operation, whether there are tools, the recorded answers in the history, and the user's
words so far. Editable text is no part of it: system text, tools, parameters, headers, wordings of results. If two
recordings with different answers are at one place, the thread (the first block of system text) decides between them;
otherwise the place is ambiguous. Lines of a user's message that two or more recordings of a cassette share, around
other lines, are a template: they may change like a prompt. The remaining lines are the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmproxy.core.changes.accepted_changes import AcceptedChange
from llmproxy.core.changes.change import Refusal, RefusalReason, digest_texts, iterate_sequence_edits
from llmproxy.core.changes.request_parsing import (
    KnownAnswers,
    ParsedRequest,
    get_client_frames,
    parse_request,
    read_text,
    to_text,
)
from llmproxy.core.changes.reworded_results import blank_and_list_values
from llmproxy.core.dialects.conversation import Kind
from llmproxy.core.dialects.messages import Message
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.providers.provider_table import Client
from llmproxy.core.traffic.canonical_json import dump
from llmproxy.core.traffic.interaction import Key

_STATE = frozenset({
    "previous_response_id", "conversation", "container", "cachedContent", "cached_content", "previous_interaction_id",
})  # fmt: skip
"""Parameters that name objects kept by the server: a part of the history that is not in the request."""
_MOST_ALIKE = 64
"""Maximum recordings whose words are compared with a request's, if none has equal words."""
_LONGEST_TEMPLATE = 400
"""Maximum lines of a message that is compared with others of its cassette."""


class RecordedCall(NamedTuple):
    id: int
    key: Key
    canonical: Canonical
    call_ids: Sequence[str]
    """`request_parsing.list_history_call_ids` of its body."""
    answer: Message | None
    """None if it failed or broke off."""
    client: Client | None = None


@dataclass(slots=True)
class ParsedRecording:
    recorded: RecordedCall
    request: ParsedRequest
    meaning: str
    """Digest of its answer without ids: equal for equal answers."""
    prompt: frozenset[tuple[int, str]] = frozenset()
    """Template lines in the user's words: the number of the part, and the line."""
    data: frozenset[str] = frozenset()
    """Lines of its system text that differ in other calls with the same text around them."""


class CallPositions:
    def __init__(self, recordings: Iterable[RecordedCall]) -> None:
        all_ = list(recordings)
        self.known = KnownAnswers()
        for each in all_:
            if each.answer is not None:
                self.known.add_answer(each.answer)
        self._at: dict[str, list[ParsedRecording]] = {}
        self._by_line: dict[tuple[str, str], list[ParsedRecording]] = {}
        at_history: dict[str, list[ParsedRecording]] = {}
        self.results: dict[str, set[str]] = {}
        for each in all_:
            request = self.parse_recorded_request(each.canonical, each.call_ids, each.client)
            for tool, text in request.tool_results:
                self.results.setdefault(tool, set()).add(text)
            placed = ParsedRecording(each, request, _format_answer_without_ids(each.answer))
            if (history := _digest_history(request)) is not None:
                self._at.setdefault(_digest_position(history, request), []).append(placed)
                at_history.setdefault(history, []).append(placed)
        for alike in at_history.values():
            self._mark_template_lines(alike)
        self._mark_varying_system_lines([each for alike in self._at.values() for each in alike])

    @staticmethod
    def _mark_varying_system_lines(placed: Sequence[ParsedRecording]) -> None:
        """Record the lines of system text that differ between calls that share most of it."""
        texts: dict[frozenset[str], list[ParsedRecording]] = {}
        for each in placed:
            lines = frozenset(line for block in each.request.systems for line in to_text(block.value).split("\n"))
            texts.setdefault(lines, []).append(each)
        some = list(texts)[:_MOST_ALIKE]
        for lines, group in texts.items():
            alike = [other for other in some if other != lines and 2 * len(other & lines) >= len(lines)]
            data = frozenset(line for other in alike for line in lines - other)
            for each in group:
                each.data = data

    def _mark_template_lines(self, alike: list[ParsedRecording]) -> None:
        """Record the lines of users' words that recordings with the same history and other words share."""
        texts: dict[str, list[ParsedRecording]] = {}
        for each in alike:
            texts.setdefault(_digest_user_words(each.request), []).append(each)
        lines: dict[tuple[int, str], int] = {}
        for group in texts.values():
            for line in set(_list_user_lines(group[0].request)):
                lines[line] = lines.get(line, 0) + 1
        for group in texts.values():
            own = list(_list_user_lines(group[0].request))
            if len(own) > _LONGEST_TEMPLATE:
                continue
            prompt = frozenset(line for line in own if lines[line] > 1)
            for each in group:
                each.prompt = prompt
                question = min((line for line in own if line not in prompt), key=lines.__getitem__, default=None)
                if prompt and question is not None and (history := _digest_history(each.request)) is not None:
                    self._by_line.setdefault((history, question[1]), []).append(each)

    def parse_recorded_request(
        self, canonical: Canonical, call_ids: Sequence[str], client: Client | None = None
    ) -> ParsedRequest:
        return parse_request(canonical, call_ids, self.known, get_client_frames(client))

    def find_recordings(self, request: ParsedRequest) -> list[ParsedRecording] | Refusal:
        """Return the recordings at a request's place, all with one answer; else the reason why there are none."""
        if (history := _digest_history(request)) is None:
            why = "its history holds a part of a recorded answer, or it has no conversation"
            return Refusal(RefusalReason.NO_PLACE, why)
        found = self._at.get(_digest_position(history, request)) or self._find_despite_changed_template(
            history, request
        )
        if not found:
            return Refusal(RefusalReason.NO_PLACE, "no recording has its place in the run")
        if not (good := [each for each in found if each.recorded.answer is not None]):
            why = f"recording #{found[0].recorded.id} has its place, but is a failed answer"
            return Refusal(RefusalReason.IMPOSSIBLE, why)
        if not _have_equal_answers(good):  # a client's frames are equal in equal calls
            framed = [to_text(part.value) for part in request.frames]
            good = [each for each in good if [to_text(part.value) for part in each.request.frames] == framed] or good
        if not _have_equal_answers(good):
            good = [each for each in good if each.request.first_system_text == request.first_system_text]
        if not good or not _have_equal_answers(good):
            return Refusal(RefusalReason.AMBIGUOUS, "recordings with different answers stand at its place")
        return good

    def find_conflicts_under_changes(self, accepted: Iterable[AcceptedChange]) -> Iterator[tuple[int, int]]:
        """Yield pairs of recordings with different answers whose requests are equal under accepted changes."""
        after = {was: now for each in accepted for was, now in each.exactly if was and now}
        for placed in self._at.values():
            seen: dict[tuple[str, ...], ParsedRecording] = {}
            for each in placed:
                segments = [*each.request.systems, *each.request.slots.values()]
                digests = [digest_texts([dump(segment.value).hex()]) for segment in segments]
                other = seen.setdefault(tuple(after.get(digest, digest) for digest in digests), each)
                if other.meaning != each.meaning and other.recorded.key != each.recorded.key:
                    yield other.recorded.id, each.recorded.id

    def _find_despite_changed_template(self, history: str, request: ParsedRequest) -> list[ParsedRecording]:
        found: dict[int, ParsedRecording] = {}
        for line in dict.fromkeys(line for _, line in _list_user_lines(request)):
            alike = self._by_line.get((history, line), ())
            if len(alike) > _MOST_ALIKE:
                return []
            found.update((each.recorded.id, each) for each in alike)
        return [each for each in found.values() if differs_only_in_template(each, request)]


def _have_equal_answers(placed: Sequence[ParsedRecording]) -> bool:
    """Return whether recordings have one answer; equal requests may have several, in the order of the run."""
    by_key: dict[Key, list[str]] = {}
    for each in placed:
        by_key.setdefault(each.recorded.key, []).append(each.meaning)
    return len({tuple(meanings) for meanings in by_key.values()}) == 1


def differs_only_in_template(placed: ParsedRecording, request: ParsedRequest) -> bool:
    """Return whether a request has a recording's question: only lines of its template differ."""
    was, now = placed.request, request
    if was.turns != now.turns or len(was.words) != len(now.words):
        return False
    for n, (old, new) in enumerate(zip(was.words, now.words, strict=True)):
        if old.value == new.value:
            continue
        if read_text(old.value) is None or read_text(new.value) is None:
            return False
        before, after = to_text(old.value).split("\n"), to_text(new.value).split("\n")
        for i, j, at, to in iterate_sequence_edits(before, after):
            if i == j and not _is_between_template_lines(placed, n, before, i):
                return False
            if any((n, line) not in placed.prompt for line in before[i:j]) or (j > i and to - at > j - i):
                return False
            if blank_and_list_values("\n".join(before[i:j]))[1] != blank_and_list_values("\n".join(after[at:to]))[1]:
                return False
    return True


def _is_between_template_lines(placed: ParsedRecording, n: int, lines: Sequence[str], at: int) -> bool:
    """Return whether a new line is between template lines; next to a question it may be a part of the question."""
    beside = [lines[i] for i in (at - 1, at) if 0 <= i < len(lines)]
    return len(beside) == 2 and all((n, line) in placed.prompt for line in beside)


def _list_user_lines(request: ParsedRequest) -> Iterable[tuple[int, str]]:
    for n, part in enumerate(request.words):
        for line in to_text(part.value).split("\n"):
            yield n, line


def _digest_user_words(request: ParsedRequest) -> str:
    words = [f"{turn} {dump(part.value).hex()}" for turn, part in zip(request.turns, request.words, strict=True)]
    return digest_texts(words)


def _digest_history(request: ParsedRequest) -> str | None:
    """Return a digest of a place without the user's words; None if the request has no place."""
    canonical = request.canonical
    if canonical.kind != "json" or not request.whole or not (request.words or request.chain):
        return None
    parts = [canonical.provider, canonical.method, canonical.operation, str(request.has_tools), str(len(request.chain))]
    parts += request.chain
    for slot, segment in request.slots.items():
        if slot[0] == Kind.PARAMETER and segment.own in _STATE:
            parts += [segment.name, dump(segment.value).decode("utf-8", "surrogatepass")]
    return digest_texts(parts)


def _digest_position(history: str, request: ParsedRequest) -> str:
    return digest_texts([history, _digest_user_words(request)])


def _format_answer_without_ids(answer: Message | None) -> str:
    if answer is None:
        return ""
    return repr((answer.text, [(call.name, call.arguments, call.hosted, call.output) for call in answer.tool_calls],
                 [(call.name, call.arguments) for call in answer.beside]))  # fmt: skip
