"""Hosts and upstreams of providers: owners of hosts, base URLs from the environment, AWS signatures, call rates.

Base-URL variables that name another address become their provider's upstream; the key for such a gateway must never be
sent to the public host. AWS signatures (SigV4) cover the Host header, so a request that is signed for the proxy's own
address is refused before it is sent. Rates limit calls by waiting: no window of that length has more calls.
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
from llmproxy.parsers import ANY_PROVIDER, parse_calls_and_period
from llmproxy.protocol import URL_VARIABLE
from llmproxy.settings import Loaded, SettingSource, SettingSourceKind

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
    known = _HOSTS.get(host) or _HOSTS.get(f"{host}:{port}") or _HOSTS.get(f"[{host}]:{port}")
    return known or next((provider for pattern, provider in _HOST_PATTERNS if pattern.fullmatch(host)), None)


def get_port_or_default(scheme: str, port: int | None) -> int:
    return port or (443 if scheme == "https" else 80)


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound
COPILOT_URL = "COPILOT_PROVIDER_BASE_URL"
COPILOT_TYPE = "COPILOT_PROVIDER_TYPE"


def read_copilot_provider(env: Mapping[str, str]) -> tuple[Provider, str]:
    """Return the provider of GitHub Copilot's CLI with a user's key, and the rest of its base URL after the prefix: the
    owner of the variable's host, else the provider of the type, OpenAI by default.
    """
    parts = urlsplit(_normalize_base_url("", env.get(COPILOT_URL, "")))
    known = provider_of_host(parts.hostname, get_port_or_default(parts.scheme, parts.port)) if parts.hostname else None
    if known is not None:
        return known, parts.path.rstrip("/")
    provider = PROVIDERS.get(env.get(COPILOT_TYPE, "").strip().lower(), PROVIDERS["openai"])
    return provider, next(iter(provider.env.values()), "")


def copilot_url_differs_from_upstream(env: Mapping[str, str], ours: str) -> bool:
    url = _normalize_base_url("", env.get(COPILOT_URL, ""))
    parts, us = urlsplit(url), urlsplit(f"//{ours}")
    if not url or _url_matches_host_and_port(url, us.hostname or "", us.port):
        return False
    provider, _ = read_copilot_provider(env)
    place = read_env_upstreams(env, ours).get(provider.name) or provider.upstream
    port = get_port_or_default(parts.scheme, parts.port)
    same = bool(place) and _url_matches_host_and_port(place, parts.hostname or "", port)
    return not (same or (place == provider.upstream and provider_of_host(parts.hostname or "", None) is provider))


def read_env_upstreams(env: Mapping[str, str], ours: str) -> dict[str, str]:
    return {name: url for name, (url, _) in _find_env_upstreams(env, ours).items()}


def _find_env_upstreams(env: Mapping[str, str], ours: str) -> dict[str, tuple[str, SettingSource]]:
    """Return base URLs that lead neither to our proxy (`ours`, HOST:PORT) nor to LLMPROXY_URL, which may have ended."""
    us, running = urlsplit(f"//{ours}"), urlsplit(_normalize_base_url("", env.get(URL_VARIABLE, "").strip()))
    port = get_port_or_default(running.scheme, running.port)
    proxies = ((us.hostname or "", us.port), (running.hostname or "", port))
    upstreams: dict[str, tuple[str, SettingSource]] = {}
    for provider in PROVIDERS.values():
        for variable in _list_base_url_variables(provider, env):
            url = _normalize_base_url(provider.name, env.get(variable, "").strip())
            if url and not any(_url_matches_host_and_port(url, *each) for each in proxies):
                upstreams.setdefault(provider.name, (url, SettingSource(SettingSourceKind.ENVIRONMENT, variable)))
    return upstreams


def _list_base_url_variables(provider: Provider, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of a provider's base URL; Copilot's only if no other client has a key for the provider."""
    has_key = any(env.get(name) for key in provider.keys for name in (key.name, *key.instead))
    copilots = bool(env.get(COPILOT_URL)) and not has_key and read_copilot_provider(env)[0] is provider
    return (*provider.env, COPILOT_URL) if copilots else tuple(provider.env)


def _normalize_base_url(provider: str, value: str) -> str:
    if provider == "ollama" and value and "://" not in value:  # OLLAMA_HOST also configures the server
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
    value = f"{parts.scheme}://{host}{parts.path}"  # never keep, print or export a password or key in the URL
    return value.rstrip("/").removesuffix("/v2/chat").removesuffix("/v1/chat")  # litellm's COHERE_API_BASE


def _url_matches_host_and_port(url: str, host: str, port: int | None) -> bool:
    parts = urlsplit(url)
    theirs = parts.hostname or ""
    same_host = theirs == host or (theirs in _LOCAL and host in _LOCAL)
    return same_host and get_port_or_default(parts.scheme, parts.port) == port


ALGORITHM = "AWS4-HMAC-"
AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""Suffixes of hosts that check signatures; a gateway or test server set by --upstream may accept any."""


class AwsSignedForProxyError(RefusedError):
    """A signature that AWS would refuse; status 400, because boto retries after most other statuses."""

    code = "llmproxy_signed_for_proxy"
    status = 400


def check_aws_signature_host(headers: Headers, upstream: str) -> None:
    """Check a request's signature. Raises AwsSignedForProxyError: signed for another host but sent to AWS."""
    wanted = urlsplit(upstream)
    host, signed_for = wanted.hostname or "", (header(headers, "host") or "").strip().lower()
    if not host.endswith(AWS) or not (header(headers, "authorization") or "").startswith(ALGORITHM):
        return
    if signed_for in (host, wanted.netloc, f"{host}:443"):
        return
    name = signed_for[:100]
    msg = f"llmproxy: this request is signed (SigV4) for {name}, so {host} would refuse it; it was not sent."
    hint = (
        "Record by interception, where the client signs for AWS: llmproxy run --intercept -- COMMAND\n"
        f"Or with an API key ({BEARER_TOKEN}) over https at this port. Replay by base URL takes any signature."
    )
    raise AwsSignedForProxyError(msg, hint=hint)


def add_env_upstreams(loaded: Loaded, env: Mapping[str, str]) -> Loaded:
    return loaded.add_unset_upstreams(_find_env_upstreams(env, f"{loaded.settings.host}:{loaded.settings.port}"))


class CallRateLimiter:
    """Rate limiter for the calls of each provider. Not thread-safe."""

    def __init__(self, rates: Mapping[str, str], clock: Callable[[], float], *, since: float = -math.inf) -> None:
        """`since`: a time at which the maximum number of calls is assumed, because earlier counts are lost."""
        self._rates, self._clock, self._since = dict(rates), clock, since
        self._went: dict[str, deque[float]] = {}

    def find_provider_rate(self, provider: str, *, model: bool) -> str:
        """Return the rate of a provider, empty if it has none; the rate for all providers applies to models only."""
        named = self._rates.get(provider) or self._rates.get(provider.removeprefix(HTTP_PREFIX))
        return named or (self._rates.get(ANY_PROVIDER, "") if model else "")

    def count_call(self, provider: str, *, model: bool = True) -> float:
        """Count a call, and return the seconds until it may be sent."""
        if not (rate := self.find_provider_rate(provider, model=model)):
            return 0.0
        calls, seconds = parse_calls_and_period(rate)
        if provider not in self._went:
            self._went[provider] = deque([self._since] * calls, maxlen=calls)
        went, now = self._went[provider], self._clock()
        at = max(now, went[0] + seconds)
        went.append(at)
        return at - now
