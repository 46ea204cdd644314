"""``llmproxy settings``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from llmproxy.settings import list_options
from tests.support.forked import program


def settings(folder: Path, *typed: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*program("llmproxy"), "settings", *typed]
    env = {**os.environ, **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_each_option_is_shown_with_its_source(tmp_path: Path) -> None:
    """Where did this value come from? is answered at once."""
    (tmp_path / "pyproject.toml").write_text("[tool.llmproxy]\nport = 9999\n", encoding="utf-8")
    done = settings(tmp_path, "--json", LLMPROXY_MODE="auto", OPENAI_BASE_URL="https://gateway.example/v1")
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)}
    assert list(facts) == [option.key for option in list_options()]
    assert (facts["mode"]["value"], facts["mode"]["source"]) == ("auto", "environment LLMPROXY_MODE")
    assert (facts["port"]["value"], facts["host"]["source"]) == (9999, "default")
    assert facts["upstream"]["value"] == {"openai": "https://gateway.example/v1"}
    assert facts["upstream"]["source"] == "environment OPENAI_BASE_URL"


def test_our_own_address_is_not_taken_for_an_upstream(tmp_path: Path) -> None:
    done = settings(tmp_path, "--json", OPENAI_BASE_URL="http://127.0.0.1:8080/v1")
    assert {fact["name"]: fact for fact in json.loads(done.stdout)}["upstream"]["value"] == {}
