"""A sweep: the same run again and again, each time with one fault on purpose at one call of its recording.

    trials_of(calls, kinds) -> Trial ...      which faults can be done to which calls of an undisturbed run
    run it, each time with one                `command` for a command; suites do it themselves
    find(trial, went, baseline) -> Finding    what the agent made of it: recovered, went on, gave up, wrong but quiet, hung
    lines_of(findings)                        the table

Everything but `command` is pure. `asked_kinds` reads what stands behind `--faults sweep:`.
"""

from llmproxy.client.sweep.findings import SweepFinding, SweepOutcome, Went, find, last_words
from llmproxy.client.sweep.table import as_json, lines_of, summary_of
from llmproxy.client.sweep.trials import Trial, asked_kinds, is_sweep, trials_of

__all__ = [
    "SweepFinding",
    "SweepOutcome",
    "Trial",
    "Went",
    "as_json",
    "asked_kinds",
    "find",
    "is_sweep",
    "last_words",
    "lines_of",
    "summary_of",
    "trials_of",
]
