"""Readers: what somebody typed, in a file, a variable or a flag, becomes a value.

One function per kind of option. Each takes the text (or what TOML made of it) and returns the value, or raises
ValueError with a sentence that repeats what was typed and says what would be allowed. `settings` attaches them to its
fields and adds where the text came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from llmproxy.did_you_mean import did_you_mean
from llmproxy.protocol import VCR_MODES, Channel, Exhausted, Mode, Scope, UnknownTool

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20}
_UNITS |= {"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30}
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_LAST_PORT = 65535
_RESERVED = {"s", "_llmproxy"}
"""First path segments with a meaning of their own: no upstream can have such a name."""


def _choice(value: object, known: Mapping[str, object]) -> object:
    """Look a word up in a table of allowed spellings."""
    word = str(value).strip().lower()
    if word not in known:
        allowed = ", ".join(known)
        raise ValueError(f"{value!r} is not one of {allowed}{did_you_mean(word, known)}")
    return known[word]


def in_words(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def read_mode(value: object) -> object:
    """Read a mode, by our name or VCR's."""
    return _choice(value, {mode.value: mode for mode in Mode} | VCR_MODES)


def read_exhausted(value: object) -> object:
    """Read what answers after the last recording."""
    return _choice(value, {choice.value: choice for choice in Exhausted})


def read_scope(value: object) -> object:
    return _choice(value, {choice.value: choice for choice in Scope})


def read_channels(value: object) -> tuple[Channel, ...]:
    """Read channels: several as a list, or with commas."""
    known = {channel.value: channel for channel in Channel}
    words = [part for word in _words(value) for part in word.split(",") if part]
    return tuple(dict.fromkeys(Channel(str(_choice(word, known))) for word in words))


def read_patterns(value: object) -> tuple[str, ...]:
    """Read patterns of names; in the environment they stand between commas, since one may hold a space."""
    words = value.split(",") if isinstance(value, str) else _words(value)
    return tuple(word.strip() for word in words if word.strip())


def read_unknown_tool(value: object) -> UnknownTool:
    """Read what becomes of a tool's call without a recording."""
    return UnknownTool(str(_choice(value, {choice.value: choice for choice in UnknownTool})))


def read_status(value: object) -> object:
    return None if value is None else _choice(value, {str(each): each for each in (400, 404, 422, 501, 503)})


def read_path(value: object) -> Path:
    """Read the path of a file or folder. A URL is none, also one that lost a slash as a `Path`; it may hold a password, so it is not repeated."""
    found = re.match(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/", str(value))
    if found:
        raise ValueError(f"a URL ({found[1]}:) is no file, and it is not repeated, since it may hold a password")
    return Path(str(value)).expanduser()


def read_truth(value: object) -> object:
    return value if isinstance(value, bool) else _choice(value, _TRUTH)


def read_speed(value: object) -> object:
    """Read a speed; a bool is a number to Python, but nobody means it as one."""
    try:
        number = float("nan") if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise ValueError(f"{value!r} is not a speed: 0 (at once), 1 (as recorded) or N (N times as fast)")
    return number


def read_seed(value: object) -> object:
    """Read a whole number of any sign, or none."""
    if value is None:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]{1,18}", str(value).strip()):
        raise ValueError(f"{value!r} is not a seed: a whole number")
    return int(str(value))


def read_port(value: object) -> object:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and int(text) <= _LAST_PORT):
        raise ValueError(f"{value!r} is not a port: 1 to 65535, or 0 for any free one")
    return int(text)


def read_size(value: object) -> object:
    """Read bytes, with or without a unit (of 1024): ``67108864``, ``64MiB``, ``512k``."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower(), re.ASCII)
    if isinstance(value, bool) or not found or found[2] not in _UNITS or not int(found[1]):
        raise ValueError(f"{value!r} is not a size: bytes, or a number with KiB, MiB or GiB, as 64MiB")
    return int(found[1]) * _UNITS[found[2]]


def read_name(value: object) -> object:
    """Read a cassette's name. SDKs cut a URL off at ``#``, so that sessions would mix."""
    if not isinstance(value, str) or not value.strip() or "#" in value or not value.isprintable():
        raise ValueError(f"{value!r} is not a cassette name: printable text without '#'")
    return value.strip()


def read_host(value: object) -> object:
    """Read a host name or an address."""
    if not isinstance(value, str) or not re.fullmatch(r"\[?[A-Za-z0-9_.:%-]+\]?", value.strip()):
        raise ValueError(f"{value!r} is not a host name or address")
    return value.strip().lower()


def _words(value: object) -> list[str]:
    """Read a list; in the environment its parts stand between commas or white space."""
    if isinstance(value, str):
        return [word for word in re.split(r"[,\s]+", value) if word]
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return list(value)
    raise ValueError(f"{value!r} is not a list of texts")


