"""The package: every public name is listed, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import iter_modules

import llmproxy.trace

NAMES = ("AgentRun", "AssertionResult", "Cassette", "EvalResult", "Provenance", "ReplayDiff", "ReplayEngine", "Span",
         "SpanKind", "TokenUsage", "behavior_fingerprint", "replay", "tool_called")  # fmt: skip


def modules(code: str) -> set[str]:
    """Return what a fresh interpreter has imported after some code."""
    probe = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_every_name_is_there() -> None:
    """dir() lists it, `from llmproxy.trace import` gives it, and nothing is listed that is not there."""
    assert set(NAMES) <= set(dir(llmproxy.trace))
    assert llmproxy.trace.__all__ == sorted(llmproxy.trace.__all__)
    for name in llmproxy.trace.__all__:
        assert getattr(llmproxy.trace, name).__module__.startswith("llmproxy.trace.")
    modules_of_its_own = {each.name for each in iter_modules(llmproxy.trace.__path__)}
    assert modules_of_its_own & set(llmproxy.trace.__all__) == {
        "replay"
    }  # an imported module would take the name; this one can be called


def test_importing_the_package_imports_nothing_else() -> None:
    bare = {name for name in modules("import llmproxy.trace") if name.startswith("llmproxy")}
    assert bare == {"llmproxy", "llmproxy.trace"}


def test_nothing_heavy_comes_with_it() -> None:
    """Replaying a file needs neither the store nor the proxy; a recording needs the store alone."""
    heavy = {"mitmproxy", "litellm", "openai", "httpx", "rich", "pydantic", "vcr", "jsonschema", "asyncio", "sqlite3"}
    assert not modules("from llmproxy.trace import Cassette, ReplayEngine, replay, tool_called, cost_under") & heavy
    assert not modules("from llmproxy.trace import otlp, spans_of, write_otlp, write_trace") & (heavy - {"sqlite3"})
