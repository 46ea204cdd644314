"""Started for a block, or found running."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.client.control.client import ProxyGone
from llmproxy.client.process.attach import Attached, attach, reachable, running_at
from tests.support.process import clean_env, free_port
from tests.support.proxy import Proxy


def test_one_that_runs_is_used_and_left_alone(px: Proxy) -> None:
    """LLMPROXY_URL names it; ending the block does not end it."""
    with attach([], {"LLMPROXY_URL": px.url + "/"}) as found:
        assert (found.url, found.process) == (px.url, None)
    assert px.is_healthy()


def test_a_stale_address_is_an_error(px: Proxy) -> None:
    """Silently starting another one would hide that the recordings are elsewhere."""
    with pytest.raises(ProxyGone), attach([], {"LLMPROXY_URL": f"http://127.0.0.1:{free_port()}"}):
        pass


def test_one_that_was_started_ends_with_the_block(tmp_path: Path) -> None:
    """Also when the block fails."""
    seen: list[Attached] = []

    def fail(found: Attached) -> None:
        seen.append(found)
        assert found.control.health().mode == "replay"
        raise KeyError

    with pytest.raises(KeyError), attach(["--store", str(tmp_path / "x.db")], clean_env()) as found:
        fail(found)
    process = seen[0].process
    assert process is not None
    assert not process.alive
    assert not process.log.exists()


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("http://0.0.0.0:1", "http://127.0.0.1:1"),
        ("http://[::]:1", "http://[::1]:1"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1"),
    ],
)
def test_an_address_that_means_all_is_reached_by_loopback(listens: str, asked: str) -> None:
    """Nobody connects to 0.0.0.0."""
    assert reachable(listens) == asked


def test_no_address_is_none() -> None:
    """An empty variable is as good as none."""
    assert running_at({"LLMPROXY_URL": " "}) == ""
