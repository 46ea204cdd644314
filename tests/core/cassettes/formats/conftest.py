"""The files that other programs wrote, and what is in all of them: one dialogue (fixtures/formats/speak.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmproxy.core.cassettes.formats import get_format, read_file_of_recordings
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Interaction

ROOT = Path(__file__).resolve().parents[4] / "fixtures/formats"
UPSTREAMS = {"openai": "http://127.0.0.1:9911/v1"}

Adopt = Callable[[str, str], list[Interaction]]


def interactions(form: str, path: str) -> list[Interaction]:
    """Read and adopt a file, or a folder of files, of fixtures/formats; nothing may be skipped."""
    found = sorted(file for file in (ROOT / path).rglob("*") if file.is_file()) or [ROOT / path]
    read = get_format(form).read_all([read_file_of_recordings(file) for file in found])
    adopted = convert_exchanges(read, "c", rules=Rules(), redactor=Redactor(), upstreams=UPSTREAMS)
    assert [each.why for each in adopted if each.interaction is None] == []
    return [each.interaction for each in adopted if each.interaction is not None]


@pytest.fixture(name="interactions")
def _interactions() -> Adopt:
    return interactions


@pytest.fixture
def dialogue() -> list[Interaction]:
    """Return the dialogue as mitmproxy saw it on the wire."""
    return interactions("mitmproxy", "mitmproxy.flows")
