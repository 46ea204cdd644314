"""Injected faults: deterministic errors of networks, models and tools for an agent, selected by rules.

A *kind* is a function from a call and its parameters to the client's view of it (`FaultyAnswer`); a *rule* selects the
calls that meet it. A fault is never stored and changes no key.
"""
