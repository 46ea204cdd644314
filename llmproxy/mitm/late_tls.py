"""TLS, set up when the first client wants it: mitmproxy's own addon for it takes longer to import than all of ours.

The addon is made once and then told everything it would have been told. Where HTTPS is intercepted it is wanted anyway, so `ready` makes
it before anybody waits for it. Its hook that serves a revocation list is left out: our layer answers requests, and asks nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.tls import ClientHelloData, TlsData

if TYPE_CHECKING:
    from mitmproxy.addons.tlsconfig import TlsConfig


class LateTls:
    """Stands for mitmproxy's TlsConfig."""

    def __init__(self) -> None:
        """Import nothing yet."""
        self._made: TlsConfig | None = None

    def ready(self) -> TlsConfig:
        """Return the addon, made at the first call."""
        if self._made is None:
            from mitmproxy.addons.tlsconfig import TlsConfig

            made = TlsConfig()
            made.load(Loader(ctx.master))  # type: ignore[no-untyped-call]
            made.running()  # type: ignore[no-untyped-call]  # reads the authority; all its other options have the values that it checks for changes only
            self._made = made
        return self._made

    def configure(self, updated: set[str]) -> None:
        """Pass on what changes once it is made."""
        if self._made is not None:
            self._made.configure(updated)  # type: ignore[no-untyped-call]

    def tls_clienthello(self, data: ClientHelloData) -> None:
        self.ready().tls_clienthello(data)

    def tls_start_client(self, data: TlsData) -> None:
        self.ready().tls_start_client(data)

    def tls_start_server(self, data: TlsData) -> None:
        self.ready().tls_start_server(data)
