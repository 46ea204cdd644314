r"""Where a value begins and ends inside of a text.

``/tmp/a`` stands in ``cd /tmp/a/x`` and in ``-I/tmp/a``, and neither in ``/tmp/ab`` nor in ``/private/tmp/a``. Texts are read as they are
on the wire: inside of nested JSON a line break is the two letters ``\n``, a colour is ``\u001b[32m``, and neither is part of a path.
"""

from __future__ import annotations

import unicodedata

from llmproxy.late import late

_INSIDE_PATH = frozenset("._-~/\\$%+@)}")
_BEFORE_ANSI = late(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\e|\\033)\[[0-9;]*[A-Za-z]\Z")
_BEFORE_ESCAPE = late(r"(?<!\\)(?:\\\\)*\\+[nrtbf\"']\Z")
_BEFORE_FLAG = late(r"(?:^|[\s\"'=,(\[])-[A-Za-z]\Z")
_ABOVE = late(r"(?<![^\s\"'`=:,(/\\])(?:\.\.\.?|…)[/\\]\Z")
_LOOK_BACK = 24
_TAIL = frozenset(".-")
_FOLLOWED = frozenset("_~$%+@")
_FIRST_MARK = "\u0300"


def is_word(letter: str) -> bool:
    """Tell whether a character is a letter or digit of any script, or a mark on one: ``é`` may be two characters."""
    return letter.isalnum() or (letter >= _FIRST_MARK and unicodedata.category(letter)[0] == "M")


def stands_alone(text: str, start: int, end: int) -> bool:
    """Tell whether text[start:end] has no letter or digit beside it: the borders of ids (``<uuid>.txt`` holds the id)."""
    if start and is_word(text[start - 1]) and not _follows_escape(text, start):
        return False
    return end >= len(text) or not is_word(text[end])


def _follows_escape(text: str, start: int) -> bool:
    before = text[max(0, start - _LOOK_BACK) : start]
    return bool(_BEFORE_ESCAPE.search(before) or _BEFORE_ANSI.search(before))


def is_path(text: str, start: int, end: int) -> bool:
    """Tell whether the path text[start:end] begins and ends there; a path below it goes on with a separator."""
    return _path_begins(text, start) and path_ends(text, end)


def _path_begins(text: str, start: int) -> bool:
    if not start:
        return True
    last = text[start - 1]
    if not (is_word(last) or last in _INSIDE_PATH):
        return True
    before = text[max(0, start - _LOOK_BACK) : start]
    if before.endswith("://") or (before.endswith("\\/\\/") and ":" in before[-5:]):
        return True
    return bool(_BEFORE_ANSI.search(before) or _BEFORE_ESCAPE.search(before) or _BEFORE_FLAG.search(before))


def path_ends(text: str, end: int) -> bool:
    """Tell whether a path ends, or goes on below, at `end`."""
    length = len(text)
    at = end
    while at < length and text[at] in _TAIL:  # the full stop of a sentence; but not that of a.bak
        at += 1
    if at >= length:
        return True
    letter = text[at]
    if at > end:
        return not (is_word(letter) or letter in "_/")
    if is_word(letter) or letter in _FOLLOWED:
        return False
    return not (letter == "\\" and text[at : at + 2] == "\\ ")


def is_slug(text: str, start: int, end: int) -> bool:
    """Tell whether a folder's name made of a path stands alone."""
    if start and (is_word(text[start - 1]) or text[start - 1] in "-_") and not _follows_escape(text, start):
        return False
    return end >= len(text) or not (is_word(text[end]) or text[end] in "-_")


def is_slug_below(text: str, start: int, end: int) -> bool:
    """Tell whether the name made of a path of one part stands as a folder: ``-app`` alone is an option of some program."""
    return start > 0 and text[start - 1] in "/\\" and is_slug(text, start, end)


def is_base(text: str, start: int, end: int) -> bool:
    """Tell whether a folder's own name stands where only that folder is meant: ``../project``, ``…/project``.

    Behind any other folder it is another one: ``lib/test`` is not ours because we work in one that is called ``test``.
    """
    return _ABOVE.search(text, max(0, start - 5), start) is not None and path_ends(text, end)


def is_block(text: str, start: int, end: int) -> bool:
    """Tell whether text[start:end] is the rest of a line, whole lines, or all that a tag holds."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    begins = not before or before[-1] in "\n>" or before == ": " or before.endswith("\\n")
    ends = not after or after[0] in "\n<\r" or after == "\\n"
    return begins and ends
