"""May a value stand in a command where another one stood? Quotes that the model wrote for a recorded folder may not do for this run's.

    text, where the recorded value begins and ends, the new value -> yes, or no

Yes where nothing in the new value means anything to a shell that the recorded one had not as well, where it is written with backslashes, or
where quotes begin right before it that keep all of it -- unless what they hold is read by a shell once more (``sh -c "..."``). No is a miss.
"""

from __future__ import annotations

from llmproxy.late import late

_PLAIN = late(r"[\w@%+=:,./~-]*")
"""Means nothing to a shell; neither does a letter of any script."""
_ESCAPED = late(r"(?:[\w@%+=:,./~-]|\\[^\n])*\Z")
_READ_TWICE = late(r"(?:^|\s)(?:-\w*c|eval|ssh|xargs|su|watch|parallel)(?:\s|$)")
_KEPT_BY = {"'": frozenset("'\\\n"), '"': frozenset('"$`\\\n!')}
"""By quote: what may not stand in it. A backslash not in either: Python and JavaScript read it in both."""
_FENCE = "```"


def may_stand(text: str, start: int, end: int, new: str) -> bool:
    """Tell whether `new` may stand in a command where text[start:end] stood."""
    if _PLAIN.fullmatch(new):
        return True
    recorded = text[start:end]
    if _special(new) <= _special(recorded):
        return True
    opened = _open_quote(text, start)
    if opened < 0:
        return "\\" in recorded and _ESCAPED.match(new) is not None
    if opened != start - 1 or (opened and text[opened - 1] == "$") or _READ_TWICE.search(text):
        return False
    return not _KEPT_BY[text[opened]] & set(new)


def is_in_fence(text: str, at: int) -> bool:
    """Tell whether a position of Markdown lies in a block of code, which some agents run."""
    return text.count(_FENCE, 0, at) % 2 == 1


def _special(value: str) -> set[str]:
    """Return the characters that may mean something to a shell."""
    return set(_PLAIN.sub("", value))


def _open_quote(text: str, at: int) -> int:
    """Return where the quote begins in which a position lies, as a POSIX shell reads it; -1 for none."""
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
