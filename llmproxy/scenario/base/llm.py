"""Where a run's LLM calls go: base URLs, headers and variables that name the run's session at the proxy.

An adapter in this process that sends its calls by `input.llm` needs no turn of its own; an agent in another process or language gets the
same as environment variables, or as plain values in each message (:meth:`LLM.to_dict`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from llmproxy.client.control.client import session_url
from llmproxy.client.environment.build import URL_VARIABLE, plan
from llmproxy.client.environment.variables import BASE_URLS
from llmproxy.protocol import AGENT, PARTY_HEADER, SESSION_HEADER


@dataclass(frozen=True, slots=True)
class LLM:
    """Access to models through the proxy, in one session."""

    proxy: str
    """Address of the proxy."""
    session: str
    """Name of the session."""
    replay: bool = False
    """Whether nothing goes to a provider, so that no key is needed."""
    party: str = AGENT
    """Whose calls these are."""
    named: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    """Gives the name in URLs under which calls are those of `party`; None: the session's own, under which they are the agent's."""

    def base_url(self, provider: str) -> str:
        """Return what a provider's own SDK takes as base URL: ``base_url("openai")``, ``"anthropic"``, ``"gemini"``, ``"groq"``.

        A name that the proxy has of its own (``--upstream mine=URL``) is as good.
        """
        return session_url(self.proxy, self._name()) + _paths().get(provider, f"/{provider}")

    @property
    def headers(self) -> dict[str, str]:
        """Headers that send a call of any URL of the proxy to this session."""
        return {SESSION_HEADER: self.session} | ({} if self.party == AGENT else {PARTY_HEADER: self.party})

    @property
    def env(self) -> dict[str, str]:
        """The variables to set for an agent in another process: base URLs, and placeholders of keys in replay."""
        return self._plan(os.environ)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a whole environment for an agent in another process, made from `env`."""
        return {**env, **self._plan(env)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for an agent that is told in a message."""
        urls, env = _addresses(self.proxy, self._name())
        return {
            "proxy": self.proxy,
            "session": self.session,
            "base_urls": dict(urls),
            "headers": self.headers,
            "env": {**env, URL_VARIABLE: self.proxy},
        }

    def _plan(self, env: Mapping[str, str]) -> dict[str, str]:
        return plan(self.proxy, self._name(), env, replay=self.replay).changes

    def _name(self) -> str:
        return self.session if self.named is None else self.named()


@lru_cache(maxsize=64)
def _addresses(proxy: str, session: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return base URLs by provider and by variable; an agent is told them with every message."""
    llm = LLM(proxy, session)
    return {name: llm.base_url(name) for name in _paths()}, plan(proxy, session, {}, replay=False).base_urls


@cache
def _paths() -> dict[str, str]:
    """Return what follows the session in a provider's base URL; OpenAI's has no prefix."""
    found = {"openai": "/v1"}
    for each in BASE_URLS:
        provider = each.path.split("/")[1]
        if provider != "v1":
            found.setdefault(provider, each.path)
    return found
