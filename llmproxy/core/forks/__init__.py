"""Forked cassettes, and overrides in replay: results of tools, answers of the model."""
