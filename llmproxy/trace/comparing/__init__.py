"""Comparison of two runs: pairing of calls, differences, and their display."""
