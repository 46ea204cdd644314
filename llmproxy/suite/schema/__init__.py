"""Pydantic models of suites, from the file down to a value."""
