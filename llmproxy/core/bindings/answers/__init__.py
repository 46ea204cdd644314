"""Answers in this run's words: rewritten whole or in their stream, in each dialect, and checked for what would leak."""
