"""Converters from text in a file, a variable or a flag (or a TOML value) to a value.

Each raises ValueError with a sentence that repeats the input and lists the valid ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SettingsError
from llmproxy.file_io import read_bounded_text
from llmproxy.protocol import VCR_MODES, BindingPolicy, Channel, Exhausted, Mode, UnknownToolPolicy, UpdateMode

ANY_PROVIDER = "*"
"""Stands for each provider of models separately."""
_POWERS = {"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30}
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_MOST_CALLS = 1_000_000
LONGEST_WAIT = 3600
_LAST_PORT = 65535
_PROVIDER = r"[a-z0-9][a-z0-9._:-]*"
_RESERVED = {"s", "_llmproxy"}
"""Reserved first path segments: no upstream may have such a name."""


def join_with_and(names: Sequence[str]) -> str:
    """Return names as listed in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def create_choice_converter[T](known: Mapping[str, T]) -> Callable[[object], T]:
    """Return a converter of the words of a table, ignoring case."""

    def convert(value: object) -> T:
        if (word := str(value).strip().lower()) not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}{did_you_mean(word, known)}")
        return known[word]

    return convert


def create_enum_converter[T: StrEnum](kind: type[T], **more: T) -> Callable[[object], T]:
    return create_choice_converter({each.value: each for each in kind} | more)


def create_pattern_converter[T](
    pattern: str, said: str, make: Callable[[re.Match[str]], T | None], *, of: type = object
) -> Callable[[object], T]:
    """Return a converter of texts that match a pattern; `make` may still return None for an invalid one."""
    compiled = re.compile(pattern, re.ASCII | re.IGNORECASE)

    def convert(value: object) -> T:
        found = compiled.fullmatch(str(value).strip()) if isinstance(value, of) else None
        made = None if found is None else make(found)
        if made is None:
            raise ValueError(f"{value!r} is not {said}")
        return made

    return convert


