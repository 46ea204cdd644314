"""How the running proxy is started again, as somebody would type it: what every advice to record or to append is made of.

Followed as printed, a command must do what it says. So it repeats whatever the running proxy was told and its own word does not say:
without ``--upstream`` (or the variable that names a gateway) a gateway's key would go to the provider's public host, without ``--port``
the agent would ask nobody, without ``--cassette-dir`` the recording would not reach the file that is reviewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from llmproxy.core.traffic.advice import quote_word
from llmproxy.protocol import DEFAULT_STORE, PYTEST

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
        """Return the command, empty `mode`: its own; `upstreams` are those of a session, which the proxy itself was not told."""
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
    """Return a base URL fit to be printed: with a password it cannot be typed as it stands, and then fails instead of leaking."""
    _, at, host = urlsplit(url).netloc.rpartition("@")
    return url.replace(urlsplit(url).netloc, f"USER:PASSWORD@{host}", 1) if at else url
