"""Evalcraft's import paths: there, the same objects, and in no order in the way of the function `trace.replay`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy import trace

LINES = (
    "from llmproxy.trace.replay.engine import ReplayEngine",
    "import llmproxy.trace.core.models",
    "import llmproxy.trace; llmproxy.trace.replay(PATH)",
    "from llmproxy.trace import replay; replay(PATH)",
)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    trace.Cassette(name="mine").save(path)
    return path


def test_the_function_stays_callable(recorded: Path) -> None:
    """Whatever is imported first, `trace.replay(...)` replays: every order, each twice, from a clean slate of our modules."""
    code = (
        "import itertools, sys, llmproxy\n"
        f"for order in itertools.permutations({LINES!r}):\n"
        "    for name in [name for name in sys.modules if name.startswith('llmproxy.trace')]: del sys.modules[name]\n"
        "    vars(llmproxy).pop('trace', None)\n"
        f"    for line in (*order, *order): exec(line.replace('PATH', repr({str(recorded)!r})), {{}})\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr


def test_what_it_gives_is_what_the_function_gives(recorded: Path) -> None:
    """In a fresh interpreter, called as a function after it was imported as a package."""
    code = (
        "from llmproxy.trace.replay.engine import ReplayEngine, ReplayDiff\n"
        "from llmproxy.trace.core.models import Cassette, SpanKind, Span\n"
        "from llmproxy import trace\n"
        f"run = trace.replay({str(recorded)!r})\n"
        "assert trace.ReplayEngine is ReplayEngine and trace.Cassette is Cassette and trace.ReplayDiff is ReplayDiff\n"
        "assert trace.replay.engine.ReplayEngine is ReplayEngine\n"
        "print(type(run).__name__, run.cassette.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["AgentRun", "mine"], done.stderr
