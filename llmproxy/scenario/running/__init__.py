"""A run from its first turn to its result: who speaks next, what is asked, what is told to listeners."""
