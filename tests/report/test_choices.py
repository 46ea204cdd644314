"""What --report can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import Exit, SettingsError
from llmproxy.report.choices import KINDS, handler_of
from tests.report import samples


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_writes_its_file(kind: str, tmp_path: Path) -> None:
    """A kind of the table makes a handler that leaves a file."""
    out = tmp_path / "reports" / f"out.{kind}"
    handler = handler_of(f"{kind}={out}")
    for event in samples.events():
        handler.handle(event)
    handler.close()
    assert out.stat().st_size > 400


@pytest.mark.parametrize(
    ("text", "said"), [("xml=a", "there is no 'xml'"), ("junit", "junit=report.xml"), ("html=", "needs a file")]
)
def test_what_cannot_be_is_refused_with_what_can(text: str, said: str) -> None:
    """The error names the choice and what to type."""
    with pytest.raises(SettingsError, match=said) as caught:
        handler_of(text)
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_written_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """Not after an hour of tests."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot write"):
        handler_of(f"{kind}={tmp_path / 'file' / 'x'}")