def read_hosts(value: object) -> object:
    """Read a list of hosts; ``*.example.com`` is every name below that one, ``*`` is every host."""
    return tuple(word if word == "*" else _host(word) for word in _words(value))


def read_names(value: object) -> object:
    """Read a list of host names, none of them a pattern."""
    return tuple(_host(word, patterns=False).removesuffix(".") for word in _words(value))


def _host(word: str, *, patterns: bool = True) -> str:
    """Read a host without port: what it is compared with has none."""
    name, beginning = word.strip().lower(), "*." if patterns else ""
    bare = name.removeprefix(beginning)
    with suppress(ValueError):
        return str(ip_address(bare.removeprefix("[").removesuffix("]")))
    if re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", bare):
        return name
    may = ", or *.NAME for every name below it" if patterns else ""
    raise ValueError(f"{word!r} is not a host: a name or an address, without scheme and port{may}")


def host_matches(patterns: Iterable[str], host: str) -> bool:
    """Tell whether a host (lower case, without port) is one of those that `read_hosts` read."""
    return any(
        each in (host, "*") or (each.startswith("*.") and host.endswith(each[1:]) and len(host) > len(each[1:]))
        for each in patterns
    )


def read_origins(value: object) -> object:
    """Read origins of web pages: ``http://localhost:5173``, ``vscode-webview://*``, ``null``, ``*``."""
    found = tuple(word.lower().rstrip("/") for word in _words(value))
    for word in found:
        if word not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", word):
            raise ValueError(
                f"{word!r} is not an origin: SCHEME://HOST[:PORT] (* stands for anything), null, or * for all"
            )
    return found


def read_upstreams(value: object) -> dict[str, str]:
    """Read ``NAME=URL`` parts, or a table of them, as name -> base URL."""
    pairs = value.items() if isinstance(value, Mapping) else [_pair(word) for word in _words(value)]
    found: dict[str, str] = {}
    for name, url in pairs:
        key = str(name).strip().lower()
        if not re.fullmatch(r"[a-z0-9][a-z0-9._:-]*", key) or key in _RESERVED:
            raise ValueError(f"{name!r} is not an upstream's name: letters, digits, '.', '_', '-', ':' (not 's')")
        found[key] = _url(url)
    return found


ANY_PROVIDER = "*"
"""Each provider of models, for itself."""
_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_MOST_CALLS = 1_000_000


def read_rates(value: object) -> dict[str, str]:
    """Read ``NAME=60/min`` or ``60/min`` parts, or a table of them, as name of a provider -> rate; without a name it is `ANY_PROVIDER`."""
    pairs = (
        value.items()
        if isinstance(value, Mapping)
        else [word.split("=", 1) if "=" in word else (ANY_PROVIDER, word) for word in _words(value)]
    )
    found: dict[str, str] = {}
    for name, rate in pairs:
        key, text = str(name).strip().lower(), str(rate).strip().lower()
        if key != ANY_PROVIDER and not re.fullmatch(r"[a-z0-9][a-z0-9._:-]*", key):
            raise ValueError(f"{name!r} is not a provider's name")
        calls_and_seconds(text)
        found[key] = text
    return found


def calls_and_seconds(rate: str) -> tuple[int, float]:
    """Return what a rate says: ``60/min`` -> (60, 60.0). Raises ValueError."""
    calls, _, unit = rate.partition("/")
    if not re.fullmatch(r"[0-9]{1,7}", calls) or not 0 < int(calls) <= _MOST_CALLS or unit not in _SECONDS:
        raise ValueError(f"{rate!r} is not a rate: CALLS/s, CALLS/min or CALLS/h, as in 60/min or openai=60/min")
    return int(calls), _SECONDS[unit]


def _pair(word: str) -> tuple[str, str]:
    name, equals, url = word.partition("=")
    if not equals:
        raise ValueError(f"{_harmless(word)} is not NAME=URL, as in local=http://127.0.0.1:11434/v1")
    return name, url


def _harmless(text: str) -> str:
    """Quote what was typed, unless a user or a query in it may hold a password: errors end up in logs."""
    return "the URL (not repeated: it may hold a secret)" if set(text) & set("?#@") else repr(text)


def _url(value: object) -> str:
    text = str(value).strip()
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        good = False
    if not good or set(text) & set("?#@"):
        raise ValueError(
            f"{_harmless(text)} is not a base URL: http:// or https://, a host, no user, query or fragment"
        )
    return text.rstrip("/")


def read_table(value: object) -> object:
    """Read a table; in the environment it is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not JSON ({error})") from error
