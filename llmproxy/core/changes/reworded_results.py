"""Detection of a tool's result that has the same content in another wording.

A rewording replaces literal text by literal text. All values (numbers, paths, quoted texts, names, ids, lists) stay, in
their order. It is offered only if it is systematic: at least two results were recorded with the old wording, none of
this tool's results today has it, and no recorded one has the new wording. A word that only moves is a value. So is a
word for an outcome: "2 tests passed" is never "2 tests failed".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmproxy.core.changes.change import Hunk, iterate_sequence_edits
from llmproxy.lazy_regex import late

FAILS_NOW = "fails now"

_LIST = late(r"(?:[\w${}.-]+, ){2,}(?:and )?[\w${}.-]+")
_VALUE = late(
    r"\$\{[^}]*\}|[^\s@]*@\S+|[\w.\-~]*/[\w./\-]*|\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.])[-+.]*\w*[\d_]\w*(?:[.,:]\d+)*|\b\w*[a-z][A-Z]\w*|\b[A-Z]{2,}\b|(?<=[a-z,;] )[A-Z]\w*"
    r"|[^\s\w.,:;()'\"`]"
)
"""A value: a variable, an address, a path, a quoted text, a file, a word with a digit or an underscore, a name inside
of a sentence, a sign."""
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


def find_rewording(
    before: str, after: str, tool: str, recorded: Iterable[str], present: Iterable[str]
) -> tuple[tuple[Hunk, ...], str] | str:
    """Return the rewording of a tool's result, without its values, and `FAILS_NOW` if it had succeeded; or why there is
    none.

    `recorded` are all of the tool's results in the recordings, `present` those in this run. A tool that succeeded may
    fail now, if its result was only an acknowledgement, the same each time: "Intent logged", and today the tool does
    not exist.
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
