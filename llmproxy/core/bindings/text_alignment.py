"""Alignment of a recorded text, in which certain places may differ, with a present text.

Text between gaps must be equal, character by character. At a gap with several options each is tried. Every state (gap,
position) is visited once, so the work is bounded by gaps times options for any input.

Also here: the parts of ``ls -l`` rows and git lines that depend on a folder's position and owner, not on its content.
Columns are padded to the widest entry, so the parent's row (``..``) shifts all others; it describes another folder. A
colleague's commit keeps the colleague's name. Only lines of git count: elsewhere a name or a branch is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from llmproxy.core.traffic.json_diff import count_common_prefix
from llmproxy.lazy_regex import late

Border = Callable[[str, int, int], bool]
"""Returns whether a value that occupies text[start:end] begins and ends there."""


class PossibleSpanText(NamedTuple):
    text: str
    border: Border
    name: str
    unchanged: bool = False
    leaks: bool = False
    """Whether it must not occur: it is searched for only to report it."""
    same: bool = False
    """Whether recorded and present value have the same spelling: ``November 2026`` on two of its days."""
    readings: frozenset[tuple[str, int]] = frozenset()
    """Names and ways for which it can stand, if that must be the same at all places; see `RunValueSpelling.way`."""


class VariableSpan(NamedTuple):
    start: int
    end: int
    options: tuple[PossibleSpanText, ...] = ()
    free: re.Pattern[str] | None = None
    name: str = ""
    in_answers: bool = True
    label: str = ""
    """Label of a short value in the comparison, since another name may have the same value."""


class FilledGap(NamedTuple):
    gap: VariableSpan
    option: PossibleSpanText | None
    text: str


class TextDivergence(NamedTuple):
    recorded: int
    present: int
    leaked: bool = False
    """Whether a recorded value that must not occur is there."""


def match_text_with_gaps(recorded: str, gaps: Sequence[VariableSpan], present: str) -> list[FilledGap] | TextDivergence:
    """Align two texts; `gaps` are in order and do not overlap."""
    furthest = TextDivergence(0, 0)
    seen: set[tuple[int, int]] = set()
    todo: list[tuple[int, int, tuple[FilledGap, object] | None]] = [(0, 0, None)]
    while todo:
        n, at, path = todo.pop()
        if (n, at) in seen:
            continue
        seen.add((n, at))
        start = gaps[n - 1].end if n else 0
        end = gaps[n].start if n < len(gaps) else len(recorded)
        literal = recorded[start:end]
        if not present.startswith(literal, at) or (n == len(gaps) and at + len(literal) != len(present)):
            same = count_common_prefix(literal, present[at : at + len(literal)])
            if start + same >= furthest.recorded:
                furthest = TextDivergence(start + same, at + same, furthest.leaked)
            continue
        at += len(literal)
        if n == len(gaps):
            found: list[FilledGap] = []
            node: object = path
            while isinstance(node, tuple):
                found.append(node[0])
                node = node[1]
            return found[::-1]
        if not (branches := list(_list_gap_fillings(gaps[n], present, at))) and end >= furthest.recorded:
            furthest = TextDivergence(end, at)
        for length, option in reversed(branches):
            if option is not None and option.leaks:
                furthest = TextDivergence(end, at, leaked=True)
                continue
            todo.append((n + 1, at + length, (FilledGap(gaps[n], option, present[at : at + length]), path)))
    return furthest


def _list_gap_fillings(gap: VariableSpan, present: str, at: int) -> Iterable[tuple[int, PossibleSpanText | None]]:
    if gap.free is not None:
        if (found := gap.free.match(present, at)) is not None:
            yield found.end() - at, None
        return
    for option in gap.options:
        end = at + len(option.text)
        if present.startswith(option.text, at) and (option.unchanged or option.border(present, at, end)):
            yield len(option.text), option


def replace_text_spans(text: str, changes: Iterable[tuple[int, int, str, *tuple[object, ...]]]) -> str:
    """Return a text with some parts replaced: (start, end, new, ...), in order and without overlap."""
    parts, last = [], 0
    for start, end, new, *_ in changes:
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]])


def put_current_run_values_in_text(text: str, gaps: Iterable[VariableSpan]) -> str:
    return replace_text_spans(text, ((gap.start, gap.end, gap.options[0].text) for gap in gaps))


LISTING = "listing"
LISTED = late(r"[-dlbcps][-rwxsStT]{9}")
ROW = rf"{LISTED.pattern}[.+@]? +\d+ +\S+ +\S+ +[\d.,]+[KMGTP]?(?= )"
"""The text before a file's time and name, in any row."""
_COLUMNS = (
    rf"{LISTED.pattern}[.+@]?(?: +)\d+(?: +)(?P<owner>\S+)(?: +)(?P<group>\S+)(?: +)(?P<size>[\d.,]+[KMGTP]?)(?= )"
)
_ROW = late(rf"^{_COLUMNS}", re.MULTILINE)
_PARENT = late(rf"^{ROW}[^\n]{{1,40}} (?=\.\.$)", re.MULTILINE)
_PERMISSIONS = ("r-x", "rw-", "r--", "rwx")
"""Texts of which nearly every row contains one: a text without any is not searched."""
_PADDED = late(" +")
_SIZE = late(r"\d+(?= )")
_FILES = r"(?:\S*/)?llmproxy\.db(?:\.state\.db)?(?:-wal|-shm)?"
_OURS = late(rf"(?:{_COLUMNS}[^\n]{{1,40}} |\?\? )?{_FILES}")
_STATUS = late(r"[ MADRCU?!]{1,2} \S.*")
_OUR_STATUS = late(rf"[ MADRCU?!]{{1,2}} {_FILES}")
_TOTAL = late(r"total [\d.,]+[KMGTP]?")


