"""Where git itself says who commits and on which branch: what it prints of this run's, and not what is in a repository.

    Author: Ann Smith <ann@example.com>
    [main 1f3a9c0] Add the note

A colleague's commit is the colleague's. Elsewhere a name or a branch may mean anybody's: the lines that git writes are all that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmproxy.core.bindings.values.listings import ListingPart
from llmproxy.late import late

USER, BRANCH = "git_user", "git_branch"
"""Names of the circumstances: ``Ann Smith <ann@example.com>``, ``main``."""
_AUTHOR = late(r"^(?:Author|Commit|Committer|Tagger): +(?P<who>[^\n<]+ <[^\n>]*>)$", re.MULTILINE)
_PEOPLE = late(
    r"(?:(?:Author|Commit|Committer|Tagger|Co-authored-by): +(?P<who>[^\n<>\\\"]{1,100} <[^\s<>\\\"]{1,200}>)"
    r"|Git user: +(?P<said>[^\n<>\\\"]{1,100}))"
)
"""In a text, in JSON and in YAML; the last as Claude Code says it."""
_ON_BRANCH = (
    r"(?:^\[|^On branch |^\* |HEAD -> |[Bb]ranch '|Already on '){}(?= (?:\(root-commit\) )?[0-9a-f]{{7,40}}\]|[,)']|$)"
)


def find_git(text: str, user: tuple[str, str], branch: tuple[str, str] | None) -> Iterator[ListingPart]:
    """Yield where this run's user or branch may stand for the recorded one, in order.

    `user` and `branch` are (recorded, present); an empty recorded user is one that was not kept: then any author may be this run's user.
    """
    found = list(_of_user(text, *user)) if user[1] else []
    if branch is not None and branch[0] in text:
        found += _of_branch(text, *branch)
    yield from sorted(found, key=lambda part: part.start)


def list_people(text: str) -> dict[str, list[int]]:
    """Return whom git names in a text, or in a file that holds such texts, and where."""
    found: dict[str, list[int]] = {}
    for each in _PEOPLE.finditer(text):
        found.setdefault((each["who"] or each["said"]).strip(), []).append(each.start())
    return found


def _of_user(text: str, recorded: str, present: str) -> Iterator[ListingPart]:
    for line in _AUTHOR.finditer(text):
        if (who := line["who"]) == recorded or not recorded:
            yield ListingPart(*line.span("who"), _either(who, present), USER)


def _of_branch(text: str, recorded: str, present: str) -> Iterator[ListingPart]:
    for place in re.finditer(_ON_BRANCH.format(re.escape(recorded)), text, re.MULTILINE):
        yield ListingPart(place.end() - len(recorded), place.end(), _either(recorded, present), BRANCH)


def _either(*texts: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})")