def create_optional_converter[T](convert: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a converter that keeps None; an empty text is None."""
    return lambda value: None if value in (None, "") else convert(value)


def create_separated_list_converter[T](convert: Callable[[str], T]) -> Callable[[object], tuple[T, ...]]:
    """Return a converter of lists; in the environment, commas or white space separate the items."""
    return lambda value: tuple(convert(word) for word in _split_words(value))


def create_name_value_table_converter(
    name: Callable[[object], str], convert: Callable[[object], str], part: Callable[[str], tuple[str, str]]
) -> Callable[[object], dict[str, str]]:
    """Return a converter of tables, or of words that `part` splits into name and value."""

    def convert_all(value: object) -> dict[str, str]:
        pairs = value.items() if isinstance(value, Mapping) else [part(word) for word in _split_words(value)]
        return {name(key): convert(each) for key, each in pairs}

    return convert_all


def _split_words(value: object) -> list[str]:
    if isinstance(value, str):
        return [word for word in re.split(r"[,\s]+", value) if word]
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return list(value)
    raise ValueError(f"{value!r} is not a list of texts")


read_mode = create_enum_converter(Mode, **VCR_MODES)
read_exhausted = create_enum_converter(Exhausted)
read_scope = create_enum_converter(BindingPolicy)
read_tool_policy = create_enum_converter(UnknownToolPolicy)
read_update = create_enum_converter(UpdateMode)
read_cost = create_optional_converter(
    create_pattern_converter(r"\$?(\d{1,9}(?:\.\d{1,6})?)", "US dollars, such as 0.50", lambda found: Decimal(found[1]))
)
read_truth = create_choice_converter(_TRUTH)
read_status = create_optional_converter(
    create_choice_converter({str(each): each for each in (400, 404, 422, 501, 503)})
)
read_seed = create_optional_converter(
    create_pattern_converter(r"[+-]?\d{1,18}", "a seed: a whole number", lambda found: int(found[0]))
)
read_port = create_pattern_converter(
    r"\d{1,5}", "a port: 1 to 65535, or 0 for any free one", lambda n: int(n[0]) if int(n[0]) <= _LAST_PORT else None
)
read_size = create_pattern_converter(
    r"(\d{1,18})\s*([a-z]*)",
    "a size: bytes, or a number with KiB, MiB or GiB, as 64MiB",
    lambda found: int(found[1]) << _POWERS[unit] if (unit := found[2].lower()) in _POWERS and int(found[1]) else None,
)
read_name = create_pattern_converter(
    "[^#]+",
    "a cassette name: printable text without '#'",
    lambda found: found[0] if found.string.isprintable() else None,
    of=str,
)
"""Read a name. SDKs cut a URL at ``#``, which would merge sessions."""
read_host = create_pattern_converter(
    r"\[?[a-z0-9_.:%-]+\]?", "a host name or address", lambda found: found[0].lower(), of=str
)


def create_number_converter(most: float, said: str) -> Callable[[object], float]:
    """Return a converter of finite numbers from 0 on. A bool is refused, though Python accepts it as a number."""

    def convert(value: object) -> float:
        with suppress(ValueError):
            if 0 <= (number := float(str(value))) <= most:
                return number
        raise ValueError(f"{value!r} is not {said}")

    return convert


read_speed = create_number_converter(sys.float_info.max, "a speed: 0 (at once), 1 (as recorded) or N (N times as fast)")
read_wait = create_number_converter(LONGEST_WAIT, f"a time to wait: seconds, from 0 to {LONGEST_WAIT}")


_AGES = {"h": 3_600, "d": 86_400, "w": 604_800}


def validate_age(value: object) -> str:
    """Read an age: ``12h``, ``30d``, ``8w``."""
    if value not in ("", None):
        parse_age_seconds(str(value))
    return str(value or "")


def parse_age_seconds(age: str) -> float:
    with suppress(ValueError):
        if age[-1:] in _AGES and 0 < (count := float(age[:-1])) < 10_000:
            return count * _AGES[age[-1:]]
    raise ValueError(f"{age!r} is not an age: hours, days or weeks, as in 12h, 30d, 8w")


def require_string_setting(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def parse_optional_path_setting(value: object) -> Path | None:
    if value is not None and not isinstance(value, str | Path):
        raise ValueError(f"{value!r} is not a path")
    return None if value is None else Path(value)


def parse_path_setting_refusing_urls(value: object) -> Path:
    """Read a path. A URL is refused, also with a slash lost, and not repeated: it may hold a password."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{value!r} is not a path")
    if found := re.match(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/", str(value)):
        raise ValueError(f"a URL ({found[1]}:) is no file, and it is not repeated, since it may hold a password")
    return Path(str(value)).expanduser()


def _read_portless_host(word: str, *, patterns: bool = True) -> str:
    """Read a host without port: the compared value has none."""
    name, beginning = word.strip().lower(), "*." if patterns else ""
    bare = name.removeprefix(beginning)
    with suppress(ValueError):
        return str(ip_address(bare.removeprefix("[").removesuffix("]")))
    if re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", bare):
        return name
    may = ", or *.NAME for every name below it" if patterns else ""
    raise ValueError(f"{word!r} is not a host: a name or an address, without scheme and port{may}")


def _read_origin(word: str) -> str:
    found = word.lower().rstrip("/")
    if found not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", found):
        msg = f"{found!r} is not an origin: SCHEME://HOST[:PORT] (* stands for anything), null, or * for all"
        raise ValueError(msg)
    return found


read_hosts = create_separated_list_converter(lambda word: word if word == "*" else _read_portless_host(word))
"""Read host patterns: ``*.example.com`` matches every name below that one, ``*`` every host."""
read_names = create_separated_list_converter(lambda word: _read_portless_host(word, patterns=False).removesuffix("."))
read_origins = create_separated_list_converter(_read_origin)
"""Read origins of web pages: ``http://localhost:5173``, ``vscode-webview://*``, ``null``, ``*``."""


def parse_channel_list(value: object) -> tuple[Channel, ...]:
    """Read channels without duplicates, from a list or separated by commas."""
    words = [part for word in _split_words(value) for part in word.split(",") if part]
    return tuple(dict.fromkeys(map(create_enum_converter(Channel), words)))


def read_name_patterns(value: object) -> tuple[str, ...]:
    """Read name patterns; in the environment only commas separate them, since a pattern may hold a space."""
    words = value.split(",") if isinstance(value, str) else _split_words(value)
    return tuple(word.strip() for word in words if word.strip())


def host_matches(patterns: Iterable[str], host: str) -> bool:
    """Return whether a host (lower case, without port) matches an item of a host list."""
    return any(
        each in (host, "*") or (each.startswith("*.") and host.endswith(each[1:]) and len(host) > len(each[1:]))
        for each in patterns
    )


_upstream_name = create_pattern_converter(
    _PROVIDER,
    "an upstream's name: letters, digits, '.', '_', '-', ':' (not 's')",
    lambda found: None if found[0].lower() in _RESERVED else found[0].lower(),
)
_rate_name = create_pattern_converter(rf"\*|{_PROVIDER}", "a provider's name", lambda found: found[0].lower())
_stub_place = create_pattern_converter(
    r"([a-z0-9*.-]+)(/\S*)", "HOST/PATH, as in auth.example.com/oauth/token", lambda found: found[1].lower() + found[2]
)
_stub_kind = create_choice_converter({each: each for each in ("token", "empty", "issuer")})


def _split_upstream(word: str) -> tuple[str, str]:
    name, equals, url = word.partition("=")
    if not equals:
        raise ValueError(f"{_quote_unless_secret(word)} is not NAME=URL, as in local=http://127.0.0.1:11434/v1")
    return name, url


def _quote_unless_secret(text: str) -> str:
    """Quote the input unless its user or query part may hold a password: errors end up in logs."""
    return "the URL (not repeated: it may hold a secret)" if set(text) & set("?#@") else repr(text)


def _read_url(value: object) -> str:
    text = str(value).strip()
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        good = False
    if not good or set(text) & set("?#@"):
        msg = f"{_quote_unless_secret(text)} is not a base URL: http:// or https://, a host, no user, query or fragment"
        raise ValueError(msg)
    return text.rstrip("/")


def _split_provider_rate(word: str) -> tuple[str, str]:
    name, equals, rate = word.partition("=")
    return (name, rate) if equals else (ANY_PROVIDER, word)


def _validate_call_rate(value: object) -> str:
    text = str(value).strip().lower()
    parse_calls_and_period(text)
    return text


def parse_calls_and_period(rate: str) -> tuple[int, float]:
    """Return calls and seconds of a rate: ``60/min`` -> (60, 60.0). Raises ValueError."""
    calls, _, unit = rate.partition("/")
    if not re.fullmatch(r"[0-9]{1,7}", calls) or not 0 < int(calls) <= _MOST_CALLS or unit not in _SECONDS:
        raise ValueError(f"{rate!r} is not a rate: CALLS/s, CALLS/min or CALLS/h, as in 60/min or openai=60/min")
    return int(calls), _SECONDS[unit]


_read_stubs = create_name_value_table_converter(
    _stub_place, _stub_kind, lambda word: (word.rpartition("=")[0] or word, word.rpartition("=")[2])
)


def parse_stub_kinds_by_url(value: object) -> dict[str, str]:
    """Read host and path -> kind of stub; typed as ``HOST/PATH=KIND``."""
    made = _read_stubs(value)
    if wild := [place for place, kind in made.items() if kind == "issuer" and "*" in place]:
        raise ValueError(f"{wild[0]!r} is no issuer: that is one URL without https://, as in auth.example.com/tools")
    return made


read_upstreams = create_name_value_table_converter(_upstream_name, _read_url, _split_upstream)
"""Read name -> base URL; typed as ``NAME=URL``."""
read_rates = create_name_value_table_converter(_rate_name, _validate_call_rate, _split_provider_rate)
"""Read provider -> rate; typed as ``NAME=60/min``, or ``60/min`` for each provider."""


def read_text_file_named_by_user(path: Path, what: str, hint: str = "") -> str:
    """Return the text of a file that somebody named. Raises SettingsError: `what` cannot be read."""
    try:
        return read_bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"{what} cannot be read: {why}.", hint=hint) from error
