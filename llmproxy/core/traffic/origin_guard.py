"""Who may ask: a web page on the user's own machine reaches every port of it, so what a page could have sent is told
from a client.

A page cannot leave out or forge three fields, and no SDK sends them on its own:

    Host             of a page with a name of its own that was made to point here (DNS rebinding): the page's name,
                     never ours
    Origin           of every request with a body, every WebSocket, every answer that a page may read: where the page
                     came from
    Sec-Fetch-Site   of the rest (pictures, links, forms): how the page's place and ours are related

So on a port bound to loopback a request must name us: a loopback name, an address (a page cannot own one), a
container's name for its host, or what ``--answer-to`` adds. On every port an Origin must be our own or one that
``--allow-origin`` names; without one the browser must not have said that another place asks (SECURITY.md).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from llmproxy.core.traffic.interaction import DEFAULT_PORTS, Headers, header
from llmproxy.errors import RefusedError
from llmproxy.lazy_regex import late

CONTAINERS = frozenset({"host.docker.internal", "host.containers.internal"})
"""How a container names the machine that it runs on; nobody can own a name under `internal`."""
OWN_SITE = frozenset({"none", "same-origin"})
"""Values of Sec-Fetch-Site that say: the user typed it, or our own page asks."""
PREFLIGHT_SECONDS = 600
DOCUMENTS = frozenset({"document", "iframe", "frame", "embed", "object"})
"""Values of Sec-Fetch-Dest that say: the answer is to be shown as a page."""
SANDBOX: Headers = (("content-security-policy", "sandbox"),)
"""Of an answer that a browser shows: a recorded page is nobody's, and has no part in what pages of ours may do."""

