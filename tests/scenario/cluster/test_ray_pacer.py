"""Whoever counts for a cluster is asked over a port, by who knows the secret."""

from __future__ import annotations

import socket

from llmproxy.scenario.cluster.ray_pacer import ClusterRateLimiter, serve_pacing_socket, start_rate_actor


def ask(where: str, said: str) -> str:
    with socket.create_connection(("127.0.0.1", int(where.partition("/")[0])), timeout=120) as one:
        one.sendall(f"{said}\n".encode())
        return one.makefile().read()


def test_a_proxy_asks_and_is_told_how_long_to_wait() -> None:
    count = ClusterRateLimiter({"*": "1/min"}, clock=lambda: 7.0)
    with serve_pacing_socket(count.count_call) as where:
        secret = where.partition("/")[2]
        assert [ask(where, f"{secret} 1 openai") for _ in range(2)] == ["0.0\n", "60.0\n"]
        assert ask(where, f"{secret} 0 http:example.com") == "0.0\n"
        assert ask(where, f"{secret} 1 openai") == "120.0\n"


def test_a_stranger_is_told_nothing() -> None:
    count = ClusterRateLimiter({"*": "1/min"}, clock=lambda: 7.0)
    with serve_pacing_socket(count.count_call) as where:
        assert ask(where, "guess 1 openai") == ask(where, "") == ""
    assert count.count_call("openai", True) == 0.0


def test_who_takes_over_knows_nothing_of_what_went() -> None:
    """And lets a whole window pass; where no rate was said nobody is started."""
    assert ClusterRateLimiter({"*": "5/min"}, anew=True, clock=lambda: 7.0).count_call("openai", True) == 60.0
    assert start_rate_actor(None, {}) is None
