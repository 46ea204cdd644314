"""pytest in a process of its own, as a user calls it: the plugin loaded, hardly anything in the environment."""

from __future__ import annotations

import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Provider

from .forked import program
from .process import ROOT, clean_env

KNOWN = any(each.value == "llmproxy.pytest.plugin" for each in entry_points(group="pytest11"))
PLUGIN = () if KNOWN else ("-p", "llmproxy.pytest.plugin")
"""Loaded by hand where the package's entry point is not installed."""
QUICK = ("-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:hypothesispytest")
"""Other people's plugins, which nothing here uses, take a third of the time that a run of one test takes."""

APP = """
import json, os, urllib.request
url = os.environ.get("OPENAI_BASE_URL", "")      # read at import, when most applications make their client

def ask(text):
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}
    sent = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
"""An application under test, for app.py; importing an SDK would take longer than all the rest of a run."""


def write(folder: Path, **files: str) -> None:
    """Write Python files; ``test_x=text`` is test_x.py."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def at(provider: Provider) -> dict[str, Any]:
    return {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "sk-mine"}


def run(folder: Path, *words: str, python: str = "", plugin: bool = True, **env: str) -> pytest.RunResult:
    """Run pytest in a folder; its output goes to files. With `python` in a process that nothing else began."""
    loaded = PLUGIN if plugin else ()
    begun = [python, "-m", "pytest"] if python else program("pytest")
    command = [*begun, *QUICK, *loaded, *words]
    out, err = folder / "out.txt", folder / "err.txt"
    given = clean_env({"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | env)
    with out.open("w") as stdout, err.open("w") as stderr:
        code = subprocess.run(
            command, cwd=folder, env=given, stdout=stdout, stderr=stderr, timeout=240, check=False
        ).returncode
    return pytest.RunResult(code, out.read_text().splitlines(), err.read_text().splitlines(), 0.0)
