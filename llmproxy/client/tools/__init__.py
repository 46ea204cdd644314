"""Servers of tools: those of an agent that is run (configuration, shim), and ours over recordings."""
