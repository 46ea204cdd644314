"""Where an answer leads: a redirect that the client follows must come back to us, or the client and its key go past us unseen.

    upstream says           /base/v1/files/f/content, or https://api.openai.com/v1/files/f/content
    stored                  /v1/files/f/content            a place at the provider, wherever the request was sent
    said to the client      /s/weather/openai/v1/files/f/content, which is here

A redirect to somebody else's host (a storage service, with a signed address) cannot be led here. While recording it is passed on, and said:
what follows is not recorded. It is stored without its query, which is a key; replayed it is left out, so that nothing leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import SplitResult, urljoin, urlsplit

from llmproxy.core.traffic.interaction import Headers, header

REDIRECTS = frozenset({201, 202, 300, 301, 302, 303, 307, 308})
"""Statuses whose `location` clients follow, or ask next."""
DEFAULT_PORTS = {"http": 80, "https": 443}


def prefix_of(target: str, at_provider: str) -> str:
    """Return what stands in a client's target before the provider's own path: ``/s/weather/openai``; empty if that cannot be told."""
    path, own = target.partition("?")[0], at_provider.partition("?")[0]
    return path.removesuffix(own) if path.endswith(own) else ""


def to_stored(location: str, *, sent_to: str, target: str, at_provider: str, is_public: Callable[[str], bool]) -> str:
    """Return a `location` as it is kept: a path at the provider, or the absolute address of somebody else, without its query.

    `sent_to` is ``https://host[:port]``, `target` what was asked there and `at_provider` what that is at the provider's public host;
    `is_public` tells the provider's own hosts. What is no address comes back as an address of nobody.
    """
    try:
        leads = urlsplit(urljoin(sent_to + target, location))
        own = _place(leads) == _place(urlsplit(sent_to)) or is_public(leads.hostname or "")
    except ValueError:
        return "about:blank"
    if not own:
        return f"{leads.scheme}://{leads.netloc.rpartition('@')[2]}{leads.path}"
    base = prefix_of(target, at_provider) if _place(leads) == _place(urlsplit(sent_to)) else ""
    path = (leads.path.removeprefix(base) if leads.path.startswith(f"{base}/") else leads.path) or "/"
    path = "/" + path.lstrip("/\\")  # `//host/x` would be another host's
    return path + (f"?{leads.query}" if leads.query else "") + (f"#{leads.fragment}" if leads.fragment else "")


def to_served(kept: str, prefix: str) -> str | None:
    """Return a kept `location` as it leads here; None for somebody else's."""
    return prefix + kept if kept.startswith("/") else None


def elsewhere(headers: Headers) -> str | None:
    """Return the host to which a stored answer leads past us; None if it does not."""
    kept = header(headers, "location")
    return None if kept is None or kept.startswith("/") else urlsplit(kept).hostname or "an address that cannot be read"


def _place(url: SplitResult) -> tuple[str, str, int | None]:
    return url.scheme, url.hostname or "", url.port or DEFAULT_PORTS.get(url.scheme)
