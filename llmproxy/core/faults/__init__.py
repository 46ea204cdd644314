"""Injected faults: what an agent meets on a bad day, chosen by rules and the same every time.

    load_faults("rate-limited", folder) -> Faults      from a preset, a file, `http-429`, `reset@3`; `read_faults` from
                                                       plain values
    parse_session_faults(value, folder)                  the same for one session, test or scenario
    Faulting(faults).inject_fault(call) -> InjectedFault   one session's faults: chosen, done to the
                                                       answer, counted
    KINDS, PRESETS                                     what there is

A *kind* is a row of a table (`kinds`) with a function from the call and its numbers to what the client sees
(`Symptom`). A *rule* says which calls meet it. Nothing here knows a socket: `engine.fault_injection` asks, `mitm`
sends. A fault is never stored and changes no key.
"""

from llmproxy.core.faults.fault_choice import Faulting
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import PRESETS, BadFaults, load_faults, parse_session_faults, read_faults, read_preset
from llmproxy.core.faults.rules import FaultKind, FaultNeeds, FaultRule, Faults, FaultTarget, Symptom

__all__ = [
    "KINDS", "PRESETS", "BadFaults", "FaultKind", "FaultNeeds", "FaultRule", "FaultTarget", "Faulting", "Faults",
    "Symptom", "load_faults", "parse_session_faults", "read_faults", "read_preset",
]  # fmt: skip
