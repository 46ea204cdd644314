"""Does a text look like a secret, or like words? Tables and sums, no search: `find` asks once a shape has matched.

A key is drawn by lot: it mixes letters and digits, and no character stands out. Names, models, file names and what
documentation writes for a key (``your-api-key``, ``AKIA...EXAMPLE``) do not. Where a doubt is left, names win in
running text, since what is overwritten there is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2

from llmproxy.late import late

_LOOKED_AT = 256
"""Characters that are enough to judge by."""
_LONGEST_WORD = 18
_WORDS = late(
    rf"(?:[A-Z]?[a-z]{{1,{_LONGEST_WORD}}}|[A-Z]{{1,{_LONGEST_WORD}}}|v?\d{{1,4}})"
    r"(?:(?=[^A-Za-z0-9])|(?<=[a-z])(?=[A-Z0-9])|$)"
)
_BETWEEN = late(r"[-_.:/ @]*")
_EXAMPLES = late(
    r"SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
    r"|(?i:example|your[-_]|placeholder|redacted|changeme|change[-_]me|insert[-_]|xxxxxx|\*\*\*\*|\.\.\.)"
)
"""What stands in documentation: of services, of jwt.io."""
_DOZEN = late(r"[A-Za-z0-9]{12,}")


def is_words(text: str) -> bool:
    """Return whether a text is words, names and short numbers in whatever order: ``tenant-acme-7``, ``myAssistant``."""
    at = 0
    while at < len(text):
        if (word := _WORDS.match(text, at)) is None:
            return False
        at = _match_end(_BETWEEN, text, word.end())
    return True


def _match_end(expression: re.Pattern[str], text: str, at: int) -> int:
    match = expression.match(text, at)
    return match.end() if match else at


def entropy(text: str) -> float:
    """Return how many bits each character of a text says (Shannon), by its own characters."""
    total = len(text)
    return -sum(count / total * log2(count / total) for count in Counter(text).values()) if total else 0.0


def is_example(text: str) -> bool:
    """Tell whether a text is what documentation writes for a secret."""
    return _EXAMPLES.search(text[:_LOOKED_AT]) is not None


def is_random(text: str, least: float = 3.0, *, words: bool = True) -> bool:
    """Return whether a text can have been drawn by lot.

    It is no example, has at least so many bits a character, and is no `words` where it could be some.
    """
    text = text[:_LOOKED_AT]
    return entropy(text) >= least and not is_example(text) and not (words and is_words(text))


def has_dozen(text: str) -> bool:
    """Tell whether a dozen letters and digits stand in a row, a digit among them: kebab-case words have none."""
    return any(any(char.isdigit() for char in run) for run in _DOZEN.findall(text[:_LOOKED_AT]))


PASSWORDS = frozenset(
    [
        "password",
        "passwd",
        "passwort",
        "pass",
        "pwd",
        "secret",
        "user",
        "username",
        "admin",
        "root",
        "guest",
        "test",
        "testing",
        "example",
        "changeme",
        "postgres",
        "postgresql",
        "mysql",
        "mongo",
        "mongodb",
        "redis",
        "rabbitmq",
        "rabbit",
        "minio",
        "neo4j",
        "elastic",
        "db",
        "dbpass",
        "dbpassword",
        "mypassword",
        "mysecretpassword",
        "yourpassword",
        "your_password",
        "your-password",
        "token",
        "apikey",
        "api_key",
        "key",
        "foo",
        "bar",
        "baz",
        "hunter2",
        "xxx",
        "xxxx",
        "pw",
        "p@ssw0rd",
        "pass123",
        "password123",
    ]
)
"""What documentation and local set-ups write for a password."""
_TEMPLATE = late(r"\$?[<\[{(].*[>\]})]|\$\w+|%\w*%?|[*.x…]+|__\w+__", re.IGNORECASE | re.DOTALL)


def is_password(text: str, user: str = "") -> bool:
    """Tell whether what stands for a password in a URL is one: no example, no variable, not the user's own name."""
    return text.lower() not in PASSWORDS and text != user and not _TEMPLATE.fullmatch(text) and "REDACTE" not in text
