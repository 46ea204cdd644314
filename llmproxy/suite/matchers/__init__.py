"""Matchers: the table, and variables that were captured."""
