"""Distinction of secrets from words: tables and statistics. In doubt, running text is none: overwritten, it is lost.

*Borders* are the transitions of a text from one class of characters to another, except at the beginning of a word: 6 of
10 pairs of a key in base62, 4 of 10 in lower case or hexadecimal, 3 of 10 in base32; 1 of 10 of ``gpt-4o-2024-08-06``
or ``getClientSecretV2``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import log2
from pathlib import Path

from llmproxy.lazy_regex import late


def split_into_words(text: str) -> list[str]:
    return text.split()


def split_words_to_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOKED_AT = 256  # characters of a text that are examined
_LONGEST_WORD = 18
_WORDS = late(
    rf"(?:[A-Z]?[a-z]{{1,{_LONGEST_WORD}}}|[A-Z]{{1,{_LONGEST_WORD}}}|v?\d{{1,4}})"
    r"(?:(?=[^A-Za-z0-9])|(?<=[a-z])(?=[A-Z0-9])|$)[-_.:/ @]*"
)
"""A word, and the separator before the next one."""
_EXAMPLES = late(
    r"SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
    r"|(?i:example|your[-_]|placeholder|redacted|changeme|change[-_]me|insert[-_]|1234567890|mustbe"
    r"|(?:fake|dummy|sample|mock)[-_ ]|xxxxxx|QWxhZGRpbjpvcGVuIHNlc2FtZQ|\*\*\*\*|\.\.\.)"
)
_TOKEN = late(r"[A-Za-z0-9]{12,}")


def is_made_of_words(text: str) -> bool:
    """Return whether a text consists of words, names and short numbers: ``tenant-acme-7``, ``myAssistant``."""
    at = 0
    while at < len(text):
        if (word := _WORDS.match(text, at)) is None:
            return False
        at = word.end()
    return True


def measure_entropy(text: str) -> float:
    total = len(text)
    return -sum(count / total * log2(count / total) for count in Counter(text).values()) if total else 0.0


def is_example_credential(text: str) -> bool:
    return _EXAMPLES.search(text[:_LOOKED_AT]) is not None


def is_high_entropy_text(text: str, least: float = 3.0, *, words: bool = True) -> bool:
    """Return whether a text may be random: no example, `least` bits per character, and with `words` no words."""
    text = text[:_LOOKED_AT]
    return measure_entropy(text) >= least and not is_example_credential(text) and not (words and is_made_of_words(text))


def has_alphanumeric_run(text: str) -> bool:
    """Return whether a run of 12 letters and digits has a digit: kebab-case words have none."""
    return any(any(char.isdigit() for char in run) for run in _TOKEN.findall(text[:_LOOKED_AT]))


_CLASSES = str.maketrans(
    {code: "a" if chr(code).islower() else "A" if chr(code).isupper() else "0" if chr(code).isdigit() else "-"
     for code in range(128)}
    | dict.fromkeys(map(ord, "#!@$%^&*?~"), "!")
)  # fmt: skip
_PAIRS = ("a0", "0a", "A0", "0A", "a!", "!a", "A!", "!A", "0!", "!0")
_HUMP = late(r"aA(?!aa)")  # a capital letter that does not begin a word
_MIXED = ((12, 2, 0.2), (24, 3, 0.2), (1 << 30, 4, 0.125))
"""Upper limit of the length, minimum number of borders, and minimum fraction of all pairs."""
_LONG_TOKEN = late(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9%]{16,}")
_UNSPEAKABLE = late(r"[A-Z][b-df-hj-np-tv-xz]{2,}(?![a-z])")  # a capital and consonants: not a camel-case word
_CONSONANTS = late(r"[b-df-hj-np-tv-xz]{6,}")
_NO_VALUE = late(
    r"[$#%@]?\{|\$\(|^\$[A-Za-z_]|\$\$?[A-Z_]{3,}|%\(|%[A-Z_]+%|%s|<[%A-Za-z_/]|[A-Za-z_]\w*[(\[]|://|\.\.\."
    r"|`|\?\?|\?\.|\|\||&&|=>|\*{3}"
    r"|^(?:~|\.{1,2})?/(?:[A-Za-z_.\-]+/|~)|^[A-Za-z]:\\|^(?:sha\d{1,3}|md5)[-:=$]"
    r"|^\$(?:2[aby]|argon2|5|6|pbkdf2)|REDACTE"
    r"|^[a-z_]+(?:\.[A-Za-z_]\w*)+[,;]*$"
    r"|\.(?:py|js|ts|json|ya?ml|toml|md|txt|pem|key|crt|env|go|rs|java|html?|css|png|svg|jpe?g|gif|webp"
    r"|pdf|zip|gz|mp[34]|wav|csv|log|bin|db|docx?|xlsx?|com|org|net)$"
)
"""Templates, calls, variables, paths, files, hosts, links, hashes."""


_NO_CALL = late(r"(?<!\w)(?!\w*[A-Za-z]{3})\w+[(\[]")


def remove_brackets_for_entropy_test(quoted: str) -> str:
    """Return a quoted value without brackets that open no call: after no word, or among three symbols."""
    symbols = len(set(quoted[:_LOOKED_AT]).intersection("!@#%^&*")) > 2
    return quoted.replace("(", "").replace("[", "") if symbols else _NO_CALL.sub("", quoted)


def is_literal_not_template_or_call(text: str) -> bool:
    """Return whether a text is a literal value: no template, call, variable, path, link or hash."""
    return _NO_VALUE.search(text[:_LOOKED_AT]) is None


def _has_mixed_classes(text: str) -> bool:
    classes = text.translate(_CLASSES)
    borders = sum(map(classes.count, _PAIRS)) + sum(1 for _ in _HUMP.finditer(classes))
    least, part = next((least, part) for below, least, part in _MIXED if len(text) < below)
    return borders >= least and borders >= part * len(text)


def is_random_value(text: str, least: int = 8) -> bool:
    """Return whether a value of at least `least` characters is random: no name, path, expression, template, example."""
    text = text[:_LOOKED_AT]
    if len(text) < least:
        return False
    drawn = _has_mixed_classes(text) or any(
        _has_mixed_classes(token)
        or ((token.islower() or token.isupper()) and _CONSONANTS.search(token.lower()))
        or len(_UNSPEAKABLE.findall(token)) > 1
        for token in _TOKEN.findall(text)
    )
    return (
        drawn
        and measure_entropy(text) >= 2.5
        and is_literal_not_template_or_call(text)
        and not is_example_credential(text)
    )


def is_probable_token(text: str) -> bool:
    """Return whether a value at a token's position is one: random, or a long run of letters and digits."""
    if is_random_value(text):
        return True
    if not is_literal_not_template_or_call(text) or is_example_credential(text) or is_made_of_words(text):
        return False
    return _LONG_TOKEN.search(text) is not None


