"""A program that stands in a shell's words, ``sh -c 'codex exec -c base_url="$OPENAI_BASE_URL" "hi"'``: found there, and given words of ours.

Only what the text begins with is found: behind a ``cd``, in another home or in a loop nobody knows where the program would look.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_RUNS = re.compile(r"-[a-z]*c")
_ELSEWHERE = r"(?!(?:HOME|CODEX_HOME|CLAUDE_CONFIG_DIR)=)"
_TEXT = re.compile(
    rf"(?P<before>\s*(?:{_ELSEWHERE}[A-Za-z_][A-Za-z0-9_]*=[^\s;|&()'\"`$]*\s+)*(?:exec\s+)?)"
    r"(?P<quote>['\"]?)(?P<program>[^\s;|&()'\"`$=]+)(?P=quote)(?P<rest>\s.*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class InShell:
    """A program with its words, in a shell's."""

    program: str
    words: tuple[str, ...]
    """Behind it, to the end of the text, no variable expanded."""
    _shell: tuple[str, ...]
    _before: str
    _rest: str
    _after: tuple[str, ...]

    def add_words(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the shell's command with these words right behind the program."""
        text = (
            f"{self._before}{shlex.quote(self.program)}{''.join(f' {shlex.quote(word)}' for word in words)}{self._rest}"
        )
        return (*self._shell, text, *self._after)


def in_shell(command: Sequence[str]) -> InShell | None:
    """Return what a shell's text begins with; None for any other command, and for a text that cannot be read."""
    program = command[0].replace("\\", "/").rpartition("/")[2]
    if program not in _SHELLS or len(command) < 3 or _RUNS.fullmatch(command[1]) is None:
        return None
    found = _TEXT.fullmatch(command[2])
    if found is None:
        return None
    rest = found["rest"] or ""
    try:
        words = tuple(shlex.split(rest))
    except ValueError:
        return None
    return InShell(found["program"], words, tuple(command[:2]), found["before"], rest, tuple(command[3:]))
