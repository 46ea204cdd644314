"""The SDKs' environments: locks that any machine can use, and a loud reason where one cannot be built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import needed

from .environments import ENVIRONMENTS, NODE, Environment, build


@pytest.mark.parametrize("name", ["newest", "previous"])
def test_python_locks_pin_everything_and_name_no_host(name: str) -> None:
    """Each requirement is a pinned version with hashes; where it comes from is not written down."""
    lines = ENVIRONMENTS[name].lock.read_text("utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith(" ")]
    assert pinned
    assert all("==" in line for line in pinned)
    assert all(line.strip().startswith("--hash=sha256:") for line in lines if line.startswith(" "))


def test_the_node_lock_pins_everything_and_names_no_registry() -> None:
    """Each package has a version and a digest, and no address."""
    for name, package in json.loads((NODE / "package-lock.json").read_text("utf-8"))["packages"].items():
        if name:
            assert package["version"]
            assert package["integrity"].startswith("sha512-")
            assert "resolved" not in package


@pytest.mark.parametrize(("changed", "said"), [
    (replace(ENVIRONMENTS["node"], tool="no-such-tool"), "no-such-tool is not installed"),
    (replace(ENVIRONMENTS["newest"], commands=(("uv", "no-such-command"),)), "cannot be built"),
], ids=["npm or uv is absent", "the tool fails, as without a network"])  # fmt: skip
def test_what_cannot_be_built_is_a_reason_not_an_error(changed: Environment, said: str, tmp_path: Path) -> None:
    """Building says what is missing, or what the tool said, and leaves nothing behind."""
    environment = replace(changed, place=tmp_path / "place")
    assert said in build(environment)
    assert not environment.place.exists()


def test_missing_things_skip_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing environment skips loudly, and fails where everything is required."""
    monkeypatch.delenv("LLMPROXY_TEST_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT RUN: npm"):
        needed("npm is absent")
    monkeypatch.setenv("LLMPROXY_TEST_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception, match="npm is absent"):
        needed("npm is absent")
