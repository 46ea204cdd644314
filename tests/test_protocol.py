"""Names that several processes must spell alike."""

from __future__ import annotations

from llmproxy import protocol
from llmproxy.protocol import VCR_MODES, Decision, Mode


def test_our_headers_have_our_prefix() -> None:
    """What has it is taken off before anything goes upstream."""
    names = {value for name, value in vars(protocol).items() if name.endswith("_HEADER")}
    assert len(names) >= 6
    assert all(name.startswith(protocol.OUR_HEADERS_PREFIX) and name == name.lower() for name in names)


def test_vcrs_names_cover_the_modes_that_it_has() -> None:
    """All four of VCR's words, each with its own meaning."""
    assert set(VCR_MODES) == {"none", "new_episodes", "all", "once"}
    assert set(VCR_MODES.values()) == set(Mode) - {Mode.PASSTHROUGH}


def test_modes_and_decisions_are_spelt_as_documented() -> None:
    """They stand in settings, logs, the journal and the control API."""
    assert [*Mode] == ["replay", "auto", "record", "once", "passthrough"]
    assert [*Decision] == ["REPLAY", "RECORD", "PASS", "REFUSE", "FAULT"]
