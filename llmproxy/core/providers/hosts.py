"""Hosts: whose is this, may a request go there, and when, what does the environment say.

AWS signatures (SigV4): a request that is signed for the proxy's own address is of no use to AWS.

A signature covers the Host header, and by base URL that is ours: AWS would answer 403. So such a request is refused
before it is sent. To sign anew takes the user's secret key. In replay a signature is ignored: it is a credential.

Base-URL variables that are set when we start, and are not ours, become their provider's upstream.

The key that belongs to such a gateway must never be sent to the public host.

How many calls a provider may get in a while (`--rate openai=60/min`), kept by waiting: no window of that length ever
sees more calls go.

    limiter = CallRateLimiter({"openai": "60/min", "*": "5/s"}, clock)
    limiter.count_call("openai")     -> 0.0: go now; 12.5: go in 12.5 s. It is counted at once, so whoever asks next
                                     waits for a later moment.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from llmproxy.core.providers.provider_table import BEARER_TOKEN, HTTP_PREFIX, PROVIDERS, Provider
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import RefusedError
from llmproxy.lazy_regex import late
from llmproxy.parsers import ANY_PROVIDER, parse_call_rate
from llmproxy.settings import Loaded, Origin, Source

_HOSTS = {host: provider for provider in PROVIDERS.values() for host in provider.hosts if "*" not in host}
_HOST_PATTERNS = tuple(
    (late(re.escape(host).replace(r"\*", r"[a-z0-9.-]+")), provider)
    for provider in PROVIDERS.values()
    for host in provider.hosts
    if "*" in host
)


@lru_cache(maxsize=1024)
def provider_of_host(host: str, port: int | None) -> Provider | None:
    host = host.lower().rstrip(".")
    provider = _HOSTS.get(host) or _HOSTS.get(f"{host}:{port}") or _HOSTS.get(f"[{host}]:{port}")
    if provider is not None:
        return provider
    return next((provider for pattern, provider in _HOST_PATTERNS if pattern.fullmatch(host)), None)


def port_of(scheme: str, port: int | None) -> int:
    """Return the port, the scheme's own if none is given."""
    return port or (443 if scheme == "https" else 80)


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound


COPILOT_URL = "COPILOT_PROVIDER_BASE_URL"
COPILOT_TYPE = "COPILOT_PROVIDER_TYPE"


def read_copilot_provider(env: Mapping[str, str]) -> tuple[Provider, str]:
    """Return which provider GitHub Copilot's CLI asks with a key of the user's, and what follows that one's prefix in
    its base URL: whose host the variable names, else its type's, which is OpenAI if none is set.
    """
    parts = urlsplit(_parse_base_url("", env.get(COPILOT_URL, "")))
    known = provider_of_host(parts.hostname, port_of(parts.scheme, parts.port)) if parts.hostname else None
    if known is not None:
        return known, parts.path.rstrip("/")
    provider = PROVIDERS.get(env.get(COPILOT_TYPE, "").strip().lower(), PROVIDERS["openai"])
    return provider, next(iter(provider.env.values()), "")


def has_copilot_other_url(env: Mapping[str, str], ours: str) -> bool:
    """Return whether Copilot's base URL names another place than the one to which we send its provider's requests."""
    url = _parse_base_url("", env.get(COPILOT_URL, ""))
    parts, us = urlsplit(url), urlsplit(f"//{ours}")
    if not url or _is_same_place(url, us.hostname or "", us.port):
        return False
    provider, _ = read_copilot_provider(env)
    place = read_env_upstreams(env, ours).get(provider.name) or provider.upstream
    same = _is_same_place(place, parts.hostname or "", port_of(parts.scheme, parts.port)) if place else False
    return not (same or (place == provider.upstream and provider_of_host(parts.hostname or "", None) is provider))


def read_env_upstreams(env: Mapping[str, str], ours: str) -> dict[str, str]:
    """Return the environment's base URLs by provider, the first usable one, but for `ours` (``host:port``)."""
    us = urlsplit(f"//{ours}")
    upstreams: dict[str, str] = {}
    for provider in PROVIDERS.values():
        for variable in _list_base_url_variables(provider, env):
            url = _parse_base_url(provider.name, env.get(variable, "").strip())
            if url and not _is_same_place(url, us.hostname or "", us.port):
                upstreams.setdefault(provider.name, url)
    return upstreams


