"""Places: the position of a request in a run, the recordings at that position, and what other recordings tell.

A place is the provider, the operation, whether there are tools, the recorded answers in the history, and the user's
words so far. Editable text is no part of it: system text, tools, parameters, headers, wordings of results. If two
recordings with different answers are at one place, the thread (the first block of system text) decides between them;
otherwise the place is ambiguous. Lines of a user's message that two or more recordings of a cassette share, around
other lines, are a template: they may change like a prompt. The remaining lines are the question.

The wording of a tool's result may change too (`find_tool_result_rewording`). All values (numbers, paths, quoted texts,
names, ids, lists) stay, in their order. A word that only moves is a value. So is a word for an outcome: "passed",
"failed".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmproxy.core.changes.accepted_change_model import AcceptedChange
from llmproxy.core.changes.request_parsing import (
    RecordedAnswersByToolCalls,
    RequestInSegments,
    extract_text_only_content,
    parse_request_into_segments,
    to_text,
)
from llmproxy.core.changes.segment_change import (
    CarriedAnswerRefusal,
    Hunk,
    RefusalReason,
    digest_texts,
    iterate_sequence_edits,
)
from llmproxy.core.dialects.conversation import Kind
from llmproxy.core.dialects.messages import Message
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.providers.provider_table import ClientProgram
from llmproxy.core.traffic.canonical_json import dump
from llmproxy.core.traffic.interaction import Key
from llmproxy.lazy_regex import late

FAILS_NOW = "fails now"
_LIST = late(r"(?:[\w${}.-]+, ){2,}(?:and )?[\w${}.-]+")
_VALUE = late(
    r"\$\{[^}]*\}|[^\s@]*@\S+|[\w.\-~]*/[\w./\-]*|\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.])[-+.]*\w*[\d_]\w*(?:[.,:]\d+)*|\b\w*[a-z][A-Z]\w*|\b[A-Z]{2,}\b|(?<=[a-z,;] )[A-Z]\w*"
    r"|[^\s\w.,:;()'\"`]"
)
"""A variable, an address, a path, a quoted text, a file, a word with a digit, a name inside of a sentence, a sign."""
_WORD = late(r"[^\W\d_]+")
_OUTCOMES = late(
    r"not|no|non|none|never|without|cannot|nothing|n't|fail\w*|pass\w*|succe\w*|error\w*|err|ok|okay|true|"
    r"false|yes|den\w+|allow\w*|grant\w*|reject\w*|accept\w*|approv\w*|refus\w*|permit\w*|forbid\w*|valid|"
    r"invalid|open\w*|clos\w*|enabl\w*|disabl\w*|on|off|start\w*|stop\w*|complet\w*|incomplete|pending|"
    r"cancel\w*|abort\w*|found|missing|exist\w*|creat\w*|delet\w*|remov\w*|add\w*|increas\w*|decreas\w*|"
    r"paid|unpaid|ship\w*|deliver\w*|sent|received|more|less|before|after|above|below|up|down|left|right|"
    r"buy|sell|debit\w*|credit\w*|warn\w*|skip\w*|timeout|timed|unavailable|available|healthy|unhealthy|"
    r"active|inactive|empty|full|online|offline|success|failure|all|some|only",
    re.IGNORECASE,
)
"""Words for an outcome, or with an opposite: never part of a rewording."""
_FAILURE = late(
    r"does not exist|not found|no such tool|unknown tool|is not available|unavailable|error|failed|denied",
    re.IGNORECASE,
)
_LONGEST = 2000


def find_tool_result_rewording(
    before: str, after: str, tool: str, recorded: Iterable[str], present: Iterable[str]
) -> tuple[tuple[Hunk, ...], str] | str:
    """Return a rewording without its values, and `FAILS_NOW` if the result had succeeded; or why there is none.

    It must be systematic: at least two results were recorded with the old wording, none of this tool's results today
    (`present`) has it, and no recorded one has the new wording. A tool that succeeded may fail now, if its result was
    only an acknowledgement, the same each time: "Intent logged", and today the tool does not exist.
    """
    old, new = before.split("\n"), after.split("\n")
    if len(old) + len(new) > _LONGEST:
        return "it is too long to be looked at"
    others, today = {*recorded} - {before}, {after, *present}
    if before in today:
        return "what the tool answers today is as it was, too"
    acknowledges = "\n" not in before and len(before) < 100 and not _VALUE.search(before)
    if acknowledges and not others and _is_new_failure(before, after):
        return (Hunk(1, tuple(old), tuple(blank_and_list_values(line, tool)[0] for line in new)),), FAILS_NOW
    hunks = []
    for i, j, at, to in iterate_sequence_edits(old, new):
        was, now = "\n".join(old[i:j]), "\n".join(new[at:to])
        if (why := _find_meaning_change(was, now, tool)) != "":
            return why
        sides = [blank_and_list_values(text, tool)[0] for text in (was, now)]
        hunks.append(Hunk(at + 1, *(tuple(side.split("\n")) if side else () for side in sides)))
        if not sides[0].strip() or not sides[1].strip():
            return "a line of it appears or vanishes"
    for hunk in hunks:
        if any(_contains_lines(text, hunk.after, tool) for text in (before, *others)):
            return "what was recorded has the new wording, too"
        if any(_contains_lines(text, hunk.before, tool) for text in today):
            return "what the tool answers today has the old wording, too"
        if not any(_contains_lines(text, hunk.before, tool) for text in others):
            return "no other result has these words: nobody can say that they are a wording"
    return tuple(hunks), ""


def _is_new_failure(before: str, after: str) -> bool:
    old, new = (
        {word.lower() for word in _WORD.findall(_VALUE.sub(" ", text)) if len(word) > 3} for text in (before, after)
    )
    return not _FAILURE.search(before) and _FAILURE.search(after) is not None and not old & new


def blank_and_list_values(text: str, tool: str = "") -> tuple[str, list[str]]:
    """Return a text with a hole for each of its values, and the values; the tool's own name is none."""
    values: list[str] = []

    def hole(found: re.Match[str]) -> str:
        if tool and found[0].strip("'\"`") == tool:
            return tool
        values.append(found[0])
        return "{}"

    def hole_list(found: re.Match[str]) -> str:
        values.append(found[0])
        return "LIST"

    return _VALUE.sub(hole, _LIST.sub(hole_list, text)), values


