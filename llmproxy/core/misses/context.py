"""What the engine knows about a request that it refuses, and how the proxy is started again: it counts,
`explain` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from llmproxy.core.traffic.advice import quote_word
from llmproxy.protocol import AGENT, DEFAULT_STORE, PYTEST

LONGEST = 700
"""Characters of all options; a command that would be cut somewhere is worse than one that says that it is not whole."""
_OF_ONE = frozenset({"host", "port", "answer_to", "allow_origin", "forward"})
"""Options of the proxy that runs, which another one beside it does not share."""


@dataclass(frozen=True, slots=True)
class Again:
    """What was typed to start the proxy, without mode, cassette and store, which each advice says itself."""

    start: str = "llmproxy start"
    """The command: ``llmproxy run --intercept``, ``mitmdump -s ...``."""
    rest: str = ""
    """What stands behind the options: `` -- ...``."""
    options: tuple[tuple[str, str | bool], ...] = ()
    """Name as in `Settings`, and value; a repeated option once for each value."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment: base URLs that were set where the proxy was started."""

    @property
    def runs(self) -> bool:
        """Whether the proxy is started for one command, and not by hand."""
        return bool(self.rest)

    def command(
        self, mode: str, cassette: str = "", *, store: str = DEFAULT_STORE, upstreams: Mapping[str, str] | None = None
    ) -> str:
        """Return the command, empty `mode`: its own; `upstreams` are those of a session, which the proxy itself was not
        told.
        """
        if self.start == PYTEST:  # its plugin knows cassette, store and upstreams; what it takes is the mode
            return f"pytest --llmproxy-mode {mode}"
        of_session = tuple(("upstream", f"{name}={url}") for name, url in (upstreams or {}).items())
        named = ([("mode", mode)] if mode else []) + ([("cassette", cassette)] if cassette else [])
        named += [("store", store)] if store != DEFAULT_STORE else []
        kept = " ".join(self._spell(name, value) for name, value in self.options + of_session)
        if len(kept) > LONGEST:
            kept = "... (and the options that it runs with: see `llmproxy settings`)"
        before = " ".join(f"{name}={quote_word(_without_password(value))}" for name, value in self.variables)
        words = [before, self.start, *(self._spell(*each) for each in named), kept]
        return " ".join(filter(None, words)) + self.rest

    def by(self, start: str, rest: str = " -- COMMAND") -> Again:
        """Return how another command, which has a proxy of its own, is started with the same options."""
        if self.start == PYTEST:
            return Again(start, rest)
        return replace(self, start=start, rest=rest, options=tuple(x for x in self.options if x[0] not in _OF_ONE))

    def _spell(self, name: str, value: str | bool) -> str:  # noqa: FBT001 - the value of a switch
        if self.start.startswith("mitm"):
            return f"--set {quote_word(f'llmproxy_{name}={str(value).lower() if isinstance(value, bool) else value}')}"
        key = name.replace("_", "-")
        return f"--{key if value else f'no-{key}'}" if isinstance(value, bool) else f"--{key} {quote_word(value)}"


def _without_password(url: str) -> str:
    """Return a base URL fit to be printed: with a password it cannot be typed as it stands, and then fails instead of
    leaking.
    """
    _, at, host = urlsplit(url).netloc.rpartition("@")
    return url.replace(urlsplit(url).netloc, f"USER:PASSWORD@{host}", 1) if at else url


@dataclass(frozen=True, slots=True)
class MissPlace:
    """Somewhere else where this very key is recorded."""

    cassette: str
    sample: int = 1
    party: str = AGENT


@dataclass(frozen=True, slots=True)
class MissContext:
    """What the engine knows about a request that it refuses."""

    mode: str
    cassette: str
    session: str
    key: str
    method: str
    provider: str
    operation: str
    sample: int = 1
    party: str = AGENT
    model: str | None = None
    stream: bool = False
    last_user: str = ""
    """Text of the conversation's last user message."""
    store: str = DEFAULT_STORE
    store_exists: bool = True
    again: Again = field(default_factory=Again)
    """How the proxy is started again."""
    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Those that its session has of its own."""
    recordings: int = 0
    """Live recordings of (cassette, sample), all parties."""
    same_operation: int = 0
    """Of those: of this provider and operation."""
    played: int = 0
    """Recordings of this very key that were all served already (``--exhausted miss``)."""
    elsewhere: tuple[MissPlace, ...] = ()
    """Where else this key is recorded."""
    complete: bool = False
    """Mode `once`: the cassette was complete when the session opened."""
    state: str = ""
    """Beside live channels: why no recording of this tool's call holds in the state in which it was asked."""
    beside_live: str = ""
    """Beside live channels: the name of this tool's call."""
    toolless: bool = False
    """A server of tools was asked, and none is in the cassette."""
    unbound: str = ""
    """Why a recording that was held against it, with what is bound, does not fit."""
