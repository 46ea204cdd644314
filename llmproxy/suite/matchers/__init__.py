"""Matchers of YAML suites, and captured variables."""