PASSWORDS = split_words_to_set(
    "password passwd passwort pass pwd secret user username admin root guest test testing example "
     "changeme postgres postgresql mysql mongo mongodb redis rabbitmq rabbit minio neo4j elastic db dbpass "
     "dbpassword mypassword mysecretpassword yourpassword your_password your-password token apikey api_key "
     "key foo bar baz hunter2 tiger thing repo a%20secret xxx xxxx pw p@ssw0rd pass123 password123 "
     "password1 password1234 passwort1 secret123 secretpassword topsecret admin123 root123 test123 test1234 "
     "letmein welcome qwerty 12345678 123456789 1234567890 abc12345 postgres123 mysecret supersecret changeit dummy "
     "fake sample none null true false undefined required optional string"
)  # fmt: skip
"""Passwords in documentation and local set-ups."""
_TEMPLATE = late(r"\$?[<\[{(].*[>\]})]|\$\w+|%\w*%?|[*.x…]+|__\w+__", re.IGNORECASE | re.DOTALL)


def is_real_password(text: str, user: str = "") -> bool:
    """Return whether a password in a URL is real: no example, no variable, not the user's own name."""
    return not (text == user or text.strip("#!").lower() in PASSWORDS or _TEMPLATE.fullmatch(text) or "REDACTE" in text)


def is_real_value_of_password_name(text: str) -> bool:
    """Return whether the value of a variable named like a password is a real one: no word, no example."""
    bare = text.strip("_,;:)(")
    if not is_real_password(bare) or not is_literal_not_template_or_call(text) or is_example_credential(text):
        return False
    return not (is_made_of_words(bare) or bare.replace("_", "").isalpha()) and measure_entropy(bare) >= 2.5


_SECRET_VARIABLE = late(
    r"(?i)token|secret|passw|passphrase|credential|api_?key|access_?key|(?:key|pass|(?<!^)(?<!^old)pwd|(?:^|_)pat)$"
)
_NO_SECRET = late(r"[a-z][a-z0-9+.-]*://.*|[\d.,_]*|(?:(?:[A-Z]?[a-z]{1,18}|[A-Z]{1,18})(?:[-_. ](?!$)|$))+", re.DOTALL)
"""A URL (its password is found by place), a number, or words without numbers: ``hunter2024`` may be secret."""


def is_path(text: str) -> bool:
    """Return whether a text is a path, of words or in a folder that exists: one in 64 keys in base64 has its slash."""
    first = text[1:].partition("/")[0]
    return text.startswith("~/") or (
        text[:1] == "/" and (is_made_of_words(text[1:]) or Path("/", first or "?").exists())
    )


def may_be_value_of_secret_variable(text: str) -> bool:
    """Return whether a value with a secret's name may be one: no text that a question may contain too."""
    return not (_NO_SECRET.fullmatch(text) or is_path(text))


def list_secret_env_values(env: Mapping[str, str]) -> list[str]:
    """Return the values of variables with a secret's name, without those that a text or a question may contain."""
    return [
        value for name, value in env.items() if _SECRET_VARIABLE.search(name) and may_be_value_of_secret_variable(value)
    ]