def _list_base_url_variables(provider: Provider, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that say where a provider is: Copilot's only where no other client has a key for it."""
    has_key = any(env.get(name) for key in provider.keys for name in (key.name, *key.instead))
    copilots = bool(env.get(COPILOT_URL)) and not has_key and read_copilot_provider(env)[0] is provider
    return (*provider.env, COPILOT_URL) if copilots else tuple(provider.env)


def _parse_base_url(provider: str, value: str) -> str:
    """Return a variable's value as a base URL, or an empty string."""
    if provider == "ollama" and value and "://" not in value:  # OLLAMA_HOST is the server's variable as well
        host, _, port = value.partition(":")
        value = f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port or 11434}"  # noqa: S104 - compared
    try:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return ""
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    value = f"{parts.scheme}://{host}{parts.path}"  # a password or key of the URL is not ours to keep, print or export
    return value.rstrip("/").removesuffix("/v2/chat").removesuffix("/v1/chat")  # litellm's COHERE_API_BASE


def _is_same_place(url: str, host: str, port: int | None) -> bool:
    parts = urlsplit(url)
    theirs = parts.hostname or ""
    if port_of(parts.scheme, parts.port) != port:
        return False
    return theirs == host or (theirs in _LOCAL and host in _LOCAL)


ALGORITHM = "AWS4-HMAC-"
AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""How hosts end that check signatures; a gateway or a stand-in that --upstream names may well take what it gets."""


class SignedForProxy(RefusedError):
    """AWS would refuse this signature; 400, because boto asks again after most other statuses."""

    code = "llmproxy_signed_for_proxy"
    status = 400


def check_signature(headers: Headers, upstream: str) -> None:
    """Refuse a signature that its upstream cannot accept. Raises SignedForProxy: for another host, going to AWS."""
    wanted = urlsplit(upstream)
    host, signed_for = wanted.hostname or "", (header(headers, "host") or "").strip().lower()
    if not host.endswith(AWS) or not (header(headers, "authorization") or "").startswith(ALGORITHM):
        return
    if signed_for in (host, wanted.netloc, f"{host}:443"):
        return
    msg = (
        f"llmproxy: this request is signed (SigV4) for {signed_for[:100]}, so {host} would refuse it; it was not sent."
    )
    hint = (
        "Record by interception, where the client signs for AWS: llmproxy run --intercept -- COMMAND\n"
        f"Or with an API key ({BEARER_TOKEN}) over https at this port. Replay by base URL takes any signature."
    )
    raise SignedForProxy(msg, hint=hint)


def add_env_upstreams(loaded: Loaded, env: Mapping[str, str]) -> Loaded:
    """Add the providers whose base URL the environment sets; what was set by option stays."""
    ours = f"{loaded.settings.host}:{loaded.settings.port}"
    found = {}
    for name, url in read_env_upstreams(env, ours).items():
        variables = (variable for variable in _list_base_url_variables(PROVIDERS[name], env) if variable in env)
        setter = next(one for one in variables if url == _parse_base_url(name, env[one].strip()))
        found[name] = (url, Source(Origin.ENVIRONMENT, setter))
    return loaded.add_unset_upstreams(found)


class CallRateLimiter:
    """Counts the calls of each provider that has a rate. One thread at a time."""

    def __init__(self, rates: Mapping[str, str], clock: Callable[[], float], *, since: float = -math.inf) -> None:
        """Count from now on.

        `rates` by provider, as `parsers.read_rates` makes them. `since`: a moment at which as many calls as may go are
        taken to have gone, since whoever counted before is gone.
        """
        self._rates, self._clock = dict(rates), clock
        self._since = since
        self._went: dict[str, deque[float]] = {}

    def find_provider_rate(self, provider: str, *, model: bool) -> str:
        """Return the rate that holds for a provider, empty if none does; what is said of all holds for models."""
        named = self._rates.get(provider) or self._rates.get(provider.removeprefix(HTTP_PREFIX))
        return named or (self._rates.get(ANY_PROVIDER, "") if model else "")

    def count_call(self, provider: str, *, model: bool = True) -> float:
        """Count one call, and return the seconds until it may go."""
        rate = self.find_provider_rate(provider, model=model)
        if not rate:
            return 0.0
        calls, seconds = parse_call_rate(rate)
        if provider not in self._went:
            self._went[provider] = deque([self._since] * calls, maxlen=calls)
        went, now = self._went[provider], self._clock()
        at = max(now, went[0] + seconds)
        went.append(at)
        return at - now
