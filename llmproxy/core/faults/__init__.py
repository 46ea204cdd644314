"""Faults on purpose: what an agent meets on a bad day, chosen by rules and the same every time.

    load_faults("rate-limited", folder) -> Faults      from a preset, a file, `http-429`, `reset@3`; `read_faults` from plain values
    faults_for_session(value, folder)                  the same for one session, test or scenario
    Faulting(faults).strike(call)       -> InjectedFault      one session's faults: chosen (`choosing`, pure), done to the answer, counted
    KINDS, PRESETS                                     what there is

A *kind* is a row of a table (`kinds`) with a function from the call and its numbers to what the client sees (`Broken`). A *rule* says when
it strikes. Nothing here knows a socket: `engine.fault_injection` asks, the shell sends. A fault is never stored and changes no key.
"""

from llmproxy.core.faults.kinds.table import KINDS
from llmproxy.core.faults.presets import PRESETS, preset_text
from llmproxy.core.faults.reading import SWEEP, BadFaults, faults_for_session, load_faults, read_faults
from llmproxy.core.faults.values import Broken, Fault, FaultKind, FaultRule, Faults, FaultTarget, Needs, Parameter
from llmproxy.core.faults.walk import Faulting, InjectedFault

__all__ = [
    "KINDS",
    "PRESETS",
    "SWEEP",
    "BadFaults",
    "Broken",
    "Fault",
    "FaultKind",
    "FaultRule",
    "FaultTarget",
    "Faulting",
    "Faults",
    "InjectedFault",
    "Needs",
    "Parameter",
    "faults_for_session",
    "load_faults",
    "preset_text",
    "read_faults",
]
