"""A run from its first turn to its result: turns, calls, events."""