def _find_meaning_change(was: str, now: str, tool: str) -> str:
    if blank_and_list_values(was, tool)[1] != blank_and_list_values(now, tool)[1]:
        return "a value of it vanished, appeared or moved"
    old, fresh = ([found[0] for found in _WORD.finditer(_VALUE.sub(" ", text))] for text in (was, now))
    edits = list(iterate_sequence_edits(old, fresh))
    gone = [word for i, j, _, _ in edits for word in old[i:j]]
    new = [word for _, _, at, to in edits for word in fresh[at:to]]
    if {word.lower() for word in gone} & {word.lower() for word in new}:
        return "a word of it moved"
    if outcome := next((word for word in (*gone, *new) if _OUTCOMES.fullmatch(word)), None):
        return f"it says {outcome!r}, or does no more: that is what the tool answered, not how"
    return ""


def _contains_lines(text: str, lines: tuple[str, ...], tool: str) -> bool:
    return "\n".join(lines) in blank_and_list_values(text, tool)[0]


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
    client: ClientProgram | None = None


@dataclass(slots=True)
class RecordingWithParsedRequest:
    recorded: RecordedCall
    request: RequestInSegments
    meaning: str
    """Digest of its answer without ids: equal for equal answers."""
    prompt: frozenset[tuple[int, str]] = frozenset()
    """Template lines in the user's words: the number of the part, and the line."""
    data: frozenset[str] = frozenset()
    """Lines of its system text that differ in other calls with the same text around them."""


