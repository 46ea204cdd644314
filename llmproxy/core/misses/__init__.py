"""Explanation of misses: the nearest recording, its differences, and the next command."""