_HOST = late(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[^\s\[\]:/?#@\\]{0,255})(?::(?P<port>[0-9]{0,5}))?", re.IGNORECASE)
_ORIGIN = late(r"[a-zA-Z][a-zA-Z0-9+.-]{0,40}://[a-zA-Z0-9.:_\[\]-]{1,260}")
"""Origins that may be repeated in a message, and in a command to paste."""
_TOKENS = late(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{0,4000}")


class ForeignHost(RefusedError):
    """The request is for a name that is not ours."""

    code = "llmproxy_foreign_host"
    status = 403


class ForeignPage(RefusedError):
    """A web page asks, and nobody allowed it."""

    code = "llmproxy_foreign_origin"
    status = 403


@dataclass(frozen=True, slots=True)
class SeenHead:
    headers: Headers
    scheme: str = "http"
    """Of the way to us: https where TLS ends here."""
    target: tuple[str, str, int] | None = None
    """(scheme, host, port) that a client of a proxy named, by absolute form or CONNECT; None in origin form."""


@dataclass(frozen=True, slots=True)
class OriginGuard:
    answer_to: tuple[str, ...] = ()
    """Further names of ours."""
    allow_origin: tuple[str, ...] = ()
    """Origins of pages that may ask; ``*`` in one stands for anything."""
    any_host: bool = False
    """Bound beyond loopback: who connects may know us by any name."""

    def check_origin(self, seen: SeenHead) -> None:
        """Check that a request may be served. Raises ForeignHost, ForeignPage: nobody allowed that page."""
        if seen.target is None and not self.any_host:
            self.check_host(seen.headers)
        origins = _list_field_values(seen.headers, "origin")
        for origin in origins:
            if not self._is_allowed(origin) and not self._is_own(origin, seen):
                raise _build_page_refusal(origin)
        if not origins and self._is_cross_site(seen.headers):
            raise _build_page_refusal("")

    def is_admitted(self, seen: SeenHead) -> bool:
        try:
            self.check_origin(seen)
        except RefusedError:
            return False
        return True

    def check_host(self, headers: Headers) -> None:
        """See that a request names us. Raises ForeignHost."""
        for host in _list_field_values(headers, "host"):
            name, _ = split_host(host)
            if name is None or not self.is_own_name(name):
                raise _build_host_refusal(name)

    def is_own_name(self, name: str) -> bool:
        """Return whether a host's name, in lower case, is one of ours."""
        return is_loopback_name(name) or is_ip_address(name) or name in CONTAINERS or name.rstrip(".") in self.answer_to

    def find_allowed_origin(self, headers: Headers) -> str | None:
        """Return the Origin of a page that ``--allow-origin`` permits, to be repeated to it; None for other clients."""
        origins = _list_field_values(headers, "origin")
        return origins[0] if len(origins) == 1 and self._is_allowed(origins[0]) else None

    def build_cors_fields(self, headers: Headers) -> Headers:
        """Return the fields that let an allowed page read its answer; none for every other client."""
        if not self.allow_origin or (origin := self.find_allowed_origin(headers)) is None:
            return ()
        return (("access-control-allow-origin", origin), ("access-control-expose-headers", "*"), ("vary", "Origin"))

    def answer_preflight(self, method: str, headers: Headers) -> Headers | None:
        """Return the fields that answer an allowed page's preflight; None where the request is none."""
        wanted = header(headers, "access-control-request-method")
        if method.upper() != "OPTIONS" or wanted is None or not (grants := self.build_cors_fields(headers)):
            return None
        fields = _keep_valid_tokens(header(headers, "access-control-request-headers") or "")
        private = header(headers, "access-control-request-private-network") is not None
        return (
            *grants,
            ("access-control-allow-methods", _keep_valid_tokens(wanted) or "POST"),
            *((("access-control-allow-headers", fields),) if fields else ()),
            *((("access-control-allow-private-network", "true"),) if private else ()),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        )

    def is_own_page(self, headers: Headers, scheme: str) -> bool:
        """Return whether a browser says that a page of this port asks: our name, same origin, no other."""
        sites, seen = _list_field_values(headers, "sec-fetch-site"), SeenHead(headers, scheme)
        try:
            self.check_host(headers)
        except ForeignHost:
            return False
        own = all(self._is_own(origin, seen) for origin in _list_field_values(headers, "origin"))
        return own and bool(sites) and all(site.lower() == "same-origin" for site in sites)

    def _is_allowed(self, origin: str) -> bool:
        return any(_compile_origin_pattern(each).fullmatch(origin.lower()) is not None for each in self.allow_origin)

    def _is_own(self, origin: str, seen: SeenHead) -> bool:
        """Return whether an Origin is the place that the request is for: a page that we, or that site, served."""
        if seen.target is not None:
            return _read_origin(origin) == seen.target
        name, port = split_host(header(seen.headers, "host") or "")
        if not name or not self.is_own_name(name):
            return False
        return _read_origin(origin) == (seen.scheme, name, port or DEFAULT_PORTS[seen.scheme])

    def _is_cross_site(self, headers: Headers) -> bool:
        """Return whether a browser says that a page elsewhere asks in a way without an Origin: a link, a picture."""
        if "*" in self.allow_origin:
            return False
        return any(site.lower() not in OWN_SITE for site in _list_field_values(headers, "sec-fetch-site"))


def is_shown_as_page(headers: Headers) -> bool:
    """Return whether a browser is to show the answer as a page."""
    return (header(headers, "sec-fetch-dest") or "").lower() in DOCUMENTS


def is_loopback_name(name: str) -> bool:
    """Return whether a name, in lower case, can only mean this machine (RFC 6761 6.3); HTTP/1.0 may send none."""
    name = name.removesuffix(".")
    return name in ("", "localhost") or name.endswith(".localhost")


@lru_cache(256)
def is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address: no page owns one, so that its name can only be ours."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


@lru_cache(256)
def split_host(host: str) -> tuple[str | None, int | None]:
    """Split a Host field into (lower-case name without brackets, port); the name is None if it is no such value."""
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return None, None
    return found["name"].lower().strip("[]"), int(found["port"]) if found["port"] else None


def _read_origin(origin: str) -> tuple[str, str, int] | None:
    """Return (scheme, host, port) of an Origin, comparable with a request's target; None if it has none."""
    scheme, mark, rest = origin.lower().partition("://")
    name, port = split_host(rest) if mark else (None, None)
    if not name or (port is None and scheme not in DEFAULT_PORTS):
        return None
    return scheme, name, DEFAULT_PORTS[scheme] if port is None else port


def _list_field_values(headers: Headers, name: str) -> Sequence[str]:
    return [value for field, value in headers if field.lower() == name]


def _keep_valid_tokens(text: str) -> str:
    return text if _TOKENS.fullmatch(text) else ""


@lru_cache(256)
def _compile_origin_pattern(allowed: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, allowed.split("*"))))


def _build_host_refusal(name: str | None) -> ForeignHost:
    shown = name if name and re.fullmatch(r"[a-z0-9._-]{1,253}", name) else None
    named = f"does not answer to the name {shown}" if shown else "cannot read the name in the request's Host"
    hint = f"If that name is this proxy's, start it with --answer-to {shown or 'NAME'} as well."
    return ForeignHost(f"llmproxy: this proxy {named} (a web page could have chosen it); nothing was sent.", hint=hint)


def _build_page_refusal(origin: str) -> ForeignPage:
    known = origin if origin == "null" or _ORIGIN.fullmatch(origin) else ""
    who = f"a web page of {known}" if known else "a web page"
    hint = f"If the page is yours, start the proxy with --allow-origin '{known or 'ORIGIN'}' as well."
    return ForeignPage(f"llmproxy: {who} asks, and it is not allowed to; nothing was sent.", hint=hint)