def find_listing_variable_spans(
    text: str, *, elsewhere: bool, users: tuple[str, str] | None = None
) -> Iterator[VariableSpan]:
    """Yield padding between the columns of listings, parents' rows and the user's name in rows.

    `elsewhere`: the run is in another folder. `users`: the recorded user's name and the present one, if they differ.
    """
    if not any(each in text for each in _PERMISSIONS):
        return
    parents = {found.start(): found for found in _PARENT.finditer(text)} if elsewhere else {}
    for row in _ROW.finditer(text):
        if (parent := parents.get(row.start())) is not None:
            yield VariableSpan(*parent.span(), free=_PARENT, name=LISTING)
            continue
        yield from (
            VariableSpan(*each.span(), free=_PADDED, name=LISTING) for each in _PADDED.finditer(text, *row.span())
        )
        if users is not None:
            yield from (_build_name_gap(row, n, users, "user") for n in ("owner", "group") if row[n] in users)
        if text[row.start()] == "l":
            yield VariableSpan(*row.span("size"), free=_SIZE, name=LISTING)


def drop_llmproxy_files_from_ls(recorded: str, present: str) -> tuple[str, str]:
    """Return two results without lines of listings that name llmproxy's files, and without ``ls -l``'s block totals."""
    if "llmproxy.db" not in recorded and "llmproxy.db" not in present:
        return recorded, present
    both = [[line for line in text.split("\n") if not _OURS.fullmatch(line)] for text in (recorded, present)]
    mine, theirs = ("\n".join("total" if _TOTAL.fullmatch(line) else line for line in lines) for lines in both)
    return mine, theirs


def drop_llmproxy_git_status_lines(text: str) -> str:
    """Return a text without git's lines for llmproxy's files; ``(clean)`` if a status had no others."""
    if "llmproxy.db" not in text:
        return text
    kept: list[str] = []
    for is_status, lines in groupby(text.split("\n"), lambda line: _STATUS.fullmatch(line) is not None):
        said = list(lines)
        kept += ([line for line in said if not _OUR_STATUS.fullmatch(line)] or ["(clean)"]) if is_status else said
    return "\n".join(kept)


def build_any_spacing_pattern(literal: str) -> str:
    """Return a pattern for the text before a value in a row, with any padding."""
    return " +".join(re.escape(each) for each in _PADDED.split(literal))


_AUTHOR = late(r"^(?:Author|Commit|Committer|Tagger): +(?P<who>[^\n<]+ <[^\n>]*>)$", re.MULTILINE)
_PEOPLE = late(
    r"(?:(?:Author|Commit|Committer|Tagger|Co-authored-by): +(?P<who>[^\n<>\\\"]{1,100} <[^\s<>\\\"]{1,200}>)"
    r"|Git user: +(?P<said>[^\n<>\\\"]{1,100}))"
)
"""In a text, in JSON and in YAML; the last form is Claude Code's."""
_ON_BRANCH = (
    r"(?:^\[|^On branch |^\* |HEAD -> |[Bb]ranch '|Already on ')(?P<branch>{})"
    r"(?= (?:\(root-commit\) )?[0-9a-f]{{7,40}}\]|[,)']|$)"
)


def _find_git_names(text: str, user: tuple[str, str], branch: tuple[str, str] | None) -> Iterator[VariableSpan]:
    """Yield the recorded users and branches that this run's may replace, and those that already are this run's.

    `user` and `branch` are (recorded, present). An empty recorded user was not kept: then any author may be this run's.
    """
    for line in _AUTHOR.finditer(text) if user[1] else ():
        if not user[0] or line["who"] in user:
            yield _build_name_gap(line, "who", user, "git_user")
    if branch is not None and any(each in text for each in branch):
        for place in re.finditer(_ON_BRANCH.format("|".join(map(re.escape, branch))), text, re.MULTILINE):
            yield _build_name_gap(place, "branch", branch, "git_branch")


def _build_name_gap(found: re.Match[str], group: str, names: tuple[str, str], name: str) -> VariableSpan:
    """Return a gap for a name of the recorded run, which may be this run's now, or for this run's, which stays."""
    free = _compile_alternatives(found[group], names[1])
    return VariableSpan(*found.span(group), free=free, name=name, in_answers=False)


@lru_cache(200)
def _compile_alternatives(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def list_varying_shell_output_spans(
    text: str, values: Mapping[str, tuple[str, str]], git_user: str, *, elsewhere: bool
) -> list[VariableSpan]:
    """Return the gaps of listings and git output in order; `values`: recorded and present run variables by name."""
    gaps = [*find_listing_variable_spans(text, elsewhere=elsewhere, users=values.get("user"))]
    gaps += _find_git_names(text, values.get("git_user", ("", git_user)), values.get("git_branch"))
    return sorted(gaps, key=lambda gap: gap.start)


def find_people_in_git_output(text: str) -> dict[str, list[int]]:
    """Return the people in a text's git output (or in a file of such texts), with their positions."""
    found: dict[str, list[int]] = {}
    for each in _PEOPLE.finditer(text):
        found.setdefault((each["who"] or each["said"]).strip(), []).append(each.start())
    return found
