"""Assertions about a run, for plain pytest: its tools, its output, its costs."""
