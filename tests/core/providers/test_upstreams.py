"""Base-URL variables become upstreams."""

from __future__ import annotations

from pathlib import Path

from llmproxy.core.providers.hosts import from_environment
from llmproxy.settings import Origin, Source, load


def test_a_gateway_in_the_environment_becomes_the_upstream(tmp_path: Path) -> None:
    """A company's gateway, whose key the client holds, is where its provider is; the source is remembered."""
    loaded = from_environment(load({}, {}, tmp_path), {"OPENAI_BASE_URL": "https://gw.example/openai/v1"})
    assert loaded.upstreams == (
        ("openai", "https://gw.example/openai/v1", Source(Origin.ENVIRONMENT, "OPENAI_BASE_URL")),
    )


def test_our_own_address_is_no_upstream(tmp_path: Path) -> None:
    """Who exported the variables before starting the proxy does not make it call itself."""
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1", "ANTHROPIC_BASE_URL": "http://localhost:8080"}
    assert from_environment(load({}, {}, tmp_path), env).upstreams == ()


def test_an_option_wins(tmp_path: Path) -> None:
    """What was said by --upstream stays."""
    loaded = load({"upstream": ["openai=http://127.0.0.1:4010"]}, {}, tmp_path)
    found = from_environment(loaded, {"OPENAI_BASE_URL": "https://gw.example/v1"})
    assert found.upstreams == (("openai", "http://127.0.0.1:4010", Source(Origin.FLAG, "--upstream")),)
