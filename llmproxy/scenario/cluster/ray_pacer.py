"""Rates of providers over a whole cluster: one actor counts, and each worker asks it on behalf of its proxy.

If its node dies, the actor is restarted elsewhere. It does not know earlier calls, and waits for a whole window.
"""

from __future__ import annotations

import hmac
import secrets
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmproxy.core.providers.upstreams_and_rates import CallRateLimiter

Take = Callable[[str, bool], float]
"""Counts a call to a provider, of models or not; returns the seconds until it may be sent."""


class ClusterRateLimiter:
    def __init__(
        self, rates: Mapping[str, str], *, anew: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Count calls; `anew`: after the loss of an earlier one."""
        self._pace = CallRateLimiter(rates, clock, **({"since": clock()} if anew else {}))

    def count_call(self, provider: str, model: bool) -> float:  # noqa: FBT001 - asked from elsewhere, by place
        return self._pace.count_call(provider, model=model)


def start_rate_actor(ray: Any, rates: Mapping[str, str]) -> Any:
    if not rates:
        return None

    class Actor(ClusterRateLimiter):
        def __init__(self, rates: Mapping[str, str]) -> None:
            super().__init__(rates, anew=ray.get_runtime_context().was_current_actor_reconstructed)

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Actor).remote(dict(rates))


@contextmanager
def serve_pacing_socket(take: Take) -> Iterator[str]:
    """Serve this machine's proxy in the block; yields the value of `protocol.PACER_VARIABLE`."""
    secret = secrets.token_hex(16)

    class PacingHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            said, _, rest = self.rfile.readline(4096).decode("utf-8", "replace").strip().partition(" ")
            model, _, provider = rest.partition(" ")
            if hmac.compare_digest(said.encode(), secret.encode()):
                self.wfile.write(f"{take(provider, model == '1')!r}\n".encode())

    class PacingListener(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing: a proxy without an answer reports it, and sends nothing."""

    with PacingListener(("127.0.0.1", 0), PacingHandler) as server:
        thread = threading.Thread(target=server.serve_forever, name="llmproxy pacer", daemon=True)
        thread.start()
        try:
            yield f"{server.server_address[1]}/{secret}"
        finally:
            server.shutdown()
            thread.join()
