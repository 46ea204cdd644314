"""Injected faults: deterministic errors of networks, models and tools for an agent, selected by rules.

A *kind* is a row of a table (`kinds`) with a function from a call and its parameters to the client's view of it
(`FaultyAnswer`). A *rule* selects the calls that meet it. This package knows no socket: `engine.fault_injection`
calls it, `mitm` sends. A fault is never stored and changes no key.
"""

from llmproxy.core.faults.fault_choice import Faulting
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import (
    PRESETS,
    BadFaults,
    load_faults,
    parse_session_faults,
    read_faults,
    read_preset_text,
)
from llmproxy.core.faults.rules import CandidateCall, FaultKind, FaultRule, Faults, FaultyAnswer

__all__ = [
    "KINDS",
    "PRESETS",
    "BadFaults",
    "CandidateCall",
    "FaultKind",
    "FaultRule",
    "Faulting",
    "Faults",
    "FaultyAnswer",
    "load_faults",
    "parse_session_faults",
    "read_faults",
    "read_preset_text",
]  # fmt: skip
