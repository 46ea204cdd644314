"""Origin guard: distinguishes clients from web pages, which can reach every port of the user's machine.

A page cannot omit or forge Host (after DNS rebinding: its own name), Origin, and Sec-Fetch-Site (in requests without an
Origin), and no SDK sends the last two. So on a port bound to loopback a request must name the proxy: a loopback name,
an address, a container's name for its host, or a name in ``--answer-to``. On every port an Origin must be the proxy's
own or in ``--allow-origin``; without an Origin the browser must not report a request from another site (SECURITY.md).
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
"""Names that containers use for their host; nobody can own a name under `internal`."""
OWN_SITE = frozenset({"none", "same-origin"})
"""Values of Sec-Fetch-Site for an address typed by the user, or a page of the proxy."""
PREFLIGHT_SECONDS = 600
DOCUMENTS = frozenset({"document", "iframe", "frame", "embed", "object"})
"""Values of Sec-Fetch-Dest for an answer that is shown as a page."""
SANDBOX: Headers = (("content-security-policy", "sandbox"),)
"""Added to an answer that a browser shows: a recorded page must not get the rights of the proxy's own pages."""

_HOST = late(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[^\s\[\]:/?#@\\]{0,255})(?::(?P<port>[0-9]{0,5}))?", re.IGNORECASE)
_ORIGIN = late(r"[a-zA-Z][a-zA-Z0-9+.-]{0,40}://[a-zA-Z0-9.:_\[\]-]{1,260}")
"""Origins that are safe to repeat in a message, and in a command to paste."""
_TOKENS = late(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{0,4000}")


class ForeignHostHeaderRefused(RefusedError):
    code = "llmproxy_foreign_host"
    status = 403


class ForeignOriginRefused(RefusedError):
    code = "llmproxy_foreign_origin"
    status = 403


@dataclass(frozen=True, slots=True)
class HeadForOriginCheck:
    headers: Headers
    scheme: str = "http"
    """Scheme of the client's connection: https if TLS ends here."""
    target: tuple[str, str, int] | None = None
    """(scheme, host, port) in a proxy client's absolute form or CONNECT; None in origin form."""


@dataclass(frozen=True, slots=True)
class OriginGuard:
    answer_to: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()
    """Origins of allowed pages; ``*`` matches any characters."""
    any_host: bool = False
    """Whether the port is bound beyond loopback: clients may then use any name."""

    def require_admitted(self, seen: HeadForOriginCheck) -> None:
        """Check that a request may be served. Raises ForeignHostHeaderRefused; ForeignOriginRefused: not that page."""
        if seen.target is None and not self.any_host:
            self.require_own_host(seen.headers)
        origins = _list_repeated_field_values(seen.headers, "origin")
        for origin in origins:
            if not self._is_allowed(origin) and not self._is_same_origin(origin, seen):
                raise _build_foreign_page_error(origin)
        # Without an Origin a browser still reports a request from another site: a link, a picture.
        sites = (
            () if origins or "*" in self.allow_origin else _list_repeated_field_values(seen.headers, "sec-fetch-site")
        )
        if any(site.lower() not in OWN_SITE for site in sites):
            raise _build_foreign_page_error("")

    def is_admitted(self, seen: HeadForOriginCheck) -> bool:
        try:
            self.require_admitted(seen)
        except RefusedError:
            return False
        return True

    def require_own_host(self, headers: Headers) -> None:
        """Check that a request names the proxy. Raises ForeignHostHeaderRefused."""
        for host in _list_repeated_field_values(headers, "host"):
            name, _ = split_host(host)
            if name is None or not self.is_own_name(name):
                raise _build_foreign_host_error(name)

    def is_own_name(self, name: str) -> bool:
        return (
            is_localhost_name(name) or is_ip_address(name) or name in CONTAINERS or name.rstrip(".") in self.answer_to
        )

    def build_cors_fields(self, headers: Headers) -> Headers:
        origins = _list_repeated_field_values(headers, "origin") if self.allow_origin else ()
        if len(origins) != 1 or not self._is_allowed(origins[0]):
            return ()
        return (("access-control-allow-origin", origins[0]), ("access-control-expose-headers", "*"), ("vary", "Origin"))

    def build_preflight_fields(self, method: str, headers: Headers) -> Headers | None:
        wanted = header(headers, "access-control-request-method")
        if method.upper() != "OPTIONS" or wanted is None or not (grants := self.build_cors_fields(headers)):
            return None
        fields = _keep_if_valid_tokens(header(headers, "access-control-request-headers") or "")
        private = header(headers, "access-control-request-private-network") is not None
        return (
            *grants,
            ("access-control-allow-methods", _keep_if_valid_tokens(wanted) or "POST"),
            *((("access-control-allow-headers", fields),) if fields else ()),
            *((("access-control-allow-private-network", "true"),) if private else ()),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        )

    def is_own_page(self, headers: Headers, scheme: str) -> bool:
        """Return whether a request is from a page of this port: own name, same origin, no other."""
        sites, seen = _list_repeated_field_values(headers, "sec-fetch-site"), HeadForOriginCheck(headers, scheme)
        try:
            self.require_own_host(headers)
        except ForeignHostHeaderRefused:
            return False
        own = all(self._is_same_origin(origin, seen) for origin in _list_repeated_field_values(headers, "origin"))
        return own and bool(sites) and all(site.lower() == "same-origin" for site in sites)

    def _is_allowed(self, origin: str) -> bool:
        return any(_compile_origin_pattern(each).fullmatch(origin.lower()) is not None for each in self.allow_origin)

    def _is_same_origin(self, origin: str, seen: HeadForOriginCheck) -> bool:
        if seen.target is not None:
            return _read_origin(origin) == seen.target
        name, port = split_host(header(seen.headers, "host") or "")
        if not name or not self.is_own_name(name):
            return False
        return _read_origin(origin) == (seen.scheme, name, port or DEFAULT_PORTS[seen.scheme])


def is_browser_document_request(headers: Headers) -> bool:
    return (header(headers, "sec-fetch-dest") or "").lower() in DOCUMENTS


def is_localhost_name(name: str) -> bool:
    """Return whether a lower-case name always means this machine (RFC 6761 6.3); HTTP/1.0 may send none."""
    name = name.removesuffix(".")
    return name in ("", "localhost") or name.endswith(".localhost")


@lru_cache(256)
def is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address. No page owns one, so it can only be the proxy's."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


@lru_cache(256)
def split_host(host: str) -> tuple[str | None, int | None]:
    """Split a Host field into (lower-case name without brackets, port); the name is None if the value is invalid."""
    if (found := _HOST.fullmatch(host.strip())) is None:
        return None, None
    return found["name"].lower().strip("[]"), int(found["port"]) if found["port"] else None


def _read_origin(origin: str) -> tuple[str, str, int] | None:
    """Return (scheme, host, port) of an Origin, comparable with a request's target; None if it has none."""
    scheme, mark, rest = origin.lower().partition("://")
    name, port = split_host(rest) if mark else (None, None)
    if not name or (port is None and scheme not in DEFAULT_PORTS):
        return None
    return scheme, name, DEFAULT_PORTS[scheme] if port is None else port


def _list_repeated_field_values(headers: Headers, name: str) -> Sequence[str]:
    return [value for field, value in headers if field.lower() == name]


def _keep_if_valid_tokens(text: str) -> str:
    return text if _TOKENS.fullmatch(text) else ""


@lru_cache(256)
def _compile_origin_pattern(allowed: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, allowed.split("*"))))


def _build_foreign_host_error(name: str | None) -> ForeignHostHeaderRefused:
    shown = name if name and re.fullmatch(r"[a-z0-9._-]{1,253}", name) else None
    named = f"does not answer to the name {shown}" if shown else "cannot read the name in the request's Host"
    hint = f"If that name is this proxy's, start it with --answer-to {shown or 'NAME'} as well."
    return ForeignHostHeaderRefused(
        f"llmproxy: this proxy {named} (a web page could have chosen it); nothing was sent.", hint=hint
    )


def _build_foreign_page_error(origin: str) -> ForeignOriginRefused:
    known = origin if origin == "null" or _ORIGIN.fullmatch(origin) else ""
    who = f"a web page of {known}" if known else "a web page"
    hint = f"If the page is yours, start the proxy with --allow-origin '{known or 'ORIGIN'}' as well."
    return ForeignOriginRefused(f"llmproxy: {who} asks, and it is not allowed to; nothing was sent.", hint=hint)