class RecordingsByConversationPlace:
    def __init__(self, recordings: Iterable[RecordedCall]) -> None:
        all_ = list(recordings)
        self.known = RecordedAnswersByToolCalls()
        for each in all_:
            if each.answer is not None:
                self.known.add_answer(each.answer)
        self._at: dict[str, list[RecordingWithParsedRequest]] = {}
        self._by_line: dict[tuple[str, str], list[RecordingWithParsedRequest]] = {}
        at_history: dict[str, list[RecordingWithParsedRequest]] = {}
        self.results: dict[str, set[str]] = {}
        for each in all_:
            request = self.parse_recorded_request(each.canonical, each.call_ids, each.client)
            for tool, text in request.tool_results:
                self.results.setdefault(tool, set()).add(text)
            placed = RecordingWithParsedRequest(each, request, _format_answer_without_ids(each.answer))
            if (history := _digest_history(request)) is not None:
                self._at.setdefault(_digest_position(history, request), []).append(placed)
                at_history.setdefault(history, []).append(placed)
        for alike in at_history.values():
            self._mark_template_lines(alike)
        self._mark_varying_system_lines([each for alike in self._at.values() for each in alike])

    @staticmethod
    def _mark_varying_system_lines(placed: Sequence[RecordingWithParsedRequest]) -> None:
        """Record the lines of system text that differ between calls that share most of it."""
        texts: dict[frozenset[str], list[RecordingWithParsedRequest]] = {}
        for each in placed:
            lines = frozenset(line for block in each.request.systems for line in to_text(block.value).split("\n"))
            texts.setdefault(lines, []).append(each)
        some = list(texts)[:_MOST_ALIKE]
        for lines, group in texts.items():
            alike = [other for other in some if other != lines and 2 * len(other & lines) >= len(lines)]
            data = frozenset(line for other in alike for line in lines - other)
            for each in group:
                each.data = data

    def _mark_template_lines(self, alike: list[RecordingWithParsedRequest]) -> None:
        """Record the lines of users' words that recordings with the same history and other words share."""
        texts: dict[str, list[RecordingWithParsedRequest]] = {}
        for each in alike:
            texts.setdefault(_digest_user_words(each.request), []).append(each)
        lines = Counter(line for group in texts.values() for line in set(_list_user_lines(group[0].request)))
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
        self, canonical: Canonical, call_ids: Sequence[str], client: ClientProgram | None = None
    ) -> RequestInSegments:
        return parse_request_into_segments(canonical, call_ids, self.known, client)

    def find_recordings(self, request: RequestInSegments) -> list[RecordingWithParsedRequest] | CarriedAnswerRefusal:
        """Return the recordings at a request's place, all with one answer; else the reason why there are none."""
        if (history := _digest_history(request)) is None:
            why = "its history holds a part of a recorded answer, or it has no conversation"
            return CarriedAnswerRefusal(RefusalReason.NO_PLACE, why)
        found = self._at.get(_digest_position(history, request)) or self._find_in_other_template(history, request)
        if not found:
            return CarriedAnswerRefusal(RefusalReason.NO_PLACE, "no recording has its place in the run")
        if not (good := [each for each in found if each.recorded.answer is not None]):
            why = f"recording #{found[0].recorded.id} has its place, but is a failed answer"
            return CarriedAnswerRefusal(RefusalReason.IMPOSSIBLE, why)
        if not _have_equal_answers(good):  # a client's frames are equal in equal calls
            framed = [to_text(part.value) for part in request.frames]
            good = [each for each in good if [to_text(part.value) for part in each.request.frames] == framed] or good
        if not _have_equal_answers(good):
            good = [each for each in good if each.request.first_system_text == request.first_system_text]
        if not good or not _have_equal_answers(good):
            return CarriedAnswerRefusal(RefusalReason.AMBIGUOUS, "recordings with different answers stand at its place")
        return good

    def find_conflicts_under_changes(self, accepted: Iterable[AcceptedChange]) -> Iterator[tuple[int, int]]:
        """Yield pairs of recordings with different answers whose requests are equal under accepted changes."""
        after = {was: now for each in accepted for was, now in each.exactly if was and now}
        for placed in self._at.values():
            seen: dict[tuple[str, ...], RecordingWithParsedRequest] = {}
            for each in placed:
                segments = [*each.request.systems, *each.request.slots.values()]
                digests = [digest_texts([dump(segment.value).hex()]) for segment in segments]
                other = seen.setdefault(tuple(after.get(digest, digest) for digest in digests), each)
                if other.meaning != each.meaning and other.recorded.key != each.recorded.key:
                    yield other.recorded.id, each.recorded.id

    def _find_in_other_template(self, history: str, request: RequestInSegments) -> list[RecordingWithParsedRequest]:
        found: dict[int, RecordingWithParsedRequest] = {}
        for line in dict.fromkeys(line for _, line in _list_user_lines(request)):
            alike = self._by_line.get((history, line), ())
            if len(alike) > _MOST_ALIKE:
                return []
            found.update((each.recorded.id, each) for each in alike)
        return [each for each in found.values() if is_same_question_in_new_template(each, request)]


