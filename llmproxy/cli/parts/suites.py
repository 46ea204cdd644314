"""Where recordings of suites lie unless the settings say so."""

from __future__ import annotations

from pathlib import Path

CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"
LAST_REPORT = Path(".llmproxy") / "last-report.jsonl"
"""What the last `llmproxy test` told, in the form of `--report jsonl=FILE`."""