def _have_equal_answers(placed: Sequence[RecordingWithParsedRequest]) -> bool:
    """Return whether recordings have one answer; equal requests may have several, in the order of the run."""
    by_key: dict[Key, list[str]] = {}
    for each in placed:
        by_key.setdefault(each.recorded.key, []).append(each.meaning)
    return len({tuple(meanings) for meanings in by_key.values()}) == 1


def is_same_question_in_new_template(placed: RecordingWithParsedRequest, request: RequestInSegments) -> bool:
    """Return whether a request has a recording's question: only lines of its template differ."""
    was, now = placed.request, request
    if was.turns != now.turns or len(was.words) != len(now.words):
        return False
    for n, (old, new) in enumerate(zip(was.words, now.words, strict=True)):
        if old.value == new.value:
            continue
        if extract_text_only_content(old.value) is None or extract_text_only_content(new.value) is None:
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


def _is_between_template_lines(placed: RecordingWithParsedRequest, n: int, lines: Sequence[str], at: int) -> bool:
    """Return whether a new line is between template lines; next to a question it may be a part of the question."""
    beside = [lines[i] for i in (at - 1, at) if 0 <= i < len(lines)]
    return len(beside) == 2 and all((n, line) in placed.prompt for line in beside)


def _list_user_lines(request: RequestInSegments) -> Iterable[tuple[int, str]]:
    for n, part in enumerate(request.words):
        for line in to_text(part.value).split("\n"):
            yield n, line


def _digest_user_words(request: RequestInSegments) -> str:
    words = [f"{turn} {dump(part.value).hex()}" for turn, part in zip(request.turns, request.words, strict=True)]
    return digest_texts(words)


def _digest_history(request: RequestInSegments) -> str | None:
    """Return a digest of a place without the user's words; None if the request has no place."""
    canonical = request.canonical
    if canonical.kind != "json" or not request.whole or not (request.words or request.chain):
        return None
    tools = any(slot[0] == Kind.TOOL for slot in request.slots)
    parts = [canonical.provider, canonical.method, canonical.operation, str(tools), str(len(request.chain))]
    parts += request.chain
    for slot, segment in request.slots.items():
        if slot[0] == Kind.PARAMETER and segment.own in _STATE:
            parts += [segment.name, dump(segment.value).decode("utf-8", "surrogatepass")]
    return digest_texts(parts)


def _digest_position(history: str, request: RequestInSegments) -> str:
    return digest_texts([history, _digest_user_words(request)])


def _format_answer_without_ids(answer: Message | None) -> str:
    if answer is None:
        return ""
    return repr((answer.text, [(call.name, call.arguments, call.hosted, call.output) for call in answer.tool_calls],
                 [(call.name, call.arguments) for call in answer.beside]))  # fmt: skip
